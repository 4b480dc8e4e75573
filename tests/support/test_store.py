"""Rows, journals and tables in their stores: parts, merging, formats, full disks."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from quick_bench import timed

from edgeplan.engines.base import EngineNode
from edgeplan.errors import FormatError, StoreError
from edgeplan.measurement.bench import RowStore, measurement_of, row_of, row_store
from edgeplan.measurement.records import Measurement
from edgeplan.support.frames import TableStore, table_store
from edgeplan.support.store import Journal, key_of

NODES = (
    EngineNode("a", "Conv", "Conv.nchwc", ("a", "b"), "", "nchw", "nchwc"),
    EngineNode("r", "ReorderOutput", "ReorderOutput", (), "b", "nchwc", "nchw"),
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "edgeplan"


def measurement(subject: str, sample: int = 0, *, at: float = 1.0) -> Measurement:
    return timed(
        [11.0, 13.0, 12.0], [100.0, 120.0, 110.0], subject=subject, sample=sample, nodes=NODES, seconds=0.5,
        least_us=np.array([10.0, 12.0, 11.0]), measured_at=at + np.arange(3) / 8, node_us=np.arange(6.0).reshape(3, 2),
    )  # fmt: skip


def store(tmp_path: Path, key: str = "k1") -> RowStore:
    return row_store(tmp_path / "rows" / "dev", key, {"engine": "x"})


def add(opened: RowStore, *measured: Measurement) -> None:
    opened.commit({(m.subject, m.sample): row_of(m) for m in measured})


def part(subject: str) -> str:
    return f"k1-{key_of([str((subject, 0))])}.parquet"


def test_a_measurement_comes_back_as_it_was(tmp_path: Path) -> None:
    want = measurement("s", 2, at=1e9 + 0.25)
    add(store(tmp_path), want)
    back = measurement_of(store(tmp_path).query()["s", 2], want.nominal, want.exponents)
    assert (back.subject, back.sample, back.nodes, back.seconds) == ("s", 2, NODES, 0.5)
    for name in ("least_us", "median_us", "compute_us", "bandwidth_us", "measured_at", "node_us"):
        np.testing.assert_array_equal(getattr(back, name), getattr(want, name), err_msg=name)
    assert back.latency_us == want.latency_us > 10.0  # of median runs


def test_parts_merge_into_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeplan.measurement.bench._MAX_ROWS_PER_FILE", 3)
    opened = store(tmp_path)
    for n in range(4):
        add(opened, measurement(f"s{n}"), measurement(f"s{n}", 1))
    other = store(tmp_path, "k2")
    add(other, measurement("s0"))
    opened.merge()
    assert sorted(p.name for p in opened.folder.glob("k1-*.parquet")) == [f"k1-rows-00{i}.parquet" for i in range(3)]
    again = store(tmp_path)
    assert all(again.has((f"s{n}", sample)) for n in range(4) for sample in (0, 1))
    assert {*store(tmp_path, "k2").query()} == {("s0", 0)}, "a store knows its own key"
    assert (again.has(("s0", 2)), again.get(("t", 0))) == (False, None)
    document = json.loads((opened.folder / "k1.json").read_text())
    assert document == {"format_version": 1, "engine": "x"}
    before = {p: p.stat().st_mtime_ns for p in opened.folder.iterdir()}
    again.merge()
    assert {p: p.stat().st_mtime_ns for p in opened.folder.iterdir()} == before


def test_the_journal_brings_back_deleted_rows(tmp_path: Path, state: Path) -> None:
    add(store(tmp_path), measurement("s"))
    for path in (tmp_path / "rows/dev").iterdir():
        path.unlink()
    again = store(tmp_path)
    assert again.has(("s", 0))
    again.merge()  # and the rows are written to the workspace once more
    for path in (state / "journal/dev").iterdir():
        path.unlink()
    assert store(tmp_path).has(("s", 0))


def test_old_journals_are_dropped_and_young_ones_kept(tmp_path: Path, state: Path) -> None:
    opened = store(tmp_path)
    add(opened, measurement("old"))
    add(opened, measurement("young"))
    long_ago = time.time() - 30 * 86400
    os.utime(state / "journal/dev" / part("old"), (long_ago, long_ago))
    opened.merge()
    assert sorted(p.name for p in (state / "journal/dev").iterdir()) == [part("young"), "k1.json"]
    assert store(tmp_path).has(("old", 0))
    os.utime(state / "journal/dev" / part("young"), (long_ago, long_ago))
    opened.merge()
    assert list((state / "journal/dev").iterdir()) == [], "no identity outlives its rows"


def test_half_written_files_of_a_killed_run_are_removed_and_young_ones_kept(tmp_path: Path, state: Path) -> None:
    add(store(tmp_path), measurement("a"))
    folders = [tmp_path / "rows" / "dev", state / "journal" / "dev"]
    for folder in folders:
        stale, young = folder / ".k1-a-0.parquet.x1y2.tmp", folder / ".k1-b-0.parquet.z3.tmp"
        stale.write_bytes(b"half")
        young.write_bytes(b"half")
        os.utime(stale, (0, time.time() - 60))
    opened = store(tmp_path)
    assert opened.has(("a", 0))
    assert [[p.name for p in folder.glob(".*")] for folder in folders] == [[".k1-b-0.parquet.z3.tmp"]] * 2
    for folder in folders:
        os.utime(folder / ".k1-b-0.parquet.z3.tmp", (0, time.time() - 60))
    opened.merge()
    assert [list(folder.glob(".*")) for folder in folders] == [[], []]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ({"edgeplan_rows": "99"}, "format version 99, expected 1"),
        (None, "format version none, expected 1"),
        *((damaged, "not a readable row file") for damaged in (b"", b"PAR1 not really", b"\x00" * 64)),
    ],
)
def test_rows_of_another_format_and_damaged_ones_are_refused(
    tmp_path: Path, content: dict[str, str] | bytes | None, told: str
) -> None:
    path = tmp_path / "rows/dev/k1-rows-000.parquet"
    add(store(tmp_path), measurement("s"))
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        pq.write_table(pq.read_table(path.with_name(part("s"))).replace_schema_metadata(content), path)
    with pytest.raises(FormatError, match=told) as caught:
        store(tmp_path)
    assert caught.value.where == str(path)
    assert caught.value.next_step


@pytest.mark.parametrize(("number", "message"), [(errno.ENOSPC, "the disk is full"), (errno.EACCES, "cannot write")])
def test_a_full_disk_says_so_and_keeps_what_was_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    opened = store(tmp_path)
    add(opened, measurement("first"))

    def fail(_table: Any, where: Any, **_options: Any) -> None:
        Path(where).write_bytes(b"half")
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(pq, "write_table", fail)
    with pytest.raises(StoreError, match=message) as caught:
        add(opened, measurement("second"))
    assert caught.value.next_step
    assert caught.value.where
    assert not opened.has(("second", 0))
    monkeypatch.undo()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    again = store(tmp_path)
    assert again.has(("first", 0))
    assert not again.has(("second", 0))
    assert not list(tmp_path.rglob("*.tmp"))


RECORDS = [{"key": "a", "value": 1.5}, {"key": "b", "value": None}, {"key": "é", "value": [1, 2]}]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    journal = Journal(tmp_path / "deep" / "journal.jsonl")
    for record in RECORDS:
        journal.commit(record)
    return tmp_path / "deep" / "journal.jsonl"


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


LIMITED = """
import resource, sys
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


def _table(*values: float) -> pd.DataFrame:
    return pd.DataFrame({"ms": values, "name": [f"row {v:g}" for v in values]})


def _opened(folder: Path) -> TableStore:
    return table_store(folder, "ms", "name")


def test_what_was_merged_is_not_written_again(tmp_path: Path) -> None:
    store = _opened(tmp_path)
    store.commit({"a": _table(1.0)})
    store.merge()
    (first,) = tmp_path.iterdir()
    before = first.stat().st_mtime_ns
    store.merge()  # nothing was added
    again = _opened(tmp_path)
    again.commit({"b": _table(2.0)})
    again.commit({"c": _table(3.0)})
    again.merge()
    assert {path.name for path in tmp_path.iterdir()} == {"rows-000.parquet", "rows-001.parquet"}
    assert first.stat().st_mtime_ns == before
    first.unlink()  # its rows are of an earlier protocol: its place stays free
    again = _opened(tmp_path)
    again.commit({"d": _table(4.0)})
    again.merge()
    assert {*_opened(tmp_path).query()} == {"b", "c", "d"}


def test_a_merge_that_was_killed_leaves_nothing_twice(tmp_path: Path) -> None:
    store = _opened(tmp_path)
    store.commit({"a": _table(1.0, 2.0)})
    (part,) = tmp_path.iterdir()
    alone = part.read_bytes()
    store.merge()
    part.write_bytes(alone)  # it was not removed yet
    again = _opened(tmp_path)
    assert again.get("b") is None
    pd.testing.assert_frame_equal(again.get("a"), _table(1.0, 2.0))
    again.merge()
    assert [path.name for path in tmp_path.iterdir()] == ["rows-000.parquet"]


@pytest.mark.parametrize(
    ("parts", "digits", "key"),
    [
        (["x", {"b": 1, "a": 2.5}], 12, "d08992e7ebe5"),
        ({"b": 1, "a": [2]}, 12, "41ff4104bc48"),
        (["partition/2", "samples", ["m", ["1", "2"], {"a": 1}], [["x", 1.5], None, 3]], 16, "d70bed5892092e03"),
        (["é", None, True, 1e-9, 10**12], 64, "b6b31b5ecadc5a58da7361c1fdcf9576f69ed8e502db9456bb359d9281294993"),
    ],
)
def test_keys_stay_what_they_were(parts: object, digits: int, key: str) -> None:
    assert key_of(parts, digits) == key
