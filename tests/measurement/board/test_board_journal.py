"""The journal of a board, as two workers see it: what was kept, what a host knows of, and lines that are half written."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeplan.errors import FormatError
from edgeplan.measurement.board.journal import BoardJournal
from edgeplan.measurement.board.wire import MeasuredRow

KEY, FIRST, SECOND = "0" * 12, "1" * 32, "2" * 32
NAMES = [letter * 20 for letter in "abc"]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def row(name: str, microseconds: float = 1.0, sample: int = 0) -> MeasuredRow:
    times = (microseconds,) * 3
    return MeasuredRow(
        name=name, sample=sample, least_us=times, median_us=times, compute_us=times, bandwidth_us=times, measured_at=times,
        nodes=(), node_us=(), seconds=1.0,
    )  # fmt: skip


def names(rows: list[MeasuredRow]) -> list[str]:
    return sorted(one.name[0] for one in rows)


def test_rows_are_there_for_the_next_worker() -> None:
    BoardJournal("dev", KEY).commit(FIRST, [row(NAMES[0]), row(NAMES[1]), row(NAMES[2], sample=1)])
    journal = BoardJournal("dev", KEY)
    assert names(journal.kept(NAMES, 0)) == ["a", "b"]
    assert names(journal.kept(NAMES, 1)) == ["c"]
    assert names(journal.of_batch(FIRST, NAMES, 0)) == ["a", "b"]
    assert journal.of_batch(SECOND, NAMES, 0) == []
    assert BoardJournal("other", KEY).kept(NAMES, 0) == BoardJournal("dev", "1" * 12).kept(NAMES, 0) == []


def test_a_batch_that_another_worker_ended_meanwhile_is_handed_over_once() -> None:
    """A host was killed; its worker goes on, while a new host asks another worker for the same subjects."""
    alone, called = BoardJournal("dev", KEY), BoardJournal("dev", KEY)
    assert called.kept(NAMES, 0) == []
    alone.commit(FIRST, [row(NAMES[0]), row(NAMES[1])])
    assert names(called.of_batch(SECOND, NAMES[:1], 0)) == ["a"]
    assert called.of_batch("3" * 32, NAMES[:1], 0) == [], "a noisy subject that is asked for again is measured afresh"
    assert names(called.of_batch("4" * 32, NAMES, 0)) == ["b"]


def test_ones_own_rows_are_not_those_of_another() -> None:
    journal, other = BoardJournal("dev", KEY), BoardJournal("dev", KEY)
    journal.kept(NAMES, 0)
    other.commit(FIRST, [row(NAMES[2])])
    journal.commit(SECOND, [row(NAMES[0], 5.0)])
    assert journal.of_batch("3" * 32, NAMES[:1], 0) == []
    (found,) = journal.of_batch(SECOND, NAMES[:1], 0)
    assert found.least_us == (5.0,) * 3
    assert names(journal.of_batch("3" * 32, NAMES, 0)) == ["c"]


def test_half_a_line_is_left_to_who_writes_it_until_one_holds_the_board() -> None:
    BoardJournal("dev", KEY).commit(FIRST, [row(NAMES[0])])
    path = BoardJournal("dev", KEY).path
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    journal = BoardJournal("dev", KEY)
    assert names(journal.kept(NAMES, 0)) == ["a"]
    assert path.stat().st_size > len(whole)
    journal.commit(SECOND, [row(NAMES[1])])
    assert names(BoardJournal("dev", KEY).kept(NAMES, 0)) == ["a", "b"]


def test_a_damaged_journal_is_named_with_what_to_do() -> None:
    BoardJournal("dev", KEY).commit(FIRST, [row(NAMES[0])])
    path = BoardJournal("dev", KEY).path
    path.write_bytes(b'{"batch": 1}\n' + path.read_bytes())
    with pytest.raises(FormatError, match="the journal of the board is damaged") as caught:
        BoardJournal("dev", KEY)
    assert "delete that file" in caught.value.next_step
    assert caught.value.where == str(path)
