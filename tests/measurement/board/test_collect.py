"""Rows of another machine are taken once, whole, and of the device that they are of."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from quick_bench import measuring_alone, open_bench, subjects  # noqa: F401  a fixture

from edgeplan.errors import FormatError
from edgeplan.measurement.rows import collect, read_rows, write_rows


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Rows as another machine has them: data/rows/dev/<stage>."""
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(3))
        folder = bench.store.folder
    assert folder is not None
    target = tmp_path / "other/dev/truth"
    target.parent.mkdir(parents=True)
    folder.rename(target)
    return target.parent


def rows_in(folder: Path) -> int:
    return sum(len(read_rows(path)) for path in folder.rglob("*.parquet"))


@pytest.mark.parametrize("packed", [False, True])
def test_rows_are_taken_once(source: Path, tmp_path: Path, *, packed: bool) -> None:
    if packed:
        with tarfile.open(tmp_path / "rows.tar", "w") as archive:
            archive.add(source, arcname="dev")
        source = tmp_path / "rows.tar"
    (found,) = collect("dev", source, tmp_path / "rows")
    assert (found.stage, found.fresh, found.known) == ("truth", 3, 0)
    (again,) = collect("dev", source, tmp_path / "rows")
    assert (again.fresh, again.known) == (0, 3)
    assert rows_in(tmp_path / "rows/dev/truth") == 3


def refused(name: str, source: Path, tmp_path: Path) -> FormatError:
    with pytest.raises(FormatError) as caught:
        collect(name, source, tmp_path / "rows")
    assert not (tmp_path / "rows").exists()
    return caught.value


def test_rows_of_another_device_are_refused(source: Path, tmp_path: Path) -> None:
    error = refused("pi", source, tmp_path)
    assert "rows of the device 'dev', not of 'pi'" in error.what
    assert "edgeplan device collect dev" in error.next_step


def test_a_key_that_is_not_that_of_its_identity_is_refused(source: Path, tmp_path: Path) -> None:
    (path,) = source.rglob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "engine_version": "9.9"}))
    assert "the key of these rows" in refused("dev", source, tmp_path).what


def test_damaged_rows_are_refused_and_none_is_taken(source: Path, tmp_path: Path) -> None:
    path = next(iter(source.rglob("*.parquet")))
    rows = read_rows(path)
    write_rows(path, [{**rows[0], "least_us": [-1.0, 1.0, 1.0]}, *rows[1:]])
    assert "is damaged" in refused("dev", source, tmp_path).what
    path.write_bytes(b"PAR1")
    assert "not a readable row file" in refused("dev", source, tmp_path).what


def test_what_holds_no_rows_is_refused_with_the_command(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "tar -C data/rows" in refused("dev", tmp_path / "empty", tmp_path).next_step
    (tmp_path / "no.tar").write_text("no archive")
    assert "not a readable archive" in refused("dev", tmp_path / "no.tar", tmp_path).what


def test_an_archive_writes_nowhere_else(source: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "rows.tar", "w") as archive:
        archive.add(next(iter(source.rglob("*.parquet"))), arcname="../../../escaped.parquet")
    assert refused("dev", tmp_path / "rows.tar", tmp_path)
    assert not list(tmp_path.rglob("escaped*"))


def test_an_archive_that_would_fill_the_disk_is_not_unpacked(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{collect.__module__}._MOST_BYTES", 100)
    with tarfile.open(tmp_path / "rows.tar", "w") as archive:
        archive.add(source, arcname="dev")
    error = refused("dev", tmp_path / "rows.tar", tmp_path)
    assert "the archive is too large" in error.what
    assert error.next_step == "name a folder instead"
