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
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.candidates import candidates, default
from edgeplan.runtime.creation import Creator, Implementation
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.partitioned.sections import Cut, Dimension, cut
from edgeplan.runtime.program import Program, plan_buffers, shared_buffers, signature
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
    """

    lowered: Lowered
    ranged: Ranged
    layouts: Mapping[str, str]
    lanes: tuple[int, ...]
    needed: tuple[int, ...]
    offsets: Mapping[str, int]
    arena_bytes: int

    def of(self, lane: int) -> tuple[int, ...]:
        """Positions of a lane's sub-steps, in its order."""
        return tuple(k for k, found in enumerate(self.lanes) if found == lane)


def partition(lowered: Lowered, layouts: Mapping[str, str], block: int, assignments: Sequence[Assignment]) -> Partitioned:
    """Put the steps of a model on two lanes, where each waits for all of the step before.

    Args:
        lowered: the steps.
        layouts: layout of every activation.
        block: channels of a block in the layout `blocked16`, of which a split of channels takes whole ones.
        assignments: where each step runs.
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
    # of a split lane 1's part first: it is queued, lane 0's part runs at once
    order = sorted(range(len(lanes)), key=lambda k: (ranged.origin[k], -lanes[k]))
    lanes = [lanes[k] for k in order]
    steps = tuple(ranged.lowered.steps[k] for k in order)
    own = structs.replace(ranged.lowered, steps=steps)
    ranged = replace(ranged, lowered=own, origin=tuple(ranged.origin[k] for k in order))
    turns: list[list[str]] = [[] for _ in lowered.steps]
    for step, origin in zip(steps, ranged.origin, strict=True):
        turns[origin] += (ranged.tensors[t].whole if t in ranged.tensors else t for t in (*step.reads, *step.outputs))
    copied = structs.replace(lowered, shapes=own.shapes)  # copies of rows have a place, too
    offsets, size = plan_buffers(copied, {t: layouts[t] for t in root}, block, turns)
    parts = {name: offsets[part.whole] + part.offset for name, part in ranged.tensors.items()}
    places = MappingProxyType({**offsets, **parts})
    return Partitioned(lowered, ranged, layouts, tuple(lanes), _needed(lanes, ranged.origin), places, size)


def preceding(lowered: Lowered, layouts: Mapping[str, str], block: int) -> tuple[tuple[int, ...], ...]:
    """For each step the numbers of those that it always runs after.

    They write what it touches, or read what it overwrites.
    """
    root = shared_buffers(lowered, layouts, block)
    readers: dict[str, list[int]] = {}
    writers: dict[str, list[int]] = {}
    found = []
    for k, step in enumerate(lowered.steps):
        read, written = ({root[t] for t in tensors} for tensors in (step.reads, step.outputs))
        rivals = {j for buffer in read | written for j in writers.get(buffer, ())}
        rivals |= {j for buffer in written for j in readers.get(buffer, ())}
        found.append(tuple(sorted(rivals)))
        for buffer in read:
            readers.setdefault(buffer, []).append(k)
        for buffer in written:
            writers.setdefault(buffer, []).append(k)
    return tuple(found)


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


def _needed(lanes: Sequence[int], origin: Sequence[int]) -> tuple[int, ...]:
    """For each sub-step how many of the other lane are of steps before its own."""
    needed, done, before, at = list[int](), [0, 0], [0, 0], -1
    for lane, step in zip(lanes, origin, strict=True):
        if step != at:
            before, at = [*done], step
        needed.append(before[1 - lane])
        done[lane] += 1
    return tuple(needed)
