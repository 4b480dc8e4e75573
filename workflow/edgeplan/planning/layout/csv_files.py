"""Reads and writes the common CSV of static memory planning: id, lower, upper, size; and alignment, hint, gaps and offset.

A hint, an address that another planner begins with, is kept and not used. Gaps, in which a buffer is
not alive, change what fits: a file that has any is refused.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeplan.errors import FormatError
from edgeplan.planning.layout.buffers import LARGEST, Buffers, Ints, buffers
from edgeplan.support.files import write_atomically

COLUMNS = ("id", "lower", "upper", "size")
ALIGNMENT, OFFSET, HINT, GAPS = "alignment", "offset", "hint", "gaps"
_OPTIONAL = (ALIGNMENT, HINT, GAPS, OFFSET)
_AGAIN = f"correct the file; its columns are {','.join(COLUMNS)} and optionally {', '.join(_OPTIONAL)}, integers but for id"
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,19}\s*", re.ASCII)
#: The least value of each column.
_LEAST = {"lower": -LARGEST, "upper": -LARGEST, "size": 0, ALIGNMENT: 1, HINT: -1, OFFSET: 0}


@dataclass(frozen=True)
class BufferTable:
    """A table holds buffers as read from a CSV file.

    Attributes:
        header: its columns, in order.
        rows: its cells, as they are written.
        buffers: buffers that the rows describe.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    buffers: Buffers


def read(path: Path) -> BufferTable:
    """Read buffers from a CSV file.

    Raises:
        FormatError: the file cannot be read or a row does not fit; it names the line.
    """
    try:
        with path.open("rb") as file:
            wide = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        with path.open(encoding="utf-16" if wide else "utf-8-sig", newline="") as file:
            lines = list(_lines(csv.reader(file, strict=True)))
    except OSError as error:
        raise FormatError(f"cannot read the buffers: {error.strerror}", where=str(path), next_step="check the path") from error
    except UnicodeError as error:
        raise FormatError("the buffers are not text in UTF-8", where=str(path), next_step=_AGAIN) from error
    except csv.Error as error:
        raise FormatError(f"the buffers are no CSV: {error}", where=str(path), next_step=_AGAIN) from error
    if not lines:
        raise FormatError("the file is empty", where=str(path), next_step=_AGAIN)
    (_, header), *body = lines
    names = tuple(name.strip() for name in header)
    if wrong := _wrong_header(names):
        raise FormatError(wrong, where=f"{path}, header", next_step=_AGAIN)
    first: dict[str, int] = {}
    for number, row in body:
        if wrong := _wrong_row(names, row, number, first):
            raise FormatError(wrong, where=f"{path}, line {number}", next_step=_AGAIN)
    columns = {name: [int(row[names.index(name)]) for _, row in body] for name in _LEAST if name in names}
    found = buffers(columns["lower"], columns["upper"], columns["size"], columns.get(ALIGNMENT))
    return BufferTable(names, tuple(tuple(row) for _, row in body), found)


def _lines(reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    for row in reader:
        yield reader.line_num, row  # type: ignore[attr-defined]  # of the reader of csv, which has no public type


def _wrong_header(names: Sequence[str]) -> str:
    """Return what is wrong with it, or ""."""
    if missing := [name for name in COLUMNS if name not in names]:
        return f"no column {', '.join(missing)}"
    if unknown := [name for name in names if name not in COLUMNS + _OPTIONAL]:
        return f"unknown column {', '.join(map(repr, unknown))}"
    repeated = sorted({name for name in names if names.count(name) > 1})
    return f"repeated column {', '.join(repeated)}" if repeated else ""


def _wrong_row(names: Sequence[str], row: Sequence[str], number: int, first: dict[str, int]) -> str:
    """Return what is wrong with a row, or ""; `first` gets the line of its id."""
    if len(row) != len(names):
        return f"{len(row)} cells, the header has {len(names)}" if row else "an empty line"
    cells = dict(zip(names, row, strict=True))
    if not (name := cells["id"].strip()):
        return "id is empty"
    if (before := first.setdefault(name, number)) != number:
        return f"id {name} is repeated, first in line {before}"
    for name, least in _LEAST.items():
        if wrong := _wrong_number(name, cells.get(name, "1"), least):
            return wrong
    low, high = int(cells["lower"]), int(cells["upper"])
    if low >= high:
        return f"the lifetime [{low}, {high}) is empty: upper is not above lower"
    gaps = cells.get(GAPS, "").strip()
    return f"a buffer with gaps {gaps!r} in its lifetime: leave them out, so that it keeps its memory in them" if gaps else ""


def _wrong_number(name: str, text: str, least: int) -> str:
    """Return what is wrong with a cell that has to be an integer, or ""."""
    if not _INTEGER.fullmatch(text):
        return f"{name} is {text!r}, not an integer"
    value = int(text)
    if least <= value <= LARGEST:
        return ""
    return f"{name} is {value}, not {'an integer' if value > LARGEST else f'at least {least}'}"


def write(table: BufferTable, offsets: Ints, path: Path) -> None:
    """Write the rows with their offsets, atomically; offsets that are there already are replaced.

    Raises:
        StoreError: it cannot be written.
    """
    names = list(table.header)
    at = names.index(OFFSET) if OFFSET in names else len(names)
    names[at : at + 1] = [OFFSET]

    def into(temporary: Path) -> None:
        with temporary.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(names)
            for row, offset in zip(table.rows, offsets.tolist(), strict=True):
                writer.writerow([*row[:at], offset, *row[at + 1 :]])

    write_atomically(path, into)
