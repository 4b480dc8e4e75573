"""Scripts: results held against each other, sizes that rise by what a reason says, files from elsewhere."""

from __future__ import annotations

import csv
import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))

from real_files import RealFile, fetch, is_there, read_list, require  # noqa: E402  found by the line above
from real_truth import Row, figures, read_rows, write_rows  # noqa: E402  likewise

from edgeplan.errors import FormatError  # noqa: E402  likewise

SCRIPTS = ROOT / "workflow/scripts"


def _compare(*arguments: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, SCRIPTS / "compare_results.py", *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    pd.DataFrame({"ms": [1.5, 2.0], "why": ["", "NA"]}).to_csv(before / "table.csv", index=False)
    pd.DataFrame({"ms": [1.5, float("nan")]}).to_parquet(before / "rows.parquet")
    page = {"tables": [{"id": "a", "sha256": "1"}, {"id": "b", "sha256": "2"}], "metrics": [["x", "1"], ["y", "2"]]}
    (before / "part.page.json").write_text(json.dumps(page))
    (before / "drawing.svg").write_text("<svg/>")
    shutil.copytree(before, after)
    return before, after


def test_equal_folders_have_no_difference_and_every_value_is_written(folders: tuple[Path, Path], tmp_path: Path) -> None:
    code, said = _compare(*folders, tmp_path / "all.csv")
    assert (code, said) == (0, ["13 values equal, 0 changed, 0 went, 0 came"])
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 14
    assert ["table.csv", "ms[1]", "2.0", "2.0"] in rows


def test_a_value_that_changed_is_told_apart_from_what_went_and_came(folders: tuple[Path, Path]) -> None:
    before, after = folders
    (before / "gone.csv").write_text("a\n1\n")
    pd.DataFrame({"ms": [1.5, 2.5], "new": [1, 2]}).to_csv(after / "table.csv", index=False)
    pd.DataFrame({"ms": [1.25, float("nan")]}).to_parquet(after / "rows.parquet")
    (after / "part.page.json").write_text(json.dumps({"tables": [{"id": "b", "sha256": "3"}], "metrics": [["y", "2"]]}))
    code, said = _compare(before, after)
    assert code == 1
    assert said[:2] == ["changed: rows.parquet: ms[0]: 1.5 -> 1.25", "changed: table.csv: ms[1]: 2.0 -> 2.5"]
    assert "went: gone.csv" in said
    assert "went: table.csv: why[0]; why[1]" in said
    assert "went: part.page.json: tables[a].id; metrics[x][x]; metrics[x][1]" in said
    assert said[-1].split(", ")[1:] == ["2 changed", "6 went", "2 came"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("workflow/scripts", "workflow/edgeplan", "tests"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "workflow/scripts/ratchet.py").write_text((SCRIPTS / "ratchet.py").read_text())
    (tmp_path / "workflow/edgeplan/tables.py").write_text('TABLES = (TableSpec("a"),)\nBARS = (Bar("b"),)\n')
    (tmp_path / "tests/test_a.py").write_text("assert True\n")
    (tmp_path / "params.yaml").write_text("a: 1\nb: {c: 2, d: [3, 4]}\n")
    _git(tmp_path, "init", "--quiet")
    _commit(tmp_path)
    return tmp_path


def _git(tree: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@localhost", *words], check=True)


def _commit(tree: Path) -> None:
    _git(tree, "add", "--all")
    _git(tree, "commit", "--quiet", "--message", "sizes")


def _compared(tree: Path) -> tuple[int, str, str]:
    found = subprocess.run([sys.executable, tree / "workflow/scripts/ratchet.py"], capture_output=True, text=True, check=False)
    return found.returncode, found.stdout, found.stderr


@pytest.mark.parametrize(
    ("path", "text", "figures"),
    [
        ("tests/test_b.py", "assert 1\n", ["files of tests", "lines of tests"]),
        ("workflow/edgeplan/more.py", 'F = FigureSpec("c")\n', ["figures", "files of workflow", "lines of workflow"]),
        ("workflow/edgeplan/tables.py", 'T = (TableSpec("a"), TableSpec("b"))\nBARS = ()\n', ["tables"]),
        ("workflow/edgeplan/tables.py", 'add("--much")\n', ["options"]),
        ("workflow/edgeplan/loops.c", "int a;\n", ["files of workflow", "lines of C"]),
        ("params.yaml", "a: 1\nb: {c: 2, d: [3], e: 4}\n", ["params"]),
    ],
)
def test_what_grows_needs_a_reason_in_a_changed_tree_and_in_a_clean_one(
    tree: Path, path: str, text: str, figures: list[str]
) -> None:
    (tree / path).write_text(text)
    for state in ("changed", "clean"):
        status, _, said = _compared(tree)
        assert status == 1
        assert [line.split(":")[1].strip() for line in said.splitlines()] == figures
        if state == "changed":
            _commit(tree)
    (tree / "workflow/rises.txt").write_text("".join(f"+1 {name}: it is asked for\n" for name in figures))
    _git(tree, "add", "--all")
    _git(tree, "commit", "--quiet", "--amend", "--no-edit")
    assert _compared(tree)[0] == 0


def test_a_reason_counts_once_and_allows_what_it_says(tree: Path) -> None:
    (tree / "workflow/rises.txt").write_text("# why sizes rose\n+1 lines of tests: one more\n")
    (tree / "tests/test_a.py").write_text("assert True\nassert 1\n")
    assert _compared(tree)[0] == 0
    _commit(tree)
    assert _compared(tree)[0] == 0
    (tree / "tests/test_a.py").write_text("assert True\nassert 1\nassert 2\n")
    status, _, said = _compared(tree)
    assert status == 1
    assert "lines of tests: 2 -> 3, 1 more than" in said


def test_a_fall_needs_no_reason_and_a_line_that_is_none_is_told(tree: Path) -> None:
    (tree / "tests/test_a.py").unlink()
    status, said, _ = _compared(tree)
    assert status == 0
    assert "lines of tests (-1)" in said
    (tree / "workflow/rises.txt").write_text("because\n")
    assert "no reason: 'because'" in _compared(tree)[2]


def test_without_git_it_says_so(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert _compared(tree) == (0, "sizes are not compared: no git, or no earlier commit, here\n", "")


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
