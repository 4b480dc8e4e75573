"""The common CSV of static memory planning: id, lower, upper, size, alignment; and offset."""

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
ALIGNMENT, OFFSET = "alignment", "offset"
_AGAIN = "correct the file; its columns are id,lower,upper,size and optionally alignment, integers but for id"
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,19}\s*", re.ASCII)
#: The least value of each column.
_LEAST = {"lower": -LARGEST, "upper": -LARGEST, "size": 0, ALIGNMENT: 1}


@dataclass(frozen=True)
class BufferTable:
    """A table holds buffers as read from a CSV file.

    Attributes:
        header: its columns, in order.
        rows: its cells, as they are written.
        buffers: what they say.
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
    _check_header(names, path)
    for number, row in body:
        if len(row) != len(names):
            what = "an empty line" if not row else f"{len(row)} cells, the header has {len(names)}"
            raise FormatError(what, where=f"{path}, line {number}", next_step=_AGAIN)
    _check_ids(names, body, path)
    wanted = [name for name in (*COLUMNS[1:], ALIGNMENT) if name in names]
    columns = {name: _integers(name, names.index(name), body, path) for name in wanted}
    for (number, _), low, high in zip(body, columns["lower"], columns["upper"], strict=True):
        if high <= low:
            what = f"the lifetime [{low}, {high}) is empty: upper is not above lower"
            raise FormatError(what, where=f"{path}, line {number}", next_step=_AGAIN)
    found = buffers(columns["lower"], columns["upper"], columns["size"], columns.get(ALIGNMENT))
    return BufferTable(names, tuple(tuple(row) for _, row in body), found)


def _lines(reader: Iterator[list[str]]) -> Iterator[tuple[int, list[str]]]:
    for row in reader:
        yield reader.line_num, row  # type: ignore[attr-defined]  # of the reader of csv, which has no public type


def _check_header(names: Sequence[str], path: Path) -> None:
    where = f"{path}, header"
    if missing := [name for name in COLUMNS if name not in names]:
        raise FormatError(f"no column {', '.join(missing)}", where=where, next_step=_AGAIN)
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise FormatError(f"repeated column {', '.join(repeated)}", where=where, next_step=_AGAIN)


def _check_ids(names: Sequence[str], body: Sequence[tuple[int, list[str]]], path: Path) -> None:
    at = names.index("id")
    first: dict[str, int] = {}
    for number, row in body:
        name = row[at].strip()
        if not name:
            raise FormatError("id is empty", where=f"{path}, line {number}", next_step=_AGAIN)
        if (before := first.setdefault(name, number)) != number:
            what = f"id {name} is repeated, first in line {before}"
            raise FormatError(what, where=f"{path}, line {number}", next_step=_AGAIN)


def _integers(name: str, at: int, body: Sequence[tuple[int, list[str]]], path: Path) -> list[int]:
    least, values = _LEAST[name], []
    for number, row in body:
        text = row[at]
        value = int(text) if _INTEGER.fullmatch(text) else None
        if value is None or value > LARGEST or value < least:
            what = f"{name} is {text!r}" if value is None else f"{name} is {value}"
            wanted = "an integer" if value is None or value > LARGEST else f"at least {least}"
            raise FormatError(f"{what}, not {wanted}", where=f"{path}, line {number}", next_step=_AGAIN)
        values.append(value)
    return values


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
