"""Scripts: results held against each other, sizes that rise by what a reason says, lists of files, runs that fail."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from shipped_params import PARAMS_FILE

LANE = "processes"  # see tests/conftest.py

ROOT = Path(__file__).parents[2]
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


def test_the_lists_are_whole_and_test_files_of_no_package_that_anything_was_tuned_on() -> None:
    tuned, tests = (pd.read_csv(ROOT / f"docs/{name}.csv") for name in ("real-models", "real-files"))
    for files in (tuned, tests):
        assert files["path"].is_unique
        assert files["sha256"].str.fullmatch("[0-9a-f]{64}").all()
    for column in ("package", "sha256"):
        assert not {*tests[column]} & {*tuned[column]}


SCRIPT = SCRIPTS / "reproduce.py"
OUTCOME = ("report.html", "cpu-openvino/metrics.json", "cpu-onednn/metrics.json")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The results of an earlier run: of the device, of one whose cold starts are measured too, and of a third."""
    folder = tmp_path / "results"
    for name in (*OUTCOME, "cpu-openvino/tables/table_01.csv", "cpu-onnxruntime/metrics.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("earlier")
    params = yaml.safe_load(PARAMS_FILE.read_text())
    params["partition"] |= {"pairs": [], "checked_pairs": []}
    params["cold_gpu"]["devices"], params["unseen"]["devices"] = [], []
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


def run(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The script around a command that does what `code` says."""
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    command = [sys.executable, str(SCRIPT), "cpu-openvino", sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


#: Tells the words that it is given, and fails.
GIVEN = "import pathlib, sys; pathlib.Path('given').write_text(' '.join(sys.argv[1:])); sys.exit(4)"

FAILS = """
import pathlib, sys
pathlib.Path('work').mkdir(exist_ok=True)
pathlib.Path('work/error.txt').write_text('7\\nerror: too noisy\\n  where: device dev\\n  next:  stop other work\\n')
print('buried under much else', file=sys.stderr)
sys.exit(1)
"""


def test_the_last_lines_are_the_error_of_the_stage(results: Path, tmp_path: Path) -> None:
    done = run(tmp_path, FAILS)
    assert done.returncode == 7
    assert done.stderr.endswith("error: too noisy\n  where: device dev\n  next:  stop other work\n")
    assert not any((results / name).exists() for name in OUTCOME)
    assert "git checkout -- results/cpu-openvino/metrics.json results/cpu-onednn/metrics.json`" in done.stderr
    for kept in ("cpu-openvino/tables/table_01.csv", "cpu-onnxruntime/metrics.json"):
        assert (results / kept).read_text() == "earlier"


def test_an_error_of_an_earlier_run_is_not_told_again(results: Path, tmp_path: Path) -> None:
    assert results.is_dir()
    run(tmp_path, FAILS)
    done = run(tmp_path, "import sys; sys.exit(4)")
    assert done.returncode == 4
    assert "too noisy" not in done.stderr
    assert "ended with exit code 4\n  next:  " in done.stderr


def test_pairs_whose_processors_are_not_here_are_left_out_and_the_run_goes_on(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert results.is_dir()
    (tmp_path / "nothing").touch()
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path / "nothing"))  # no OpenCL
    shutil.copytree(ROOT / "config/devices", tmp_path / "config/devices")
    pair = yaml.safe_load((ROOT / "config/pairs/pair-pocl.yaml").read_text())
    (tmp_path / "config/pairs").mkdir()
    for name, core in (("pair-absent", 99_999), ("pair-wrong", -1), ("pair-here", 1)):
        host, other = pair["processors"]
        document = pair | {"name": name, "processors": [host, other | {"cores": [core]}]}
        (tmp_path / f"config/pairs/{name}.yaml").write_text(yaml.safe_dump(document))
    params = tmp_path / "params.yaml"
    params.write_text(params.read_text().replace("  pairs: []", "  pairs: [pair-absent, pair-wrong, pair-here]"))
    done = run(tmp_path, GIVEN)
    assert done.returncode == 4
    assert (tmp_path / "given").read_text() == "-S partition.pairs=[pair-wrong]", "a faulty file is for the run to tell"
    absent, here = [line for line in done.stderr.splitlines() if "left out" in line]
    assert absent.startswith("pair-absent is left out: core 99999 does not exist on this machine (it has ")
    assert "; name cores among " in absent
    alone = "core 1 does not exist" if os.cpu_count() == 1 else "no OpenCL platform: "
    assert here.startswith(f"pair-here is left out: {alone}")
    assert "error: no" not in done.stderr


def test_gpus_that_are_not_here_and_devices_that_are_not_trained_are_left_out(results: Path, tmp_path: Path) -> None:
    assert results.is_dir()
    shutil.copytree(ROOT / "config/devices", tmp_path / "config/devices")
    params = yaml.safe_load((tmp_path / "params.yaml").read_text())
    params["cold_gpu"]["devices"], params["unseen"]["devices"] = ["cuda-h200"], ["cpu-openvino", "cuda-h200-8sm"]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    done = run(tmp_path, GIVEN)
    assert done.returncode == 4
    gone = "-S cold_gpu.devices=[] " if "cuda-h200 is left out: " in done.stderr else ""
    assert (tmp_path / "given").read_text() == f"{gone}-S unseen.devices=[cpu-openvino]"
    words = ["-S", "cold_gpu.devices=[]", "-S", "unseen.devices=[cuda-h200-8sm]"]  # in place of what params name
    assert "left out" not in run(tmp_path, GIVEN, *words).stderr
    assert (tmp_path / "given").read_text() == " ".join([*words, "-S unseen.devices=[]"])


@pytest.mark.committed
def test_a_run_that_ends_well_says_what_came_out_and_where_it_stands(results: Path, tmp_path: Path) -> None:
    """The chapters hand over what the committed results hold."""
    params = tmp_path / "params.yaml"
    params.write_text(params.read_text().replace("  pairs: []", "  pairs: [pair-pocl]"))
    shutil.copytree(ROOT / "results", results, ignore=shutil.ignore_patterns("predictors", "report.html"), dirs_exist_ok=True)
    done = run(tmp_path, "import pathlib; pathlib.Path('results/cpu-openvino/metrics.json').write_text('new')")
    assert (done.returncode, done.stderr) == (0, "")
    *told, last = done.stdout.splitlines()
    assert last.startswith("done: results/report.html")
    systems = (
        "Latency prediction on cpu-openvino",
        "Cold start on cpu-onednn",
        "Memory on cpu-onednn",
        "Partition on pair-pocl",
        "EOP on pair-pocl",
    )
    assert all(sum(line.startswith(f"{system}: ") for line in told) == 1 for system in systems)
    assert all(len(line) <= 100 for line in told)
    assert (results / "cpu-openvino/metrics.json").read_text() == "new"
    assert not (results / "report.html").exists()
