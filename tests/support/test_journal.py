from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgeplan.errors import FormatError
from edgeplan.support.store import Journal

RECORDS = [{"key": "a", "value": 1.5}, {"key": "b", "value": None}, {"key": "é", "value": [1, 2]}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "deep" / "journal.jsonl")
    for record in RECORDS:
        journal.commit(record)
    return tmp_path / "deep" / "journal.jsonl"


def test_records_come_back_in_order(path: Path) -> None:
    assert list(Journal(path).query()) == RECORDS


def test_a_line_cut_short_anywhere_costs_only_itself(path: Path) -> None:
    whole = path.read_bytes()
    start = whole[:-1].rfind(b"\n") + 1
    for end in range(start, len(whole)):
        path.write_bytes(whole[:end])
        journal = Journal(path)
        assert list(journal.query()) == RECORDS[:2]
        journal.commit(RECORDS[2])
        assert path.read_bytes() == whole


def test_a_damaged_line_in_the_middle_is_named(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{broken\n" + lines[2])
    with pytest.raises(FormatError, match="line 2"):
        list(Journal(path).query())


def test_an_empty_journal_holds_nothing(tmp_path: Path) -> None:
    assert list(Journal(tmp_path / "new.jsonl").query()) == []


LIMITED = """
import json, resource, sys
import subprocess
import sys
from pathlib import Path
from edgeplan.errors import StoreError
from edgeplan.support.store import Journal
journal = Journal(Path(sys.argv[1]))
journal.commit({"key": "first"})
resource.setrlimit(resource.RLIMIT_FSIZE, (40, resource.RLIM_INFINITY))
try:
    journal.commit({"key": "x" * 100})
except StoreError as error:
    print(error.what)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.commit({"key": "last"})
"""


def test_a_line_that_is_written_in_part_is_taken_back(tmp_path: Path) -> None:
    """A disk that gets full takes what fits of a line, and says so at the next write only."""
    path = tmp_path / "journal.jsonl"
    done = subprocess.run([sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True)
    assert "cannot write" in done.stdout
    assert [record["key"] for record in Journal(path).query()] == ["first", "last"]
