"""A model's own steps measured on the pair where it is to run: whole on each processor, then split where both are even.

One session splits all steps at once, so that each finds the caches as its model leaves them and its parts run beside each
other. Steps that differ in names alone are one: their times count together, and the next session's split follows from them.
Nothing but the model is measured, and no pair has to be known before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from edgeplan.chapters.partition.checked.shifting import Parts, next_end
from edgeplan.chapters.partition.eop.sweeps import SweptModel, executable_parts, on_gpu, session_of
from edgeplan.chapters.partition.measuring.opened import Opened
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.partitioned.program import Assignment, Partitioned, Split
from edgeplan.runtime.partitioned.sections import Dimension, extent, why_not_split
from edgeplan.runtime.partitioned.session import PairSession

Floats = npt.NDArray[np.float64]
_MS = 1e-6  # of a nanosecond
#: Sessions in which steps are split, and inferences of each that count.
SPLITS, RUNS = 3, 3
#: Of the times of a step: what others on the machine took from the rest is not its own.
_QUANTILE = 0.25
#: A split is looked at over the first of these that a step can be cut over.
_DIMENSIONS = (Dimension.channels, Dimension.rows, Dimension.batch, Dimension.elements)


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of a session say what its steps took, in ms.

    Attributes:
        parts: of each of the model's steps on each processor (2, runs, steps), from when either begins the step where one
            follows the other, else from its own beginning; not a number where it has no part there.
        whole: from the start of a run to the end of its last step (runs,).
        busy: the sum over steps of the time from the first start to the last end (runs,).
    """

    parts: Floats
    whole: Floats
    busy: Floats


@dataclass(frozen=True, slots=True)
class Beyond:
    """These times (ms) come on top of the kernels of steps.

    Attributes:
        step: a step on each processor: its call, or being enqueued.
        hand_over: until a processor goes on behind a step of the other, or of both.
    """

    step: Parts
    hand_over: float


@dataclass
class OwnTimes:
    """Times of a model's steps in all sessions so far.

    Attributes:
        subject: the model.
        block: channels of a block of the layout `blocked16`.
        twin: for each step the first one that it equals.
        dimension: what each step can be split over; None for nothing.
        why: for each step why it cannot be split.
        refused: for each step why the GPU does not run it.
        whole: by step the times on each processor alone.
        splits: by step and end the times of both parts.
    """

    subject: SweptModel
    block: int
    twin: Sequence[int]
    dimension: Sequence[Dimension | None]
    why: Sequence[str]
    refused: Sequence[str]
    whole: dict[int, list[float]] = field(default_factory=dict)
    splits: dict[int, dict[int, Parts]] = field(default_factory=dict)
    beyond: Beyond = field(default_factory=lambda: Beyond((0.0, 0.0), 0.0))

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


def own_times(pair: Opened, subject: SweptModel, runs: int = RUNS, splits: int = SPLITS) -> OwnTimes:
    """Measure the steps of a model.

    Args:
        pair: whose GPU notes times.
        subject: the model.
        runs: of each session.
        splits: sessions in which steps are split.

    Raises:
        ModelError: a step cannot be run.
        DeviceError: a processor fails.
    """
    lowered, refused, block = subject.lowered, on_gpu(pair, subject), pair.block
    over, why = [], []
    for step, lacking in zip(lowered.steps, refused, strict=True):
        reasons = {d: why_not_split(lowered, subject.layouts, block, step, d) for d in _DIMENSIONS}
        able = [d for d, reason in reasons.items() if not reason and not lacking]
        over.append(able[0] if able else None)
        why.append("" if able else f"the GPU has no kernel of it: {lacking}" if lacking else reasons[Dimension.channels])
    found = OwnTimes(subject, block, twins(lowered, subject.layouts), over, why, refused)
    on_cpu = measured(pair, subject, [0] * len(refused), runs)
    lanes = [0 if lacking else 1 for lacking in refused]
    on_other = measured(pair, subject, list(lanes), runs)
    for first in dict.fromkeys(found.twin):
        own = [k for k, twin in enumerate(found.twin) if twin == first]
        cpu = quantile(on_cpu.parts[0][:, own])
        found.whole[first] = [cpu, cpu if refused[first] else quantile(on_other.parts[1][:, own])]
    of_cpu = quantile(on_cpu.whole - on_cpu.busy) / max(len(refused), 1)
    of_gpu = quantile(on_other.whole - on_other.busy) - of_cpu * lanes.count(0)
    own_gpu, hand_overs = max(of_gpu, 0.0) / max(sum(lanes), 1), []
    for _ in range(splits):
        if (assigned := found.next_assignments()) is None:
            break
        spans = measured(pair, subject, assigned, runs)
        _note(found, assigned, spans)
        count = sum(isinstance(one, Split) for one in assigned)
        on = [sum(isinstance(one, Split) or one == lane for one in assigned) for lane in (0, 1)]
        hand_overs.append((quantile(spans.whole - spans.busy) - own_gpu * on[1] - of_cpu * (len(assigned) - count)) / count)
    found.beyond = Beyond((max(of_cpu, 0.0), own_gpu), max(min(hand_overs, default=0.0), 0.0))
    return found


def _note(found: OwnTimes, assigned: Sequence[Assignment], spans: Spans) -> None:
    """Put down the times of all splits of a session that both processors had a part of."""
    ends: dict[tuple[int, int], list[int]] = {}
    for k, one in enumerate(assigned):
        if isinstance(one, Split) and np.isfinite(spans.parts[:, 0, k]).all():
            ends.setdefault((found.twin[k], one.end), []).append(k)
    for (first, end), own in ends.items():
        cpu, gpu = (quantile(spans.parts[lane][:, own]) for lane in (0, 1))
        found.splits.setdefault(first, {})[end] = (cpu, gpu)
    for k, one in enumerate(assigned):  # the GPU has no kernel of a part: not to be asked for again
        if isinstance(one, Split) and not np.isfinite(spans.parts[:, 0, k]).all():
            found.splits.setdefault(found.twin[k], {}).setdefault(one.end, (np.inf, np.inf))


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


def measured(pair: Opened, subject: SweptModel, assigned: Sequence[Assignment], runs: int) -> Spans:
    """Run a model's steps where they are assigned, in a new session."""
    made = executable_parts(pair, subject, list(assigned))
    with session_of(pair, subject, made) as session:
        return spans_of(session, made, subject, runs)


def spans_of(session: PairSession, made: Partitioned, subject: SweptModel, runs: int) -> Spans:
    """Run a session and tell what its steps took; the first run does not count."""
    lanes, origin, count = np.array(made.lanes), np.array(made.ranged.origin), len(subject.lowered.steps)
    parts, whole, busy = np.full((2, runs, count), np.nan), np.zeros(runs), np.zeros(runs)
    for run in range(-1, runs):
        session.run(subject.inputs)
        if run < 0:
            continue
        begin, end = (session.times * _MS).T
        first, last = np.full((2, count), np.inf), np.full((2, count), -np.inf)
        np.minimum.at(first, (lanes, origin), begin)
        np.maximum.at(last, (lanes, origin), end)
        ran = np.isfinite(first)
        begun = np.broadcast_to(first.min(axis=0), first.shape) if made.sequential else first
        parts[:, run][ran] = (last - begun)[ran]
        whole[run], busy[run] = end.max(), (last.max(axis=0) - first.min(axis=0)).sum()
    return Spans(parts, whole, busy)
