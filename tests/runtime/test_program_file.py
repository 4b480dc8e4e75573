"""The file of a program: as the native header says it, and refused where it is damaged."""

from __future__ import annotations

import ctypes
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeplan.errors import FormatError
from edgeplan.runtime import loops, program_file
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.loops import Loop, function_address, zero_words
from edgeplan.runtime.program_file import (
    FACTS,
    HEADER,
    MEMORY_KIND,
    PROGRAM_BIN,
    ROWS,
    SECTION,
    Border,
    Operation,
    Row,
    Section,
    border_row,
    checksum,
    packed,
    read_head,
    rows_of,
    text_of,
)

LANE = "fast"  # see tests/conftest.py


def _header(path: str) -> str:
    return re.sub(r"//.*", "", (Path(__file__).parents[2] / "native/src" / path).read_text())


_HEADER, _LOOPS = _header("program/format.h"), _header("loops/loops.h")
_KINDS = {
    "Word": "q", "double": "d", "std::uint64_t": "Q", "std::uint32_t": "I", "std::int32_t": "i", "float": "f", "int8": "b",
    "uint64": "Q", "int32": "i", "bytes": "B",
}  # fmt: skip
_SIZES = {"DIMS": 12}


def _fields(name: str) -> list[tuple[str, str, int]]:
    """The fields of a structure: name, type and number."""
    (body,) = re.findall(rf"struct {name} {{(.*?)}};", _HEADER, re.DOTALL)
    found = []
    for kind, declared in re.findall(r"(\S+)\s+([^;]*);", body):
        for one in declared.split(","):
            field, count = re.fullmatch(r"\s*(\w+)(?:\[(\w+)\])?\s*", one).groups(default="1")
            found.append((field, _KINDS.get(kind, kind), int(_SIZES.get(count, count))))
    return found


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("Section", SECTION),
        ("Facts", FACTS),
        ("Border", ROWS[Section.INPUTS]),
        ("File", ROWS[Section.FILES]),
        ("Raw", ROWS[Section.RAW]),
        ("Recipe", ROWS[Section.RECIPES]),
        ("Step", ROWS[Section.STEPS]),
        ("Operand", ROWS[Section.OPERANDS]),
        ("Buffer", ROWS[Section.BUFFERS]),
        ("Schedule", ROWS[Section.SCHEDULES]),
    ],
)
def test_rows_are_those_of_the_native_header(name: str, row: Row) -> None:
    assert row.fields == _fields(name)
    assert row.struct.size == row.dtype.itemsize
    assert row.dtype.names == tuple(field for field, _, _ in row.fields)


def test_the_head_is_that_of_the_native_header() -> None:
    assert HEADER.fields == [("magic", "Q", 1), *_fields("Header")[1:]]
    assert HEADER.struct.size == 64
    assert program_file.MAGIC.to_bytes(8, "little") == re.findall(r'MAGIC\[9\] = "(\w+)"', _HEADER)[0].encode()
    numbers = dict(re.findall(r"(\w+) = (-?\w+)", ",".join(re.findall(r"constexpr [\w:]+ (.*?);", _HEADER))))
    for name in ("VERSION", "ORDER", "ALIGNMENT", "DIMS", "NOTHING", "UNIT"):
        assert getattr(program_file, name) == int(numbers[name], 0)
    for name in ("DTYPES", "STORED"):
        (listed,) = re.findall(rf"{name}\[\] = {{(.*?)}}", _HEADER, re.DOTALL)
        assert getattr(program_file, name) == tuple(re.findall(r'"(\w+)"', listed))


def test_sections_and_operations_are_those_of_the_native_header() -> None:
    (listed,) = re.findall(r"enum Id : [\w:]+ {(.*?)}", _HEADER, re.DOTALL)
    assert {name: int(number) for name, number in re.findall(r"(\w+) = (\d+)", listed)} == Section.__members__
    (listed,) = re.findall(r"enum Operation : [\w:]+ {(.*?)}", _HEADER, re.DOTALL)
    assert re.findall(r"\w+", listed) == [operation.name for operation in Operation]
    assert re.findall(r"enum Kind : [\w:]+ { (\w+), (\w+) }", _HEADER) == [("COLD_START", "MEMORY")]


_TEXT = st.text("abä/ ", max_size=5)
_BORDERS = st.lists(
    st.builds(
        Border,
        name=_TEXT,
        shape=st.lists(st.integers(0, 9), max_size=12).map(tuple),
        offset=st.integers(0, 99),
        dtype=st.sampled_from(program_file.DTYPES),
        below=st.integers(2, 9),
        buffer=st.integers(-1, 9),
    ),
    max_size=3,
)


@given(_BORDERS, _BORDERS, _TEXT, st.lists(st.tuples(*[st.integers(0, 9)] * 2, *[st.floats(0, 9)] * 2), max_size=3))
def test_a_program_says_what_was_packed(
    tmp_path_factory: pytest.TempPathFactory, inputs: list[Border], outputs: list[Border], text: str, schedules: list[Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / PROGRAM_BIN
    facts = {"model": text, "machine": text, "isa": "x", "threads": 3, "stamp": (1, 2, 3, 4, 5), "little_ratio": 1.5}
    sections = {
        Section.INPUTS: map(border_row, inputs),
        Section.OUTPUTS: map(border_row, outputs),
        Section.SCHEDULES: schedules,
        Section.STEP_NAMES: [text, "", "y"],
        Section.CONSTANTS: b"abc",
        Section.VALUES: np.arange(6).reshape(2, 3),
        Section.CHECKSUMS: [2**64 - 1],
    }
    path.write_bytes(packed(MEMORY_KIND, facts, sections))
    head = read_head(path)
    assert (list(head.inputs), list(head.outputs)) == (inputs, outputs)
    assert [border.size for border in head.inputs] == [
        np.dtype(border.dtype).itemsize * int(np.prod(border.shape, dtype=int)) for border in inputs
    ]
    assert (head.model, head.layout, head.threads, head.queues) == (text, "", 3, 0)
    (told,), rows = rows_of(path, Section.FACTS, Section.SCHEDULES)
    assert (told["kind"], told["stamp"].tolist(), told["little_ratio"]) == (MEMORY_KIND, [1, 2, 3, 4, 5], 1.5)
    assert rows.tolist() == schedules
    wanted = (Section.TEXT, Section.STEP_NAMES, Section.CONSTANTS, Section.VALUES, Section.CHECKSUMS, Section.RAW)
    texts, names, constants, values, checksums, nothing = rows_of(path, *wanted)
    assert [text_of(texts, at) for at in names] == [text, "", "y"]
    assert [text_of(texts, told[name]) for name in ("machine", "version", "isa")] == [text, "", "x"]
    assert (bytes(constants), values.tolist(), checksums.tolist(), len(nothing)) == (b"abc", list(range(6)), [2**64 - 1], 0)


def test_an_unknown_fact_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="no such facts: treads"):
        packed(MEMORY_KIND, {"treads": 1}, {})


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / PROGRAM_BIN
    rows = [border_row(Border("x", (2, 3), 0))]
    path.write_bytes(packed(MEMORY_KIND, {"model": "net"}, {Section.INPUTS: rows, Section.OUTPUTS: rows}))
    return path


def test_damage_of_a_head_is_told(program: Path) -> None:
    """Each byte of what is read: whatever it becomes, the head says the same, or something else of the right form, or no."""
    whole = program.read_bytes()
    for cut in (0, 10, 63, 64, 100, len(whole) - 1):
        program.write_bytes(whole[:cut])
        with pytest.raises(FormatError, match=r"the plan is damaged: it (is too short|has another size)"):
            read_head(program)
    refused: list[FormatError] = []
    for at in range(len(whole)):
        program.write_bytes(whole[:at] + bytes([whole[at] ^ 129]) + whole[at + 1 :])
        try:
            read_head(program)
        except FormatError as error:
            refused.append(error)
    assert len(refused) > 200
    for error in refused:
        assert error.what.startswith(("the plan is damaged: ", "the plan has another format"))
        assert (error.where, error.next_step[:36]) == (str(program), "plan the model again: edgeplan plan ")


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot read the plan: No such file") as caught:
        read_head(tmp_path / PROGRAM_BIN)
    assert caught.value.next_step == "plan the model again: edgeplan plan cold-start or plan memory"


# The checksum tells apart what differs in any way that storage brings about


def _of(words: list[int]) -> int:
    return checksum(np.array(words, np.uint64).view(np.uint8))


def test_a_checksum_is_what_plan_folders_hold() -> None:
    assert [checksum(bytes(range(count))) for count in (0, 7, 99)] == [
        5379689060631223425,
        3734277014252829302,
        12967200922091679202,
    ]
    signs = [1 ^ (i in (0, 4)) << 63 for i in range(16)]  # the highest bit moves nowhere in a multiplication
    assert _of([1] * 16) != _of(signs)


@given(st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40), st.data())
def test_flipped_exchanged_and_missing_words_show(words: list[int], data: st.DataObject) -> None:
    a, b = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
    flipped, exchanged = list(words), list(words)
    flipped[a] ^= 1 << data.draw(st.integers(0, 63)) | 1 << data.draw(st.integers(0, 63))  # one bit, or two
    exchanged[a], exchanged[b] = exchanged[b], exchanged[a]
    for other in (flipped, exchanged, [*words, 0], [0, *words]):
        assert (_of(other) == _of(words)) == (other == words)


# What the package and the native loops agree on

#: Structures whose fields are rows or columns: the prefix that these have in Python, and how many there are.
_ROWS = {
    "Places": ("", loops.PLACES),
    "Own": ("OWN_", loops.OWN_WORDS),
    "Head": ("HEAD_", loops.HEAD),
    "Call": ("", loops.CALL_WORDS),
    "Item": ("", loops.ITEM_WORDS),
}


def test_kinds_codes_and_sizes_are_the_same() -> None:
    found = dict[str, int]()
    for listed in re.findall(r"enum \w+ : [\w:]+ {(.*?)}", _LOOPS):
        value = -1
        for name, number in re.findall(r"(\w+)(?: = (-?\d+))?", listed):
            value = int(number) if number else value + 1
            found[name] = value
    assert len(found) == 21
    (listed,) = re.findall(r"constexpr Word (.*?);", _LOOPS)
    sizes = {name: int(value) for name, value in re.findall(r"(\w+) = (\d+)", listed)}
    assert {*sizes} == {"INTEGERS", "FLOATS", "BLOCK", "LANES"}
    found |= {name: sizes[name] for name in ("INTEGERS", "FLOATS")}  # Python neither widens halves nor makes checksums
    assert found == {name: getattr(loops, name) for name in found}


@pytest.mark.parametrize("structure", _ROWS)
def test_rows_and_columns_are_the_same(structure: str) -> None:
    (body,) = re.findall(rf"struct {structure} {{(.*?)}};", _LOOPS, re.DOTALL)
    declared = (line for line in body.split(";") if "(" not in line)
    names = [name for line in declared for name in re.findall(r"(\w+)(?=,|$)", line.strip())]
    prefix, count = _ROWS[structure]
    assert [getattr(loops, f"{prefix}{name}".upper()) for name in names] == list(range(count))


def test_a_team_stays_awake_until_its_next_step_and_not_beyond() -> None:
    """While the other lane takes its time the host's threads are called again and again; at the end they may sleep."""
    library, called = ctypes.CDLL(None), list[int]()
    together = ctypes.CFUNCTYPE(ctypes.c_long, *(ctypes.c_long,) * 4)(lambda *_: called.append(other[0]) or 0)
    counters, items = zero_words(2), zero_words(loops.ITEM_WORDS)
    own, other = counters, (ctypes.c_long * 1).from_buffer(counters, loops.WORD)
    step = (ctypes.c_long * loops.CALL_WORDS)(function_address(library.labs), 0, 0, ctypes.addressof(counters))
    items[loops.FIRST], items[loops.END] = ctypes.addressof(step), ctypes.addressof(step) + ctypes.sizeof(step)
    loop = Loop(Dnnl().info.path, 0, items)
    loop.share(ctypes.addressof(own), ctypes.addressof(other), [1], function_address(together))
    for seconds, value in ((0.05, 1), (0.1, 2)):
        threading.Timer(seconds, other.__setitem__, (0, value)).start()
    assert loop.run(0, 1, 2, 5 * 10**9) == loops.DONE
    assert len(called) > 1
    assert called.count(1) <= 1, "the last wait is no step's"
