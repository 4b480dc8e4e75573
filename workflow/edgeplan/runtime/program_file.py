"""The file of a program, program.bin, as native/src/program/format.h says: written, and what stands at its head read.

Reading the head loads neither numpy nor the native library. Whether all behind it is whole the library finds when it opens the
file; rows of single sections (`rows_of`) are for planning and tests.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from enum import IntEnum
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from edgeplan.errors import FormatError
from edgeplan.graph.shapes import BYTES_PER_ELEMENT, Shape

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

PROGRAM_BIN = "program.bin"
MAGIC, VERSION, ORDER = int.from_bytes(b"EDGEPLAN", "little"), 1, 0x01020304
ALIGNMENT, DIMS, NOTHING = 64, 12, -1
#: What a program is of.
COLD_START_KIND, MEMORY_KIND = range(2)
#: Element types by their numbers: of inputs and outputs, and of weights in files.
DTYPES = ("float32", "int32", "int64", "int8", "uint8", "bool")
STORED = (*DTYPES, "float16")
UNIT = 64  # of `Section.PLACES`
_MOST_SECTIONS = 256
_AGAIN = ("plan the model again: edgeplan plan cold-start", "plan the model again: edgeplan plan memory")


class Section(IntEnum):
    """Numbers of sections, by their contents."""

    FACTS = 1
    TEXT = 2
    INPUTS = 3
    OUTPUTS = 4
    FUNCTIONS = 10
    KERNELS = 11
    KINDS = 12
    FUNCTION_OF = 13
    MADE = 14
    ROLES = 15
    VALUES = 16
    FLOATS = 17
    STARTS = 18
    CONSTANTS = 19
    RECORDS = 20
    RECORD_STARTS = 21
    STEP_NAMES = 22
    LATER = 30
    TODO = 31
    BOUNDS = 32
    CHECKSUMS = 33
    FILES = 34
    RAW = 35
    RECIPES = 36
    STEPS = 40
    OPERANDS = 41
    BUFFERS = 42
    SCHEDULES = 43
    PLACES = 44
    PAGES_MAKING = 45
    PAGES_RUNNING = 46
    READERS = 47


class Operation(IntEnum):
    """Operations of recipes on their stack of arrays of float32."""

    LOAD = 0
    BYTES = 1
    FILL = 2
    ADD = 3
    SUBTRACT = 4
    MULTIPLY = 5
    DIVIDE = 6
    ADD_NUMBER = 7
    MULTIPLY_NUMBER = 8
    ROOT = 9
    NEGATE = 10


class Row:
    """The fields of a row: names, each of a word; `name=d` is of another type of `struct`, `name:5` stands for five."""

    def __init__(self, told: str) -> None:
        self.fields: list[tuple[str, str, int]] = []
        for field in told.split():
            told_name, _, kind = field.partition("=")
            name, _, count = told_name.partition(":")
            self.fields.append((name, kind or "q", int(count or 1)))
        self.struct = struct.Struct("<" + "".join(f"{count}{kind}" for _, kind, count in self.fields))

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The same row as numpy has it; of a single field without a name its type."""
        import numpy as np  # noqa: PLC0415  heads are read without it

        if not self.fields[0][0]:
            return np.dtype("<" + self.fields[0][1])
        return np.dtype([(name, "<" + kind, (count,) if count > 1 else ()) for name, kind, count in self.fields])

    def values(self, content: bytes, number: int = 0) -> dict[str, Any]:
        """The fields of a row of packed ones, by name; of several values a tuple."""
        numbers, found, at = self.struct.unpack_from(content, number * self.struct.size), {}, 0
        for name, _, count in self.fields:
            found[name] = numbers[at] if count == 1 else numbers[at : at + count]
            at += count
        return found


HEADER = Row("magic=Q version=I byte_order=I bytes=Q checksum=Q kind=I sections=I reserved:3=Q")
SECTION = Row("id=I row_bytes=I offset=Q count=Q")
FACTS = Row(
    "kind threads steps model machine version commit isa layout library descriptors attributes primitives memories "
    "scratch arena_bytes weights_bytes equal_cores widen_from continuous cache_bytes stamp:5 little_ratio=d "
    "isolated halves checksum=Q bytes_per_ms=d others=d"
)
#: Facts that are texts.
_TEXTS = ("model", "machine", "version", "commit", "isa", "layout", "library")
_WORD, _BYTE, _BORDER = Row("=q"), Row("=B"), Row("name dtype rank dims:12 buffer offset bytes below")
ROWS: Final[Mapping[Section, Row]] = {
    **dict.fromkeys(Section, _WORD),
    Section.FACTS: FACTS,
    Section.TEXT: _BYTE,
    Section.INPUTS: _BORDER,
    Section.OUTPUTS: _BORDER,
    Section.ROLES: Row("=b"),
    Section.FLOATS: Row("=f"),
    Section.CONSTANTS: _BYTE,
    Section.CHECKSUMS: Row("=Q"),
    Section.FILES: Row("path bytes stamp:5 checksum=Q"),
    Section.RAW: Row("record slot source target offset bytes conversion first end"),
    Section.RECIPES: Row("operation file offset count stride dtype number=d"),
    Section.STEPS: Row("kernel first_operand weights_at weight_bytes stored_bytes"),
    Section.OPERANDS: Row("buffer offset"),
    Section.BUFFERS: Row("bytes lower upper"),
    Section.SCHEDULES: Row("budget_bytes arena_bytes predicted_ms=d lower_bound_ms=d"),
    Section.PLACES: Row("=i"),
}


class Border(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An input or output of a program: row-major.

    It lies at an offset in the buffer of a number; `NOTHING`: the arena. Integers of an input stay below `below`, 2 where no
    axis is known that they pick places of. `dtype` is one of `DTYPES`.
    """

    name: str
    shape: Shape
    offset: int
    dtype: str = "float32"
    below: int = 2
    buffer: int = NOTHING

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return BYTES_PER_ELEMENT[self.dtype] * math.prod(self.shape)


class ProgramHead(NamedTuple):
    """Facts that a program tells of itself; others are for the library, and for tests (`rows_of`).

    `threads` execute `step_count` steps. Of a cold start: whether the cores are equal, and whether kernels of later runs are
    made between runs, as in the plan; bytes of weights.cache, 0 without one; how many lanes prepare besides the one that
    executes.
    """

    model: str
    threads: int
    step_count: int
    layout: str
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    equal_cores: bool
    continuous: bool
    cache_bytes: int
    queues: int


def border_row(border: Border) -> tuple[Any, ...]:
    """A row of `Section.INPUTS` or `OUTPUTS`, for `packed`."""
    shape = (*border.shape, *[0] * (DIMS - len(border.shape)))
    dtype = DTYPES.index(border.dtype)
    return border.name, dtype, len(border.shape), shape, border.buffer, border.offset, border.size, border.below


def checksum(content: bytes | npt.NDArray[Any]) -> int:
    """The digest that native code holds bytes to. No protection against somebody who means to deceive."""
    import numpy as np  # noqa: PLC0415  heads are read without it

    from edgeplan import native  # noqa: PLC0415  and without the library

    given = np.ascontiguousarray(np.frombuffer(content, np.uint8) if isinstance(content, bytes) else content)
    digest = native.function("checksum", ctypes.c_uint64, ctypes.c_void_p, ctypes.c_int64)
    return int(digest(given.ctypes.data, given.nbytes))


class _Texts:
    """Texts that end with 0, each once; that at 0 is empty."""

    def __init__(self) -> None:
        self.content = bytearray(b"\0")
        self._at = {"": 0}

    def at(self, value: Any) -> Any:
        """Where a text lies; other values as they are."""
        if not isinstance(value, str):
            return value
        if value not in self._at:
            self._at[value] = len(self.content)
            self.content += value.encode() + b"\0"
        return self._at[value]


def packed(kind: int, facts: Mapping[str, Any], sections: Mapping[Section, Any]) -> bytes:
    """Put a program together as bytes.

    Args:
        kind: `COLD_START_KIND` or `MEMORY_KIND`.
        facts: by the names of `FACTS`; 0, or "", where one is not named.
        sections: rows of each section: bytes, an array, or values or tuples of values by the fields of `ROWS`. Texts among
            them are put into `Section.TEXT`.
    """
    import numpy as np  # noqa: PLC0415  heads are read without it

    texts = _Texts()
    arrays: dict[Section, npt.NDArray[Any]] = {}
    given = {"kind": kind, **{name: "" if name in _TEXTS else 0 for name, _, _ in FACTS.fields[1:]}, **facts}
    row = tuple((texts.at(given.pop(name)) or ((0,) * count if count > 1 else 0)) for name, _, count in FACTS.fields)
    if given:
        raise ValueError(f"there are no such facts: {', '.join(given)}")
    arrays[Section.FACTS] = np.array([row], FACTS.dtype)
    for section, rows in sections.items():
        dtype = ROWS[section].dtype
        if isinstance(rows, bytes | bytearray):
            arrays[section] = np.frombuffer(bytes(rows), dtype)
        elif isinstance(rows, np.ndarray):
            arrays[section] = np.ascontiguousarray(rows, dtype).reshape(-1)
        else:
            values = [tuple(map(texts.at, one)) if isinstance(one, tuple) else texts.at(one) for one in rows]
            arrays[section] = np.array(values, dtype)
    arrays[Section.TEXT] = np.frombuffer(bytes(texts.content), np.uint8)
    return _joined(kind, arrays)


def _joined(kind: int, arrays: Mapping[Section, npt.NDArray[Any]]) -> bytes:
    at = _aligned(HEADER.struct.size + len(arrays) * SECTION.struct.size)
    table, body = bytearray(), bytearray()
    for section, rows in sorted(arrays.items()):
        body += bytes(_aligned(len(body)) - len(body))
        table += SECTION.struct.pack(section, rows.dtype.itemsize, at + len(body), len(rows))
        body += rows.tobytes()
    rest = bytes(table).ljust(at - HEADER.struct.size, b"\0") + bytes(body)
    size = HEADER.struct.size + len(rest)
    return HEADER.struct.pack(MAGIC, VERSION, ORDER, size, checksum(rest), kind, len(arrays), 0, 0, 0) + rest


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class _File:
    """A program file that is read part by part."""

    def __init__(self, path: Path) -> None:
        self._path, self._again = path, _AGAIN[COLD_START_KIND]
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self._again = "plan the model again: edgeplan plan cold-start or plan memory"
            raise self._error(f"cannot read the plan: {error.strerror}") from error

    def close(self) -> None:
        """Close the file of the program."""
        os.close(self._descriptor)

    def _error(self, what: str) -> FormatError:
        return FormatError(what, where=str(self._path), next_step=self._again)

    def damaged(self, why: str) -> FormatError:
        """An error of what does not fit."""
        return self._error(f"the plan is damaged: {why}")

    def table(self) -> dict[int, dict[str, int]]:
        """The sections by their numbers, checked to lie in the file."""
        size = os.fstat(self._descriptor).st_size
        head = HEADER.values(self._bytes(0, HEADER.struct.size, "it is too short"))
        if head["magic"] != MAGIC:
            raise self.damaged("it is no program")
        if (head["version"], head["byte_order"]) != (VERSION, ORDER):
            raise self._error("the plan has another format: another version of edgeplan made it")
        kind, count = head["kind"], head["sections"]
        if kind >= len(_AGAIN) or head["bytes"] != size or count > _MOST_SECTIONS:
            raise self.damaged("it has another size")
        self._again = _AGAIN[kind]
        table = self._bytes(HEADER.struct.size, count * SECTION.struct.size, "it has another size")
        begin = HEADER.struct.size + len(table)
        found = [SECTION.values(table, k) for k in range(count)]
        for one in found:
            end = one["offset"] + one["count"] * one["row_bytes"]
            if one["offset"] % ALIGNMENT or one["offset"] < begin or not one["row_bytes"] or end > size:
                raise self.damaged("a section lies outside of it")
        return {one["id"]: one for one in reversed(found)}

    def rows(self, sections: Mapping[int, Mapping[str, int]], section: Section) -> tuple[bytes, int]:
        """The bytes of a section, and how many rows these are; none where the file has none."""
        if section not in sections:
            return b"", 0
        found = sections[section]
        if found["row_bytes"] != ROWS[section].struct.size:
            raise self.damaged("rows have another size")
        return self._bytes(found["offset"], found["count"] * found["row_bytes"], "it has another size"), found["count"]

    def _bytes(self, at: int, size: int, problem: str) -> bytes:
        try:
            content = os.pread(self._descriptor, size, at)
        except OSError as error:
            raise self._error(f"cannot read the plan: {error.strerror}") from error
        if len(content) < size:
            raise self.damaged(problem)
        return content


def read_head(path: Path) -> ProgramHead:
    """Read what a program.bin says of itself; FormatError where it cannot be read, is damaged, or of another version."""
    with closing(_File(path)) as file:
        sections = file.table()
        (facts, one), (text, _) = (file.rows(sections, section) for section in (Section.FACTS, Section.TEXT))
        if one != 1 or text[:1] + text[-1:] != b"\0\0":
            raise file.damaged("it says nothing of itself")

        def told(offset: int) -> str:
            if not 0 <= offset < len(text):
                raise file.damaged("a text lies outside of it")
            return text[offset : text.index(b"\0", offset)].decode(errors="replace")

        def borders(section: Section) -> Iterable[Border]:
            rows, count = file.rows(sections, section)
            for row in (_BORDER.values(rows, k) for k in range(count)):
                name = told(row["name"])
                if not (0 <= row["rank"] <= DIMS and 0 <= row["dtype"] < len(DTYPES)):
                    raise file.damaged("an input or output has no size")
                shape = row["dims"][: row["rank"]]
                border = Border(name, shape, row["offset"], DTYPES[row["dtype"]], row["below"], row["buffer"])
                if min(shape, default=0) < 0 or border.size != row["bytes"]:
                    raise file.damaged("an input or output has no size")
                yield border

        f = FACTS.values(facts)
        texts = {name: told(f[name]) for name in _TEXTS}
        return ProgramHead(
            model=texts["model"],
            threads=f["threads"],
            step_count=f["steps"],
            layout=texts["layout"],
            inputs=tuple(borders(Section.INPUTS)),
            outputs=tuple(borders(Section.OUTPUTS)),
            equal_cores=bool(f["equal_cores"]),
            continuous=bool(f["continuous"]),
            cache_bytes=f["cache_bytes"],
            queues=max(0, file.rows(sections, Section.BOUNDS)[1] // 2 - 1),
        )


def rows_of(path: Path, *wanted: Section) -> Sequence[npt.NDArray[Any]]:
    """The rows of some sections of a program, as arrays; none where it has none. Errors are those of `read_head`."""
    import numpy as np  # noqa: PLC0415  heads are read without it

    with closing(_File(path)) as file:
        sections = file.table()
        return [np.frombuffer(file.rows(sections, section)[0], ROWS[section].dtype) for section in wanted]


def text_of(texts: npt.NDArray[np.uint8], offset: int) -> str:
    """Read a text of `Section.TEXT` by its offset."""
    content = texts.tobytes()
    return content[offset : content.index(b"\0", offset)].decode()
