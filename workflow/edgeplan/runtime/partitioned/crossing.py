"""Crossings: what one processor writes and the other reads is moved, where each has its own copy of the activations.

The copies of an arena have the same addresses within. Before a step of the other processor runs, its queue moves in what the
host has written since; behind a step whose output the host reads, it moves that out. Nothing else is moved, and both processors
work meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeplan.graph.ir import BYTES_PER_ELEMENT
from edgeplan.graph.steps import Step
from edgeplan.runtime.layouts import NHWC, same_bytes, size_bytes
from edgeplan.runtime.partitioned.program import Partitioned
from edgeplan.runtime.processor import Region
from edgeplan.runtime.program import Program

_HOST = 0
_NOBODY, _MODEL = -2, -1  # has written: nobody yet, whoever gave the inputs

#: Of each step: the regions to move in before it, and out behind it.
Moves = tuple[tuple[tuple[Region, ...], ...], tuple[tuple[Region, ...], ...]]


@dataclass(frozen=True, slots=True)
class _Touched:
    lane: int
    reads: tuple[Region, ...]
    writes: tuple[Region, ...]


def dense(offset: int, size: int) -> Region:
    """Return the region of bytes that follow each other."""
    return offset, size, 1, size


def is_view(program: Program | Partitioned, step: Step, block: int) -> bool:
    """Tell whether a reshape's output lies where its input does, so that nothing is done for it."""
    shapes = program.shapes if isinstance(program, Program) else program.ranged.lowered.shapes
    return is_view_at(step, shapes, program.layouts, program.offsets, block)


def is_view_at(
    step: Step, shapes: Mapping[str, tuple[int, ...]], layouts: Mapping[str, str], offsets: Mapping[str, int], block: int
) -> bool:
    """Tell of a step what `is_view` does, before there is a program."""
    if step.kind != "reshape":
        return False
    source, output = step.inputs[0], step.outputs[0]
    plain = all(same_bytes(shapes[t], layouts[t], "nchw", block) for t in (source, output))
    return plain and offsets[source] == offsets[output]


def crossings(partitioned: Partitioned, block: int, untouched: Collection[int] = ()) -> Moves:
    """Find the regions that cross between the two lanes of a partition.

    Args:
        partitioned: the partition.
        block: channels of a block in the layout `blocked16`.
        untouched: numbers of steps that do nothing, such as views.
    """
    lowered = partitioned.ranged.lowered
    touched = []
    for k, (step, lane) in enumerate(zip(lowered.steps, partitioned.lanes, strict=True)):
        if k in untouched or is_view(partitioned, step, block):
            touched.append(_Touched(lane, (), ()))
            continue
        reads = tuple(_read(partitioned, tensor, block) for tensor in step.reads)
        touched.append(_Touched(lane, reads, tuple(_written(partitioned, step, block))))
    inputs, outputs = (tuple(_read(partitioned, t, block) for t in ends) for ends in (lowered.inputs, lowered.outputs))
    return _moves(touched, inputs, outputs)


def _read(partitioned: Partitioned, tensor: str, block: int) -> Region:
    """The whole of a tensor, from its first byte to its last."""
    lowered = partitioned.ranged.lowered
    size = size_bytes(lowered.shapes[tensor], partitioned.layouts[tensor], block, lowered.types.get(tensor, "float32"))
    return dense(partitioned.offsets[tensor], size)


def _written(partitioned: Partitioned, step: Step, block: int) -> list[Region]:
    """Exactly the bytes that a step writes, since another step may write those beside them at the same time."""
    lowered, output = partitioned.ranged.lowered, step.outputs[0]
    item, at = BYTES_PER_ELEMENT[lowered.types.get(output, "float32")], partitioned.offsets[output]
    if "written" in step.settings:
        axes = step.sizes("written")
        half = len(axes) // 2
        return _strided(at, item, axes[:half], axes[half:])
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


def _moves(touched: Sequence[_Touched], inputs: Sequence[Region], outputs: Sequence[Region]) -> Moves:
    state = _State([*inputs, *outputs, *(region for one in touched for region in (*one.reads, *one.writes))])
    moved_in: list[list[Region]] = [[] for _ in touched]
    moved_out: list[list[Region]] = [[] for _ in touched]
    regions: dict[int, tuple[Region, ...]] = {_MODEL: tuple(inputs)}
    for region in inputs:
        state.write(region, _MODEL, _HOST)
    for k, one in enumerate((*touched, _Touched(_HOST, tuple(outputs), ()))):
        for writer, region in state.lacking(one.reads, one.lane, regions):
            (moved_out[writer] if one.lane == _HOST else moved_in[k]).append(region)
        regions[k] = one.writes
        for region in one.writes:
            state.write(region, k, one.lane)
    return tuple(map(tuple, moved_in)), tuple(map(tuple, moved_out))


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
        return [dense(int(self._borders[run[0]]), int(self._borders[run[-1] + 1] - self._borders[run[0]])) for run in runs]


def _rows(region: Region) -> list[tuple[int, int]]:
    at, width, height, pitch = region
    return [(at + row * pitch, at + row * pitch + width) for row in range(height)]
