from __future__ import annotations

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
