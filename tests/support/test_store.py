"""Rows of measurements in their store: parts, merging, journals, formats, full disks; keys and shipped files."""

from __future__ import annotations

import errno
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from edgeplan.engines.base import EngineNode
from edgeplan.errors import FormatError, StoreError
from edgeplan.measurement.records import Measurement
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.measurement.rows import RowStore, measurement_of, read_rows, row_of, row_store, write_rows
from edgeplan.measurement.settings import ReferenceExponents
from edgeplan.support.files import write_text
from edgeplan.support.store import key_of

NOMINAL = ReferenceTimes(100.0, 400.0)
EXPONENTS = ReferenceExponents(compute=1.0, bandwidth=0.0)
NODES = (
    EngineNode("a", "Conv", "Conv.nchwc", ("a", "b"), "", "nchw", "nchwc"),
    EngineNode("r", "ReorderOutput", "ReorderOutput", (), "b", "nchwc", "nchw"),
)


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "edgeplan"


def measurement(subject: str, sample: int = 0, *, at: float = 1.0) -> Measurement:
    return Measurement(
        subject=subject,
        sample=sample,
        least_us=np.array([10.0, 12.0, 11.0]),
        median_us=np.array([11.0, 13.0, 12.0]),
        compute_us=np.array([100.0, 120.0, 110.0]),
        bandwidth_us=np.array([400.0, 400.0, 800.0]),
        measured_at=np.array([at, at + 0.1, at + 0.2]),
        nodes=NODES,
        node_us=np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        nominal=NOMINAL,
        exponents=EXPONENTS,
        seconds=0.5,
    )


def store(tmp_path: Path, key: str = "k1") -> RowStore:
    return row_store(tmp_path / "rows" / "dev", key, {"engine": "x"})


def add(opened: RowStore, *measured: Measurement) -> None:
    opened.commit({(m.subject, m.sample): row_of(m) for m in measured})


def part(subject: str) -> str:
    return f"k1-{key_of([str((subject, 0))])}.parquet"


def test_a_measurement_comes_back_as_it_was(tmp_path: Path) -> None:
    add(store(tmp_path), measurement("s", 2, at=1e9 + 0.25))
    back = measurement_of(store(tmp_path).query()["s", 2], NOMINAL, EXPONENTS)
    want = measurement("s", 2, at=1e9 + 0.25)
    assert (back.subject, back.sample, back.nodes, back.seconds) == ("s", 2, NODES, 0.5)
    for name in ("least_us", "median_us", "compute_us", "bandwidth_us", "measured_at", "node_us"):
        np.testing.assert_array_equal(getattr(back, name), getattr(want, name), err_msg=name)
    assert back.latency_us == want.latency_us > 10.0  # of median runs


def test_a_store_knows_its_own_key_and_samples_only(tmp_path: Path) -> None:
    add(store(tmp_path), measurement("s"))
    again = store(tmp_path)
    assert again.has(("s", 0))
    assert not again.has(("s", 1))
    assert not again.has(("t", 0))
    assert not store(tmp_path, "k2").has(("s", 0))
    assert (len(again), len(store(tmp_path, "k2"))) == (1, 0)
    assert again.get(("t", 0)) is None


def test_parts_merge_into_few_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeplan.measurement.rows._MAX_ROWS_PER_FILE", 3)
    opened = store(tmp_path)
    for n in range(4):
        add(opened, measurement(f"s{n}"), measurement(f"s{n}", 1))
    other = store(tmp_path, "k2")
    add(other, measurement("s0"))
    opened.merge()
    assert sorted(p.name for p in opened.folder.glob("k1-*.parquet")) == [f"k1-rows-00{i}.parquet" for i in range(3)]
    again = store(tmp_path)
    assert all(again.has((f"s{n}", sample)) for n in range(4) for sample in (0, 1))
    assert store(tmp_path, "k2").has(("s0", 0))
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


def test_rows_of_another_format_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows/dev/k1-rows-000.parquet"
    add(store(tmp_path), measurement("s"))
    table = pq.read_table(tmp_path / "rows/dev" / part("s"))
    pq.write_table(table.replace_schema_metadata({"edgeplan_rows": "99"}), path)
    with pytest.raises(FormatError, match="format version 99, expected 1") as caught:
        store(tmp_path)
    assert caught.value.where == str(path)
    assert caught.value.next_step


@pytest.mark.parametrize("content", [b"", b"PAR1 not really", b"\x00" * 64])
def test_a_damaged_row_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rows/dev/k1-rows-000.parquet"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(FormatError, match="not a readable row file") as caught:
        store(tmp_path)
    assert caught.value.where == str(path)


def test_a_parquet_file_that_holds_no_rows_of_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows/dev/k1-rows-000.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), path)
    with pytest.raises(FormatError, match="format version none"):
        read_rows(path)


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


def test_a_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StoreError, match="cannot write"):
        write_text(tmp_path / "file" / "below.json", "{}")


def test_a_reader_sees_the_old_file_until_the_new_one_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.parquet"
    write_rows(path, [_plain_row("old")])
    real = pq.write_table

    def slow(table: Any, where: Any, **options: Any) -> None:
        assert [r["subject"] for r in read_rows(path)] == ["old"]
        real(table, where, **options)
        assert [r["subject"] for r in read_rows(path)] == ["old"]

    monkeypatch.setattr(pq, "write_table", slow)
    write_rows(path, [_plain_row("new")])
    assert [r["subject"] for r in read_rows(path)] == ["new"]


def _plain_row(subject: str) -> dict[str, Any]:
    names = ("least_us", "median_us", "compute_us", "bandwidth_us", "measured_at", "nodes", "node_us")
    return {"subject": subject, "sample": 0, "seconds": 0.0, **{name: [] for name in names}}
