"""Files from elsewhere: lists that are read, wheels that are unpacked by pip's own hand, rows that are kept, figures."""

from __future__ import annotations

import hashlib
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))

from real_files import RealFile, fetch, is_there, read_list, require  # noqa: E402  found by the line above
from real_truth import Row, figures, read_rows, write_rows  # noqa: E402  likewise

from edgeplan.errors import FormatError  # noqa: E402  likewise

CONTENT = b"not a model, which nobody asks here"
FILE = RealFile("toy-models", "1.0", "toy_models/a.onnx", hashlib.sha256(CONTENT).hexdigest(), "a test", (), ())


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip looks in, and nowhere else."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "toy_models-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("toy_models/a.onnx", CONTENT)
        wheel.writestr("toy_models/b.onnx", CONTENT * 2)
        wheel.writestr("toy_models-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: toy-models\nVersion: 1.0\n")
        wheel.writestr("toy_models-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("toy_models-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.mark.usefixtures("index")
def test_a_wheel_is_fetched_and_only_what_is_listed_is_unpacked(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    assert list(fetch([FILE], folder)) == ["toy-models 1.0: 1 files"]
    assert [path.name for path in folder.rglob("*.onnx")] == ["a.onnx"]
    assert require(FILE, folder).read_bytes() == CONTENT
    assert list(fetch([FILE], folder)) == []  # nothing is missing


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"sha256": "0" * 64}, "is another file"),
        ({"path": "toy_models/c.onnx"}, "no file toy_models/c.onnx"),
        ({"version": "2.0"}, "pip: "),
    ],
)
def test_what_cannot_be_had_is_told_and_leaves_nothing(wrong: dict[str, str], told: str, tmp_path: Path) -> None:
    file = replace(FILE, **wrong)  # type: ignore[arg-type]  # text fields alone
    (line,) = fetch([file], tmp_path / "files")
    assert told in line
    assert not is_there(file, tmp_path / "files")
    with pytest.raises(FormatError, match="fetch it"):
        require(file, tmp_path / "files")


@pytest.mark.parametrize("path", ["/etc/passwd", "../up.onnx", "a/../../b.onnx", "a\\b.onnx", ""])
def test_a_list_names_files_inside_of_wheels(path: str, tmp_path: Path) -> None:
    listed = tmp_path / "list.csv"
    listed.write_text(f'package,version,path,sha256,task,shape,set\np,1,"{path}",0,t,,\n')
    with pytest.raises(FormatError, match="not a path inside a wheel"):
        read_list(listed)


def test_a_list_has_all_its_columns(tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("package,version,path\np,1,a.onnx\n")
    with pytest.raises(FormatError, match="no column sha256"):
        read_list(tmp_path / "list.csv")


@pytest.mark.parametrize("name", ["real-models", "real-files"])
def test_the_lists_are_whole(name: str) -> None:
    files = read_list(ROOT / f"docs/{name}.csv")
    assert len({file.path for file in files}) == len(files)
    assert all(len(file.sha256) == 64 for file in files)
    assert [file.wanted for file in files]


def test_the_test_files_are_of_no_package_that_anything_was_tuned_on() -> None:
    tuned, tests = (read_list(ROOT / f"docs/{name}.csv") for name in ("real-models", "real-files"))
    assert not {file.package for file in tests} & {file.package for file in tuned}
    assert not {file.sha256 for file in tests} & {file.sha256 for file in tuned}


def _row(file: str, measured: float, predicted: float = 10.0, *, turn: int = 0) -> Row:
    row = Row(file, "1", "cpu-onnxruntime", "onnxruntime", "1", "m", turn, predicted, 0.5 * predicted, 1.5 * predicted)
    return replace(row, measured_ms=measured)


def test_rows_of_truth_are_read_back_and_what_is_refused_counts_as_a_failure(tmp_path: Path) -> None:
    files = [replace(FILE, path=name, package=package) for name, package in zip("abcd", "ppqq", strict=True)]
    rows = [_row("a", 10.5), _row("b", 12.0), _row("c", 30.0), _row("a", 10.6, turn=1), _row("b", 15.0, turn=1)]
    rows.append(replace(_row("d", 0.0, 0.0), refused_because="predict: no"))
    write_rows(rows, tmp_path / "rows.csv")
    assert read_rows(tmp_path / "rows.csv") == rows
    found = figures(rows, files, "cpu-onnxruntime")
    assert (found["real.files"], found["real.predicted"]) == (4, 0.75)
    assert (found["real.within_10pct"], found["real.within_20pct"]) == (0.25, 0.5)
    assert (found["real.packages_within_10pct"], found["real.packages_within_20pct"]) == (0.25, 0.5)
    found = figures([*rows[1:], replace(rows[0], with_kernels_ms=10.5)], files[:3], "cpu-onnxruntime")
    assert found["real.packages_within_10pct"] == found["real.measured_packages_within_10pct"] == 0.25
    assert (found["real.within_10pct"], found["real.measured_within_10pct"]) == pytest.approx((1 / 3, 1 / 3))
    found = figures(rows, files, "cpu-onnxruntime")
    assert found["real.repeat_within_10pct"] == 0.5
    assert found["real.interval_coverage_90"] == pytest.approx(2 / 3)
    assert found["real.interval_width_90"] == pytest.approx(1.0)
    assert figures([], files, "cpu-onnxruntime") == {"real.files": 4.0, "real.predicted": 0.0}
