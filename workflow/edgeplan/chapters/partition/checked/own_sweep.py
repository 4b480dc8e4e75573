"""A model's own steps measured on the pair where it is to run: whole on each processor, then split where both are even.

One session splits all steps at once, so that each finds the caches as its model leaves them and its parts run beside each
other. Steps that differ in names alone are one: their times count together, and the next session's split follows from them.
Nothing but the model is measured, and no pair has to be known before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from edgeplan.chapters.partition.costs import ModelCosts, costs_of, split, whole
from edgeplan.chapters.partition.eop.sweeps import SweptModel, executable_parts, on_gpu
from edgeplan.chapters.partition.learning.predictors import Floats
from edgeplan.chapters.partition.measuring.opened import Opened, ends_of_runs
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.layouts import size_bytes
from edgeplan.runtime.partitioned.program import Assignment, Split, region_at
from edgeplan.runtime.partitioned.sections import Dimension, Extent, extent, why_not_cut
from edgeplan.runtime.processor import Processor, Sharing

#: Times of both processors' parts.
Parts = tuple[float, float]
#: A split whose slower part takes so many times the better whole time is no start to look further from.
_HOPELESS = 1.5
#: Parts that differ by less than this share of the longer one are as even as runs repeat.
_EVEN = 0.03


def next_end(extent: Extent, whole: Parts, known: Mapping[int, Parts]) -> int | None:
    """The end that is worth measuring behind those that were; None where nothing is to be gained.

    The first is the one at which both would take equally long, if time grew with the part alone.
    """
    if last_end(extent) < extent.unit:
        return None
    if not known:
        return extent.nearest(whole[1] / sum(whole) if sum(whole) > 0 else 0.5)
    best = min(known, key=lambda end: max(known[end]))
    if max(known[best]) > _HOPELESS * min(whole):
        return None
    cpu, gpu = known[best]
    rates = best / max(cpu, 1e-9), (extent.size - best) / max(gpu, 1e-9)
    wanted = extent.nearest(rates[0] / sum(rates))
    if wanted not in known:
        return wanted
    further = shifted(extent, best, known[best])
    return further if further not in known else None


def shifted(extent: Extent, end: int, parts: Parts) -> int:
    """The end after a block was shifted to the processor that waited for the other; the same where both are even."""
    cpu, gpu = parts
    if abs(cpu - gpu) <= _EVEN * max(cpu, gpu):
        return end
    wanted = end + (extent.unit if cpu < gpu else -extent.unit)
    return min(max(wanted, extent.unit), last_end(extent))


def last_end(extent: Extent) -> int:
    """The largest end that leaves something for the GPU; below one unit, where the step cannot be cut."""
    return (extent.size - 1) // extent.unit * extent.unit


_MS = 1e-6  # of a nanosecond
#: Sessions in which steps are split, and inferences of each that count.
SPLITS, RUNS = 3, 3
#: Bytes of moves that are measured, and how often.
_MOVED, _MOVES = (1 << 14, 1 << 22), 15
#: Of the times of a step: what others on the machine took from the rest is not its own.
_QUANTILE = 0.25
#: A split is looked at over the first of these that a step can be cut over.
_DIMENSIONS = (Dimension.channels, Dimension.rows, Dimension.batch, Dimension.elements)


@dataclass(frozen=True, slots=True)
class Moving:
    """What moving activations between two copies of an arena takes, each and by the byte: nothing where memory is shared."""

    least_ms: float
    ms_per_byte: float

    def ms(self, size: int) -> float:
        """Return how long a move of so many bytes takes."""
        return self.least_ms + self.ms_per_byte * size


@dataclass
class OwnTimes:
    """Times of a model's steps in all sessions so far.

    Attributes:
        twin: for each step the first one that it equals.
        dimension: what each step can be split over; None for nothing.
        why: for each step why it cannot be split.
        refused: for each step why the GPU does not run it.
        whole: by step the times on each processor alone.
        splits: by step and end the times of both parts.
        step_ms: what a step takes on top of its kernel, by processor: its call, or being enqueued.
        hand_over_ms: until one processor goes on behind the other.
    """

    subject: SweptModel
    block: int
    twin: Sequence[int]
    dimension: Sequence[Dimension | None]
    why: Sequence[str]
    refused: Sequence[str]
    whole: dict[int, list[float]] = field(default_factory=dict)
    splits: dict[int, dict[int, Parts]] = field(default_factory=dict)
    step_ms: Parts = (0.0, 0.0)
    hand_over_ms: float = 0.0
    moving: Moving = field(default_factory=lambda: Moving(0.0, 0.0))

    def next_assignments(self) -> list[Assignment] | None:
        """Split all steps where it is worth measuring next, others run on the faster processor; None where nothing is left."""
        found: list[Assignment] = []
        for k, step in enumerate(self.subject.lowered.steps):
            first, over = self.twin[k], self.dimension[k]
            cpu, gpu = self.whole[first]
            end = None
            if over is not None:
                length = extent(self.subject.lowered, self.block, step, over)
                end = next_end(length, (cpu, gpu), self.splits.get(first, {}))
            found.append(Split(end, over) if end is not None and over is not None else int(not self.refused[k] and gpu < cpu))
        return found if any(isinstance(one, Split) for one in found) else None


def moving_of(gpu: Processor) -> Moving:
    """Measure moves of two sizes, there and back."""
    if gpu.capabilities.sharing == Sharing.fine:
        return Moving(0.0, 0.0)
    buffer, taken = gpu.allocate(_MOVED[-1]), list[float]()
    for size in _MOVED:
        for _ in range(_MOVES):
            buffer.data[:size] += 1  # as a host leaves it: in its caches
            began = time.perf_counter()
            gpu.enqueue_in(buffer, region_at(0, size))
            gpu.enqueue_out(buffer, region_at(0, size))
            gpu.finish()
            taken.append((time.perf_counter() - began) * 1e3 / 2)
    gpu.free(buffer)
    small, large = (float(np.median(taken[_MOVES * k : _MOVES * (k + 1)])) for k in (0, 1))
    rate = max(large - small, 0.0) / (_MOVED[1] - _MOVED[0])
    return Moving(max(small - rate * _MOVED[0], 0.0), rate)


def own_times(pair: Opened, subject: SweptModel, hand_over_ms: float = 0.0, runs: int = RUNS) -> OwnTimes:
    """Measure the steps of a model on a pair whose GPU notes times.

    A step that even parts of would not gain what a hand-over takes stays whole. `SPLITS` sessions split steps; `runs` of
    each count.
    """
    lowered, refused, block = subject.lowered, on_gpu(pair, subject), pair.block
    over, why = [], []
    for step, lacking in zip(lowered.steps, refused, strict=True):
        reasons = {d: why_not_cut(lowered, subject.layouts, block, step, d) for d in _DIMENSIONS}
        able = [d for d, reason in reasons.items() if not reason and not lacking]
        over.append(able[0] if able else None)
        why.append("" if able else f"the GPU has no kernel of it: {lacking}" if lacking else reasons[Dimension.channels])
    found = OwnTimes(subject, block, twins(lowered, subject.layouts), over, why, refused)
    moving = found.moving = moving_of(pair.other)
    on_cpu, of_cpu = _measured(pair, subject, [0] * len(refused), runs, moving)
    lanes = [0 if lacking else 1 for lacking in refused]
    on_other, of_gpu = _measured(pair, subject, list(lanes), runs, moving)
    for first in dict.fromkeys(found.twin):
        own = [k for k, twin in enumerate(found.twin) if twin == first]
        cpu = quantile(on_cpu[0][:, own])
        gpu = cpu if refused[first] else quantile(on_other[1][:, own])
        found.whole[first] = [cpu, gpu]
        if over[first] is not None and not gains(cpu, gpu, hand_over_ms):
            for k in own:
                over[k], why[k] = None, "handing over takes longer than the best split would gain"
    of_cpu /= max(len(refused), 1)
    own_gpu, hand_overs = max(of_gpu - of_cpu * lanes.count(0), 0.0) / max(sum(lanes), 1), []
    for _ in range(SPLITS):
        if (assigned := found.next_assignments()) is None:
            break
        parts, beyond = _measured(pair, subject, assigned, runs, moving)
        _note(found, assigned, parts)
        count = sum(isinstance(one, Split) for one in assigned)
        on = [sum(isinstance(one, Split) or one == lane for one in assigned) for lane in (0, 1)]
        hand_overs.append((beyond - own_gpu * on[1] - of_cpu * (len(assigned) - count)) / count)
    found.step_ms, found.hand_over_ms = (max(of_cpu, 0.0), own_gpu), max(min(hand_overs, default=0.0), 0.0)
    return found


def gains(cpu_ms: float, gpu_ms: float, hand_over_ms: float) -> bool:
    """Tell whether parts that end together, each as fast as its share of the whole, gain more than handing over takes."""
    return cpu_ms * gpu_ms / max(cpu_ms + gpu_ms, 1e-9) + hand_over_ms < min(cpu_ms, gpu_ms)


def _note(found: OwnTimes, assigned: Sequence[Assignment], parts: Floats) -> None:
    """Put down the times of all splits of a session; infinite ones where the GPU has no kernel of its part: not asked again."""
    ends: dict[tuple[int, int], list[int]] = {}
    for k, one in enumerate(assigned):
        if isinstance(one, Split):
            own = ends.setdefault((found.twin[k], one.end), [])
            if np.isfinite(parts[:, 0, k]).all():
                own.append(k)
    for (first, end), own in ends.items():
        times = (quantile(parts[0][:, own]), quantile(parts[1][:, own])) if own else (np.inf, np.inf)
        found.splits.setdefault(first, {})[end] = times


def quantile(values: Floats) -> float:
    """The low quantile of some times; 0 without any."""
    return float(np.quantile(values, _QUANTILE)) if values.size else 0.0


def twins(lowered: Lowered, layouts: Mapping[str, str]) -> list[int]:
    """For each step the first one that differs from it in names alone."""
    first: dict[object, int] = {}
    return [first.setdefault(_signature(lowered, layouts, step), k) for k, step in enumerate(lowered.steps)]


def _signature(lowered: Lowered, layouts: Mapping[str, str], step: Step) -> object:
    tensors = (*step.reads, *step.outputs)
    return (
        step.kind,
        tuple((lowered.shapes[t], layouts.get(t), lowered.types.get(t)) for t in tensors),
        tuple((role, lowered.shapes[name]) for role, name in step.weights.items()),
        tuple(step.settings.items()),
        tuple((p.kind, p.algorithm) for p in step.post_ops),
    )


def _measured(
    pair: Opened, subject: SweptModel, assigned: Sequence[Assignment], runs: int, moving: Moving
) -> tuple[Floats, float]:
    """Run a model's steps where they are assigned, in a new session.

    Returns:
        what each step took on each processor (2, runs, steps), not a number where it has no part there; and what a run took
        beyond the longer part of each step and what moving takes by itself; in ms.
    """
    made = executable_parts(pair, subject, list(assigned))
    with pair.session(made, subject.model) as session:
        first, last = (ends * _MS for ends in ends_of_runs(session, made, partial(session.run, subject.inputs), runs))
        moves = [region for regions in (*session.placed.moved_in, *session.placed.moved_out) for region in regions]
    parts = np.where(np.isfinite(first), last - first, np.nan)
    beyond = last.max(axis=(0, 2)) - np.nanmax(parts, axis=0).sum(axis=1)
    return parts, quantile(beyond) - sum(moving.ms(width * rows) for _, width, rows, _ in moves)


#: A split has to gain more than this share of the better whole time: runs of one session repeat so far.
MARGIN = 0.05


def own_costs(times: OwnTimes, *, names: tuple[str, str], handshake_ms: float) -> ModelCosts:
    """The costs of a model by its own times."""
    lowered, block = times.subject.lowered, times.block
    priced = []
    for k, step in enumerate(lowered.steps):
        first, over = times.twin[k], times.dimension[k]
        options = [whole(lane, ms) for lane, ms in enumerate(times.whole[first][: 1 if times.refused[k] else 2])]
        if over is not None:
            size = extent(lowered, block, step, over).size
            known = [(end, both) for end, both in sorted(times.splits.get(first, {}).items()) if max(both) < np.inf]
            options += [split(Split(end, over), size, *both) for end, both in known]
        more: dict[str, Any] = {}
        if times.moving.least_ms or times.moving.ms_per_byte:  # either may be lost in noise
            sizes = [size_bytes(lowered.shapes[t], times.subject.layouts[t], block) for t in step.outputs]
            more |= dict.fromkeys(("to_cpu_ms", "to_gpu_ms"), sum(map(times.moving.ms, sizes)))
        if not any(isinstance(place, Split) for _, place in options):
            more["unsplittable"] = times.why[k] or "a part of it has no kernel, or takes longer than all of it"
        priced.append((options, more))
    return costs_of(
        lowered, times.subject.layouts, block, priced,
        names=names, handshake_ms=max(handshake_ms, times.hand_over_ms), error=MARGIN,
        step_ms=times.step_ms,
    )  # fmt: skip


def costs_alone(subject: SweptModel, steps_ms: Sequence[float], block: int, names: tuple[str, str]) -> ModelCosts:
    """The costs of a model that runs on the first processor alone, from the times that its steps took."""
    priced = [([whole(0, ms)], {"unsplittable": "all steps run on one processor"}) for ms in steps_ms]
    return costs_of(subject.lowered, subject.layouts, block, priced, names=names, handshake_ms=0.0)
