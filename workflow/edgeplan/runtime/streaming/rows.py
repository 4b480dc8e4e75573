"""Tables that are gathered from stay in the file: a step reads the rows that its indices name, and no others.

An embedding has a row for each word of a vocabulary, of which an inference needs those of its tokens alone.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from edgeplan.errors import FormatError
from edgeplan.graph import blocks
from edgeplan.graph.shapes import BYTES_PER_ELEMENT
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.constants import BAD_INDEX, SUCCESS
from edgeplan.runtime.creation import ROWS_KERNEL, KernelCall
from edgeplan.runtime.streaming.program import AGAIN, PAGE_BYTES
from edgeplan.runtime.streaming.reader import WeightsFile

_IMAGE_RANK = 4
_INDICES = MappingProxyType({"int32": ctypes.c_int32, "int64": ctypes.c_int64})


class Table(msgspec.Struct, frozen=True):
    """A weight that lies in the file as it is: where, and how many bytes."""

    weight: str
    at: int
    size: int


def with_rows(lowered: Lowered) -> tuple[Lowered, tuple[Table, ...]]:
    """Steps that gather whole rows of a weight read them from the file; the tables lie at its beginning."""
    tables: dict[str, Table] = {}
    steps: list[Step] = []
    at = 0
    for step in lowered.steps:
        if not _gathers_rows(step, lowered):
            steps.append(step)
            continue
        weight = step.weights["operand_0"]
        rows, *rest = lowered.shapes[weight]
        row = BYTES_PER_ELEMENT[lowered.types.get(weight, "float32")] * math.prod(rest)
        if weight not in tables:
            tables[weight] = Table(weight, at, rows * row)
            at += -(-rows * row // PAGE_BYTES) * PAGE_BYTES
        settings = MappingProxyType({"at": tables[weight].at, "rows": rows, "row_bytes": row})
        steps.append(replace(step, kind="rows", weights=MappingProxyType({}), settings=settings))
    return replace(lowered, steps=tuple(steps)), tuple(tables.values())


def _gathers_rows(step: Step, lowered: Lowered) -> bool:
    """Tell whether a step picks slices along the first axis of a weight."""
    if not step.picks_places or [*step.weights] != ["operand_0"]:
        return False
    outer = step.sizes("block")[blocks.AT_DIMS]  # places before the axis that is picked from
    return outer == 1 and len(lowered.shapes[step.outputs[0]]) != _IMAGE_RANK and not step.post_ops


class Rows:
    """Rows that such a step reads, into memory that is there already.

    Args:
        file: of the weights.
        call: its block holds where the table begins in the file, its rows, the bytes of one, and how many are picked.
        size: of the file.
        where: for messages.
    """

    def __init__(self, file: WeightsFile, call: KernelCall, size: int, where: str) -> None:
        self._file, self._index = file, _INDICES.get(call.kernel.removeprefix(ROWS_KERNEL))
        known = self._index is not None and len(call.block) == len(("at", "rows", "row_bytes", "count"))
        if not known or min(call.block, default=-1) < 0 or call.block[0] + call.block[1] * call.block[2] > size:
            raise FormatError("the program does not fit: rows of no table", where=where, next_step=AGAIN)
        self._at, self._rows, self._bytes, self._count = call.block
        pages = -(-self._bytes // PAGE_BYTES) + 1
        self._pages = mmap.mmap(-1, pages * PAGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))

    def read(self, indices: int, target: int) -> int:
        """Read the rows, each once, in the order of the file; return a status.

        Args:
            indices: their address.
            target: the address that the rows go to.
        """
        assert self._index is not None  # noqa: S101  checked when it was made
        picked = (self._index * self._count).from_address(indices)
        places: dict[int, list[int]] = {}
        for place, index in enumerate(picked):
            row = index + self._rows if index < 0 else index
            if not 0 <= row < self._rows:
                return BAD_INDEX
            places.setdefault(row, []).append(place)
        with memoryview(self._pages) as memory:
            for row in sorted(places):
                begin = self._at + row * self._bytes
                first = begin // PAGE_BYTES * PAGE_BYTES
                pages = -(-(begin + self._bytes - first) // PAGE_BYTES)
                self._file.read(first, [memory[: pages * PAGE_BYTES]])
                for place in places[row]:
                    ctypes.memmove(target + place * self._bytes, self._address + begin - first, self._bytes)
        return SUCCESS
