"""A partition as a program: sub-steps on two lanes, and what each waits for.

Lanes are 0 and 1, the processors of a pair in the order of its file. The host computes lane 0 and fills the queue of lane 1.

A lane runs its sub-steps in order. A sub-step waits until the other lane has done a number of its own: with two lanes, one
number says it all, and what surely happens before what follows from the numbers alone (LiPG, section 4).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from msgspec import structs

from edgeplan.errors import ModelError
from edgeplan.graph.ir import BYTES_PER_ELEMENT
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.candidates import candidates, default
from edgeplan.runtime.creation import Created, Creator, Implementation
from edgeplan.runtime.layouts import NHWC, same_bytes, size_bytes
from edgeplan.runtime.partitioned.sections import Cut, Dimension, cut_sections, view_of
from edgeplan.runtime.processor import Region
from edgeplan.runtime.program import candidates_key, plan_buffers, shared_buffers
from edgeplan.runtime.ranges import Ranged
from edgeplan.runtime.streaming.program import ELSEWHERE


@dataclass(frozen=True, slots=True)
class Split:
    """A step on both lanes: lane 0 computes channels, items, rows or elements before an end, lane 1 the rest."""

    end: int
    dimension: Dimension = Dimension.channels


#: Where a step runs: on a lane, or on both.
Assignment = int | Split


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A model on two lanes: its steps before any was split, and the sub-steps, in an order that fits both lanes.

    Layouts and offsets (bytes in the arena) are those of activations and of parts of them; `needed` says how many sub-steps of
    the other lane must be done before each starts.
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
    """Put the steps of a model on two lanes, where each waits for all of the step before; channels split in blocks."""
    if len(assignments) != len(lowered.steps):
        what = f"the partition does not fit the model: {len(assignments)} assignments for {len(lowered.steps)} steps"
        raise ModelError(what, where=lowered.name, next_step="plan the model again")
    cuts = [Cut(a.dimension, (a.end,)) if isinstance(a, Split) else None for a in assignments]
    sections = cut_sections(lowered, layouts, block, cuts)
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
    """For each step the numbers of those that it always runs after: they write what it touches, or read what it overwrites."""
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


def host_kernels(creator: Creator, partitioned: Partitioned, threads: int) -> list[tuple[Implementation, Created]]:
    """Choose what the host runs each of its sub-steps by; `ELSEWHERE`, without calls, for those of lane 1."""
    chosen: dict[object, Implementation] = {}
    found: list[tuple[Implementation, Created]] = []
    creator.dnnl.set_threads(threads)
    with creator.dnnl.without_primitive_cache():  # a fresh process is to be offered what is chosen
        for step, lane in zip(partitioned.ranged.lowered.steps, partitioned.lanes, strict=True):
            if lane:
                found.append((ELSEWHERE, Created((), (), 0, 0)))
                continue
            key = candidates_key(creator, step)
            if key not in chosen:
                chosen[key] = default(candidates(creator, step))
            found.append((chosen[key], creator.create(step, chosen[key], generate=False)))
    return found


def _needed(lanes: Sequence[int], origin: Sequence[int]) -> tuple[int, ...]:
    """For each sub-step how many of the other lane are of steps before its own."""
    needed, done, before, at = list[int](), [0, 0], [0, 0], -1
    for lane, step in zip(lanes, origin, strict=True):
        if step != at:
            before, at = [*done], step
        needed.append(before[1 - lane])
        done[lane] += 1
    return tuple(needed)


_HOST = 0
_NOBODY, _MODEL = -2, -1  # has written: nobody yet, whoever gave the inputs

#: Of each step: the regions to move in before it, and out behind it.
Moves = tuple[tuple[tuple[Region, ...], ...], tuple[tuple[Region, ...], ...]]


@dataclass(frozen=True, slots=True)
class _Touched:
    lane: int
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


def region_at(offset: int, size: int) -> Region:
    """Return the region of bytes that follow each other."""
    return offset, size, 1, size


def is_view(
    step: Step, shapes: Mapping[str, tuple[int, ...]], layouts: Mapping[str, str], offsets: Mapping[str, int], block: int
) -> bool:
    """Tell whether a reshape's output lies where its input does, so that nothing is done for it."""
    if step.kind != "reshape":
        return False
    source, output = step.inputs[0], step.outputs[0]
    plain = all(same_bytes(shapes[t], layouts[t], "nchw", block) for t in (source, output))
    return plain and offsets[source] == offsets[output]


def crossings(partitioned: Partitioned, block: int, untouched: Collection[int] = ()) -> Moves:
    """Find the regions that cross between the two lanes of a partition. Steps that do nothing, such as views, are untouched."""
    lowered = partitioned.ranged.lowered
    touched = []
    for k, (step, lane) in enumerate(zip(lowered.steps, partitioned.lanes, strict=True)):
        if k in untouched or is_view(step, lowered.shapes, partitioned.layouts, partitioned.offsets, block):
            touched.append(_Touched(lane, (), ()))
            continue
        reads = tuple(_read(partitioned, tensor, block) for tensor in step.reads)
        touched.append(_Touched(lane, reads, tuple(_written(partitioned, step, block))))
    inputs, outputs = (tuple(_read(partitioned, t, block) for t in ends) for ends in (lowered.inputs, lowered.outputs))
    state = _State([*inputs, *outputs, *(region for one in touched for region in (*one.reads, *one.writes))])
    moved_in: list[list[Region]] = [[] for _ in touched]
    moved_out: list[list[Region]] = [[] for _ in touched]
    regions: dict[int, tuple[Region, ...]] = {_MODEL: inputs}
    for region in inputs:
        state.write(region, _MODEL, _HOST)
    for k, one in enumerate((*touched, _Touched(_HOST, outputs, ()))):
        for writer, region in state.lacking(one.reads, one.lane, regions):
            (moved_out[writer] if one.lane == _HOST else moved_in[k]).append(region)
        regions[k] = one.writes
        for region in one.writes:
            state.write(region, k, one.lane)
    return tuple(map(tuple, moved_in)), tuple(map(tuple, moved_out))


def _read(partitioned: Partitioned, tensor: str, block: int) -> Region:
    """The whole of a tensor, from its first byte to its last."""
    lowered = partitioned.ranged.lowered
    size = size_bytes(lowered.shapes[tensor], partitioned.layouts[tensor], block, lowered.types.get(tensor, "float32"))
    return region_at(partitioned.offsets[tensor], size)


def _written(partitioned: Partitioned, step: Step, block: int) -> list[Region]:
    """Exactly the bytes that a step writes, since another step may write those beside them at the same time."""
    lowered, output = partitioned.ranged.lowered, step.outputs[0]
    item, at = BYTES_PER_ELEMENT[lowered.types.get(output, "float32")], partitioned.offsets[output]
    if "written" in step.settings:
        return _strided(at, item, *view_of(step, "written", ()))
    if step.kind == "paste_rows":
        shape, layout = lowered.shapes[output], partitioned.layouts[output]
        rows, start = lowered.shapes[step.inputs[0]][2], step.integer("start")
        pitch = size_bytes((1, 1, *shape[2:]), layout, block) if layout != NHWC else size_bytes((1, *shape[1:]), layout, block)
        line = pitch // shape[2]
        return [(at + start * line, rows * line, size_bytes(shape, layout, block) // pitch, pitch)]
    return [_read(partitioned, tensor, block) for tensor in step.outputs]


def _strided(at: int, item: int, sizes: Sequence[int], strides: Sequence[int]) -> list[Region]:
    """Regions of a tensor by its sizes and strides in elements: rows, and one region for each place of the axes before."""
    axes = sorted(((stride, size) for size, stride in zip(sizes, strides, strict=True) if size > 1), reverse=True)
    width = item
    while axes and axes[-1][0] * item == width:
        width *= axes.pop()[1]
    pitch, height = (axes[-1][0] * item, axes[-1][1]) if axes else (width, 1)
    places = [[stride * item * place for place in range(size)] for stride, size in axes[:-1]]
    return [(at + sum(place), width, height, pitch) for place in itertools.product(*places)]


class _State:
    """For each piece of the arena, between neighbouring borders of regions: who wrote it last, and which lanes have it."""

    def __init__(self, regions: Sequence[Region]) -> None:
        borders = [edge for region in set(regions) for first, end in _rows(region) for edge in (first, end)]
        self._borders = np.unique(np.array([0, *borders], np.int64))
        self._writer = np.full(len(self._borders), _NOBODY, np.int64)
        self._there = np.ones((2, len(self._borders)), bool)  # what nobody wrote is zero everywhere

    def write(self, region: Region, writer: int, lane: int) -> None:
        """Note that a region was written."""
        pieces = self._pieces(region)
        self._writer[pieces] = writer
        self._there[lane, pieces], self._there[1 - lane, pieces] = True, False

    def lacking(self, reads: Sequence[Region], lane: int, written: dict[int, tuple[Region, ...]]) -> list[tuple[int, Region]]:
        """Find regions that have to be moved before a lane reads others, and who has written them; they are there from then on.

        What one step has written is moved at once, if all of it still stands and the region that is read holds it.
        """
        found = []
        for read in reads:
            pieces = self._pieces(read)
            pieces = pieces[~self._there[lane, pieces]]
            for writer in np.unique(self._writer[pieces]):
                mine = pieces[self._writer[pieces] == writer]
                for region in written[int(writer)]:
                    whole = self._pieces(region)
                    if len(whole) and np.isin(whole, mine).all():
                        found.append((int(writer), region))
                        mine = mine[~np.isin(mine, whole)]
                found += [(int(writer), region) for region in self._joined(mine)]
            self._there[lane, pieces] = True
        return found

    def _pieces(self, region: Region) -> npt.NDArray[np.int64]:
        bounds = np.searchsorted(self._borders, np.array(_rows(region)))
        return np.concatenate([np.arange(first, end) for first, end in bounds])

    def _joined(self, pieces: npt.NDArray[np.int64]) -> list[Region]:
        """Pieces as regions, those that follow each other as one."""
        if not len(pieces):
            return []
        runs = np.split(pieces, np.flatnonzero(np.diff(pieces) > 1) + 1)
        return [region_at(int(self._borders[run[0]]), int(self._borders[run[-1] + 1] - self._borders[run[0]])) for run in runs]


def _rows(region: Region) -> list[tuple[int, int]]:
    at, width, height, pitch = region
    return [(at + row * pitch, at + row * pitch + width) for row in range(height)]
