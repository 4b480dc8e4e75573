"""A partition as a program: sub-steps on two lanes, and what each waits for.

Lanes are 0 and 1, the processors of a pair in the order of its file. The host computes lane 0 and fills the queue of lane 1.

A lane runs its sub-steps in order. A sub-step waits until the other lane has done a number of its own: with two lanes, one
number says it all, and what surely happens before what follows from the numbers alone (LiPG, section 4).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from msgspec import structs

from edgeplan.errors import ModelError
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.candidates import candidates, default
from edgeplan.runtime.creation import Creator, Implementation
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.partitioned.sections import Cut, Dimension, cut
from edgeplan.runtime.program import Program, Use, plan_buffers, shared_buffers, signature
from edgeplan.runtime.ranges import Ranged, located
from edgeplan.runtime.streaming.program import ELSEWHERE
from edgeplan.runtime.weights import locate_weights


@dataclass(frozen=True, slots=True)
class Split:
    """A step on both lanes: lane 0 computes what is before an end, lane 1 the rest.

    Attributes:
        end: channels, items, rows or elements that lane 0 computes.
        dimension: which of them.
    """

    end: int
    dimension: Dimension = Dimension.channels


#: Where a step runs: on a lane, or on both.
Assignment = int | Split


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A model on two lanes.

    Attributes:
        lowered: the model's steps, before any was split.
        ranged: the sub-steps, in an order that fits both lanes; `origin` is the number of the model's step.
        layouts: layout of every activation and part of one.
        lanes: of each sub-step.
        needed: how many sub-steps of the other lane must be done before each starts.
        offsets: place of every activation and part of one in the arena, in bytes.
        arena_bytes: that the activations take.
        sequential: whether every step waits for all of the step before.
    """

    lowered: Lowered
    ranged: Ranged
    layouts: Mapping[str, str]
    lanes: tuple[int, ...]
    needed: tuple[int, ...]
    offsets: Mapping[str, int]
    arena_bytes: int
    sequential: bool

    def of(self, lane: int) -> tuple[int, ...]:
        """Positions of a lane's sub-steps, in its order."""
        return tuple(k for k, found in enumerate(self.lanes) if found == lane)


def partition(
    lowered: Lowered,
    layouts: Mapping[str, str],
    block: int,
    assignments: Sequence[Assignment],
    orders: tuple[Sequence[int], Sequence[int]] | None = None,
) -> Partitioned:
    """Put the steps of a model on two lanes.

    Args:
        lowered: the steps.
        layouts: layout of every activation.
        block: channels of a block in the layout `blocked16`, of which a split of channels takes whole ones.
        assignments: where each step runs.
        orders: numbers of the steps that each lane runs, in order, split ones in both: they wait for what they
            read, and different steps run side by side. None: a step waits for all of the step before.
    """
    if len(assignments) != len(lowered.steps):
        raise _misfit(lowered, f"{len(assignments)} assignments for {len(lowered.steps)} steps")
    cuts = [Cut(a.dimension, (a.end,)) if isinstance(a, Split) else None for a in assignments]
    sections = cut(lowered, layouts, block, cuts)
    ranged = sections.ranged
    lanes = []
    for origin, part in zip(ranged.origin, sections.part, strict=True):
        assigned = assignments[origin]
        lanes.append(part if isinstance(assigned, Split) else assigned)
    layouts = MappingProxyType({**layouts, **sections.layouts})
    root = shared_buffers(lowered, {t: f for t, f in layouts.items() if t not in ranged.tensors}, block)
    touched = [_touched(step, ranged, root) for step in ranged.lowered.steps]
    if orders is None:
        # of a split lane 1's part first: it is queued, lane 0's part runs at once
        order = sorted(range(len(lanes)), key=lambda k: (ranged.origin[k], -lanes[k]))
        before = [[j for j in range(k) if ranged.origin[j] < ranged.origin[k]] for k in range(len(lanes))]
    else:
        before = _dependencies(ranged.origin, touched)
        order = _merged(lowered, ranged.origin, lanes, before, orders)
    ranged, lanes, before = _reordered(ranged, lanes, before, order)
    needed, uses = _waits(ranged, lanes, before)
    copied = structs.replace(lowered, shapes=ranged.lowered.shapes)  # copies of rows have a place, too
    offsets, size = plan_buffers(copied, {t: layouts[t] for t in root}, block, uses)
    parts = {name: offsets[part.whole] + part.offset for name, part in ranged.tensors.items()}
    places = MappingProxyType({**offsets, **parts})
    return Partitioned(lowered, ranged, layouts, tuple(lanes), needed, places, size, orders is None)


def preceding(lowered: Lowered, layouts: Mapping[str, str], block: int) -> tuple[tuple[int, ...], ...]:
    """For each step the numbers of those that it always runs after.

    They write what it touches, or read what it overwrites.
    """
    root = shared_buffers(lowered, layouts, block)
    whole = Ranged(lowered, MappingProxyType({}), MappingProxyType({}), tuple(range(len(lowered.steps))))
    found = _dependencies(whole.origin, [_touched(step, whole, root) for step in lowered.steps])
    return tuple(tuple(before) for before in found)


def program_of(dnnl: Dnnl, partitioned: Partitioned, model: Path, threads: int = 1, home: str = BLOCKED) -> Program:
    """The program of a partition: its sub-steps, those of lane 0 with implementations, and room for their scratch.

    Args:
        dnnl: the library.
        partitioned: the partition.
        model: the ONNX file.
        threads: of the steps of lane 0.
        home: layout of the activations inside the model, as they were given to `partition`.
    """
    lowered = partitioned.ranged.lowered
    dnnl.set_threads(threads)
    creator = Creator(dnnl, lowered.shapes, partitioned.layouts, partitioned.offsets, lowered.types)
    known: dict[object, tuple[Implementation, int]] = {}
    choices, scratch = [], 0
    with dnnl.without_primitive_cache():  # a fresh process is to be offered what is chosen
        for step, lane in zip(lowered.steps, partitioned.lanes, strict=True):
            if lane == 1:
                choices.append(ELSEWHERE)
                continue
            key = signature(creator, step)
            if key not in known:
                found = default(candidates(creator, step))
                known[key] = found, creator.create(step, found, generate=False).scratch_bytes
            choices.append(known[key][0])
            scratch = max(scratch, known[key][1])
    weights = located(partitioned.ranged, locate_weights(model, partitioned.lowered))
    arena = partitioned.layouts, partitioned.offsets, partitioned.arena_bytes
    return Program.of(lowered, home, choices, arena, scratch, weights)


def _misfit(lowered: Lowered, problem: str) -> ModelError:
    return ModelError(f"the partition does not fit the model: {problem}", where=lowered.name, next_step="plan the model again")


def _touched(step: Step, ranged: Ranged, root: Mapping[str, str]) -> tuple[frozenset[str], frozenset[str]]:
    """Buffers that a sub-step reads, and those that it writes."""

    def buffers(tensors: Sequence[str]) -> frozenset[str]:
        return frozenset(root[ranged.tensors[t].whole if t in ranged.tensors else t] for t in tensors)

    return buffers(step.reads), buffers(step.outputs)


def _dependencies(origin: Sequence[int], touched: Sequence[tuple[frozenset[str], frozenset[str]]]) -> list[list[int]]:
    """For each sub-step the earlier ones that write what it touches, or read what it writes."""
    readers: dict[str, list[int]] = {}
    writers: dict[str, list[int]] = {}
    found = []
    for k, (read, written) in enumerate(touched):
        rivals = {j for buffer in read | written for j in writers.get(buffer, ())}
        rivals |= {j for buffer in written for j in readers.get(buffer, ())}
        found.append(sorted(j for j in rivals if origin[j] < origin[k]))
        for buffer in read:
            readers.setdefault(buffer, []).append(k)
        for buffer in written:
            writers.setdefault(buffer, []).append(k)
    return found


def _merged(
    lowered: Lowered,
    origin: Sequence[int],
    lanes: Sequence[int],
    before: Sequence[Sequence[int]],
    orders: tuple[Sequence[int], Sequence[int]],
) -> list[int]:
    """One order that fits both lanes and what steps read; sub-steps of lane 1 as early as they can be queued."""
    numbers: dict[tuple[int, int], list[int]] = {}
    for k, (lane, step) in enumerate(zip(lanes, origin, strict=True)):
        numbers.setdefault((lane, step), []).append(k)
    queues: list[list[int]] = []
    for lane in (0, 1):
        wanted = sorted(step for found, step in numbers if found == lane)
        if sorted(orders[lane]) != wanted:
            raise _misfit(lowered, f"the order of lane {lane} is of other steps than are assigned to it")
        queues.append([k for step in reversed(orders[lane]) for k in reversed(numbers[lane, step])])
    merged: list[int] = []
    done: set[int] = set()
    while any(queues):
        ready = [q for q in reversed(queues) if q and done.issuperset(before[q[-1]])]
        if not ready:
            names = " and ".join(repr(lowered.steps[origin[q[-1]]].name) for q in queues if q)
            raise _misfit(lowered, f"{names} would wait for what comes later")
        merged.append(ready[0].pop())
        done.add(merged[-1])
    return merged


def _reordered(
    ranged: Ranged, lanes: Sequence[int], before: Sequence[Sequence[int]], order: Sequence[int]
) -> tuple[Ranged, list[int], list[list[int]]]:
    place = {k: at for at, k in enumerate(order)}
    steps = tuple(ranged.lowered.steps[k] for k in order)
    moved = replace(ranged, lowered=structs.replace(ranged.lowered, steps=steps), origin=tuple(ranged.origin[k] for k in order))
    return moved, [lanes[k] for k in order], [[place[j] for j in before[k]] for k in order]


def _waits(ranged: Ranged, lanes: Sequence[int], before: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], list[Use]]:
    """Return each sub-step's waits, and what has surely been done when it starts: more, as its lane waited before."""
    number: list[int] = []  # of each sub-step in its lane
    counts = [0, 0]
    for lane in lanes:
        number.append(counts[lane])
        counts[lane] += 1
    needed: list[int] = []
    uses: list[Use] = []
    sure = [0, 0]  # of each lane: sub-steps of the other one that are done when its last one so far starts
    for k, (lane, step) in enumerate(zip(lanes, ranged.lowered.steps, strict=True)):
        other = 1 - lane
        needed.append(max((number[j] + 1 for j in before[k] if lanes[j] == other), default=0))
        sure[lane] = max(sure[lane], needed[-1])
        known = (number[k] + 1, sure[lane] + 1) if lane == 0 else (sure[lane] + 1, number[k] + 1)
        whole = tuple(ranged.tensors[t].whole if t in ranged.tensors else t for t in (*step.reads, *step.outputs))
        uses.append(Use(whole, lane, number[k] + 1, known))
    return tuple(needed), uses
