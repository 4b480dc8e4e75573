"""`edgeplan plan layout`: what it reads and writes, and what it says of files that do not fit."""

import csv
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from edgeplan.cli import app
from edgeplan.errors import EdgeplanError, FormatError, InfeasibleError, UndecidedError
from edgeplan.planning.layout import csv_files
from edgeplan.planning.layout.buffers import Verdict, buffers, max_live
from edgeplan.planning.layout.solve import solve
from layout_checks import overlapping

_GOOD = "id,lower,upper,size,note\na,0,4,6,first\nb,4,9,3,\nc,2,7,5,\nd,7,12,8,\ne,0,12,2,last\n"


def _plan(path: Path, *options: str) -> Path:
    output = path.with_name("out.csv")
    result = CliRunner().invoke(app, ["plan", "layout", str(path), "-o", str(output), *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return output


def _written(path: Path, text: str | bytes) -> Path:
    path = path / "buffers.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("options", [[], ["--capacity", "13"], ["--capacity", "1000"]])
def test_rows_keep_their_columns_and_gain_offsets(tmp_path: Path, options: list[str]) -> None:
    output = _plan(_written(tmp_path, _GOOD), *options)
    rows = _rows(output)
    assert [(row["id"], row["note"]) for row in rows] == [("a", "first"), ("b", ""), ("c", ""), ("d", ""), ("e", "last")]
    table = csv_files.read(output)
    assert overlapping(table.buffers, np.array([int(row["offset"]) for row in rows])) is None
    assert max(int(row["offset"]) + int(row["size"]) for row in rows) <= (int(options[1]) if options else 13)


def test_what_was_written_can_be_laid_out_again(tmp_path: Path) -> None:
    once = _plan(_written(tmp_path, _GOOD)).read_text()
    assert _plan(_written(tmp_path, once)).read_text() == once


def test_columns_in_any_order_and_alignment(tmp_path: Path) -> None:
    text = '\ufeffsize,id,alignment,upper,lower\r\n3,"a,1",1,2,0\r\n5,b,4,2,0\r\n'
    rows = _rows(_plan(_written(tmp_path, text)))
    assert rows[1]["offset"] in ("0", "4")
    assert int(rows[1]["offset"]) % 4 == 0
    assert {row["id"] for row in rows} == {"a,1", "b"}


def test_no_buffers_need_no_memory(tmp_path: Path) -> None:
    assert _rows(_plan(_written(tmp_path, "id,lower,upper,size\n"), "--capacity", "0")) == []


def test_too_small_a_capacity_is_proven_and_nothing_is_written(tmp_path: Path) -> None:
    path = _written(tmp_path, _GOOD)
    with pytest.raises(InfeasibleError, match="proven infeasible: capacity 12, the least is 13") as error:
        _plan(path, "--capacity", "12")
    assert "edgeplan plan layout" in error.value.next_step
    assert not path.with_name("out.csv").exists()


def test_not_found_in_the_time_is_no_proof(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lower = rng.integers(0, 1000, 400)
    upper = lower + rng.integers(1, 400, 400)
    size = rng.integers(1, 10**6, 400)
    rows = "\n".join(f"{k},{a},{b},{s}" for k, (a, b, s) in enumerate(zip(lower, upper, size, strict=True)))
    capacity = max_live(buffers(lower, upper, size))
    path = _written(tmp_path, f"id,lower,upper,size\n{rows}\n")
    with pytest.raises(UndecidedError, match="not found in the time") as error:
        _plan(path, "--capacity", str(capacity), "--timeout", "0")
    assert "--timeout" in error.value.next_step
    assert UndecidedError.exit_code != InfeasibleError.exit_code
    assert not path.with_name("out.csv").exists()


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("", "empty", ""),
        ("id,lower,upper\na,0,1\n", "no column size", "header"),
        ("a,0,1,4\n", "no column id, lower, upper, size", "header"),
        ("id,lower,upper,size,size\na,0,1,4,4\n", "repeated column size", "header"),
        ("id,lower,upper,size\na,0,1,-4\n", "size is -4, not at least 0", "line 2"),
        ("id,lower,upper,size\na,0,1,4\nb,5,5,4\n", "lifetime .* is empty", "line 3"),
        ("id,lower,upper,size\na,0,1,4\nb,6,5,4\n", "lifetime .* is empty", "line 3"),
        ("id,lower,upper,size\na,0,1,4\n\nb,0,1,4\n", "an empty line", "line 3"),
        ("id,lower,upper,size\na,0,1,\n", "size is '', not an integer", "line 2"),
        ("id,lower,upper,size\n,0,1,1\n", "id is empty", "line 2"),
        ("id,lower,upper,size\na,0,1\n", "3 cells, the header has 4", "line 2"),
        ("id,lower,upper,size\na,0,1,4,5\n", "5 cells", "line 2"),
        ("id,lower,upper,size\na,0,1,4\nb,0,1,4\na,2,3,4\n", "id a is repeated, first in line 2", "line 4"),
        ("id,lower,upper,size\na,0,1,4.5\n", "not an integer", "line 2"),
        ("id,lower,upper,size\na,0,1,1_000\n", "not an integer", "line 2"),
        ("id,lower,upper,size\na,0,1,\uff11\n", "not an integer", "line 2"),
        ("id,lower,upper,size\na,0,1,nan\n", "not an integer", "line 2"),
        ("id,lower,upper,size\na,0,1,9999999999999999999\n", "not an integer", "line 2"),
        ("id,lower,upper,size\na,0,1,99999999999999999999999\n", "not an integer", "line 2"),
        ("id,lower,upper,size,alignment\na,0,1,4,0\n", "alignment is 0, not at least 1", "line 2"),
        ('id,lower,upper,size\n"a,0,1,4\n', "no CSV", ""),
        (b"id,lower,upper,size\n\xff,0,1,4\n", "not text in UTF-8", ""),
    ],
)
def test_rows_that_do_not_fit_are_named(tmp_path: Path, text: str | bytes, what: str, where: str) -> None:
    with pytest.raises(FormatError, match=what) as error:
        _plan(_written(tmp_path, text))
    assert where in error.value.where
    assert error.value.next_step


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EdgeplanError, match="cannot read the buffers"):
        _plan(tmp_path / "none.csv")


@pytest.mark.long
def test_a_million_rows(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    count = 1_000_000
    lower = np.sort(rng.integers(0, 4 * count, count))
    upper = lower + rng.integers(1, 100, count)
    size = rng.integers(1, 1 << 20, count)
    found = solve(buffers(lower, upper, size), timeout_s=60)
    assert found.verdict is Verdict.fits
    assert found.offsets is not None
    assert overlapping(buffers(lower, upper, size), found.offsets) is None
    some = 100_000  # the command reads and writes a row as often
    lines = [f"{k},{a},{b},{s}\n" for k, (a, b, s) in enumerate(zip(lower[:some], upper, size, strict=False))]
    output = _plan(_written(tmp_path, "id,lower,upper,size\n" + "".join(lines)), "--timeout", "60")
    with output.open() as file:
        assert sum(1 for _ in file) == some + 1


@pytest.mark.long
def test_a_million_rows_that_all_overlap() -> None:
    count = 1_000_000
    one = np.ones(count, dtype=np.int64)
    stacked = solve(buffers(0 * one, one, one), timeout_s=5)
    assert stacked.height == count
    crossed = buffers(np.arange(count), count + np.arange(count), one)  # 5e11 pairs
    assert solve(crossed, timeout_s=2).height == solve(crossed, count, timeout_s=2).height == count
    assert solve(crossed, count - 1, timeout_s=2).verdict is Verdict.infeasible
