"""The file of a program: as the native header says it, and refused where it is damaged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeplan.errors import FormatError
from edgeplan.runtime import program_file
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

_HEADER = re.sub(r"//.*", "", (Path(__file__).parents[2] / "native/src/program/format.h").read_text())
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
    assert (head.kind, head.model, head.machine, head.version, head.isa, head.threads) == (MEMORY_KIND, text, text, "", "x", 3)
    assert (head.stamp, head.little_ratio, head.queues) == ((1, 2, 3, 4, 5), 1.5, 0)
    assert list(map(tuple, head.schedules)) == schedules
    wanted = (Section.TEXT, Section.STEP_NAMES, Section.CONSTANTS, Section.VALUES, Section.CHECKSUMS, Section.RAW)
    texts, names, constants, values, checksums, nothing = rows_of(path, *wanted)
    assert [text_of(texts, at) for at in names] == [text, "", "y"]
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


def test_heads_are_read_with_little(program: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from edgeplan.runtime.program_file import read_head; "
        "read_head(Path(sys.argv[1])); print(*{'numpy', 'ctypes'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code, str(program)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() in ("", "ctypes")


def test_the_checksum_is_of_all_behind_the_head(program: Path) -> None:
    content = program.read_bytes()
    assert HEADER.values(content)["checksum"] == checksum(content[HEADER.struct.size :])
