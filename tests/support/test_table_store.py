"""What is made once is kept in few files, none of which is written again; a re-measurement stays small in git."""

from __future__ import annotations

import zlib
from pathlib import Path

import pandas as pd
import pytest

from edgeplan.errors import FormatError
from edgeplan.support.frames import TableStore, table_store
from edgeplan.support.store import key_of

ROOT = Path(__file__).parents[2]
#: What measuring all of a chapter again on a device may add to git (bytes, as git packs it), and how many files it may change.
MOST_BYTES, MOST_FILES = 5 << 20, 60
#: Measuring stages of each chapter, and what a stage writes of its rows for the tables.
CHAPTERS = {
    "prediction": ("fusion", "sampling", "calibration", "truth", "unseen"),
    "cold_start": ("cold_start",),
}
WRITTEN = {
    "prediction": ("fusion/*", "measurements/*", "calibration/*", "evaluation/truth.parquet", "evaluation/environment.json"),
    "cold_start": ("cold/*.parquet", "cold/*.json"),
}


def _table(*values: float) -> pd.DataFrame:
    return pd.DataFrame({"ms": values, "name": [f"row {v:g}" for v in values]})


def _opened(folder: Path) -> TableStore:
    return table_store(folder, "ms", "name")


def test_tables_are_found_by_key_before_and_after_they_are_merged(tmp_path: Path) -> None:
    store = _opened(tmp_path / "kept")
    assert store.get("a+b-1") is None
    for key, values in (("a+b-1", (3.0, 1.0, 2.0)), ("other", (5.0,))):
        store.commit({key: _table(*values)})
        pd.testing.assert_frame_equal(_opened(tmp_path / "kept").get(key), _table(*values))  # a killed run keeps it
    store.merge()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["rows-000.parquet"]
    found = _opened(tmp_path / "kept")
    assert {*found.query()} == {"a+b-1", "other"}
    pd.testing.assert_frame_equal(found.get("a+b-1"), _table(3.0, 1.0, 2.0))


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
    assert {*_opened(tmp_path).query()} == {"a", "b", "c"}


def test_what_is_merged_never_takes_the_place_of_an_earlier_file(tmp_path: Path) -> None:
    for key in ("a", "b"):
        store = _opened(tmp_path)
        store.commit({key: _table(1.0)})
        store.merge()
    (tmp_path / "rows-000.parquet").unlink()  # its rows are of an earlier protocol
    store = _opened(tmp_path)
    store.commit({"c": _table(1.0)})
    store.merge()
    assert {*_opened(tmp_path).query()} == {"b", "c"}


def test_a_merge_that_was_killed_leaves_nothing_twice(tmp_path: Path) -> None:
    store = _opened(tmp_path)
    store.commit({"a": _table(1.0, 2.0)})
    (part,) = tmp_path.iterdir()
    alone = part.read_bytes()
    store.merge()
    part.write_bytes(alone)  # it was not removed yet
    again = _opened(tmp_path)
    pd.testing.assert_frame_equal(again.get("a"), _table(1.0, 2.0))
    again.merge()
    assert [path.name for path in tmp_path.iterdir()] == ["rows-000.parquet"]


@pytest.mark.parametrize("content", [b"", b"PAR1 and no more"])
def test_a_damaged_file_is_refused_with_what_to_do(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "rows-000.parquet").write_bytes(content)
    with pytest.raises(FormatError, match="rows-000") as caught:
        _opened(tmp_path)
    assert "remove it" in caught.value.next_step


def _measured(device: str, chapter: str) -> list[Path]:
    """The files that a complete measurement of a chapter writes."""
    rows = [ROOT / "data/rows" / device / stage for stage in CHAPTERS[chapter]]
    written = [path for pattern in WRITTEN[chapter] for path in (ROOT / "results" / device).glob(pattern)]
    return [path for path in (*(p for folder in rows for p in folder.rglob("*")), *written) if path.is_file()]


@pytest.mark.parametrize("device", ["cpu-onednn", "cpu-onnxruntime", "cpu-openvino"])
@pytest.mark.committed
def test_measuring_all_of_a_device_again_adds_little_and_changes_few_files(device: str) -> None:
    changed = {chapter: _measured(device, chapter) for chapter in CHAPTERS}
    assert len(changed["prediction"]) > 10
    for chapter, files in changed.items():
        added = sum(len(zlib.compress(path.read_bytes())) for path in files)
        assert added <= MOST_BYTES, f"{chapter}: {added} bytes"
    assert sum(map(len, changed.values())) <= MOST_FILES


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
