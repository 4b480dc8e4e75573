"""Pipelines: one graph builds every stage once, a wrong params.yaml is told before anything is built, a chapter is added."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from workspace import COLD_DEVICE, DEVICE, Workspace, add_toy_chapter, make_workspace

from depth import by_day
from edgeplan.chapters.registry import STAGES
from edgeplan.support.lazy import sha256


def _tiny(folder: Path, **more: object) -> Workspace:
    workspace = make_workspace(folder)
    workspace.take_tiny_values(cold_start={"budget_seconds": 0}, **more)  # what a budget leaves out is measured by the next run
    return workspace


def _rows(workspace: Workspace) -> dict[str, str]:
    """Every file of rows, of all devices, pairs and chapters; not who else used the machine, which each run notes."""
    rows = workspace.folder / "data/rows"
    files = [path for path in sorted(rows.rglob("*")) if path.is_file() and path.name != "others.json"]
    return {str(path.relative_to(rows)): sha256(path.read_bytes()).hexdigest() for path in files}


def test_rows_asks_for_every_stage_that_measures_and_trains_what_plans_are_made_from_first(tmp_path: Path) -> None:
    workspace = _tiny(tmp_path, devices=[DEVICE, COLD_DEVICE])
    told = workspace.run("snakemake", "-n", "--quiet", "host", "--", "rows")
    planned = re.findall(r"^rule (\w+):$", told, re.MULTILINE)
    measuring = {stage.name for stage in STAGES if stage.rows} - {"unseen", "cold_gpu"}  # for what is named, and nothing is
    assert set(planned) == {*measuring, "rows", "zoo", "nodes", "training"}
    (cold,) = re.findall(r"^rule cold_start:\n(?: .*\n)*", told, re.MULTILINE)
    assert f"results/{COLD_DEVICE}/predictors/card.json" in cold
    machines = re.findall(r"device=1, gres=device:(\S+):1", told)
    assert len(machines) == sum(planned.count(name) for name in measuring)
    assert set(machines) == {"local"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_is_measured_after_the_rows(tmp_path: Path) -> None:
    workspace = _tiny(tmp_path)
    workspace.run("snakemake", "--cores", "2", "rows")
    before = _rows(workspace)
    chapters = {stage.rows.split("/")[3] for stage in STAGES if stage.rows} - {"unseen", "cold_gpu"}
    assert {name.split("/")[1] for name in before} >= chapters
    workspace.run("dvc", "repro")
    assert _rows(workspace) == before
    assert (workspace.folder / "results/report.html").is_file()


def _without_dvc(folder: Path, workspace: Workspace) -> Workspace:
    """The same with no program of the environment but Snakemake, and a module `dvc` that cannot be imported."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "snakemake").symlink_to(Path(sys.executable).with_name("snakemake"))
    blocked = folder / "blocked/dvc"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('there is no DVC here')\n")
    path = os.pathsep.join([os.fspath(programs), "/usr/bin", "/bin"])
    return Workspace(workspace.folder, {**workspace.environment, "PATH": path, "PYTHONPATH": os.fspath(blocked.parent)})


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_everything_is_built_where_there_is_no_dvc(tmp_path: Path) -> None:
    whole = make_workspace(tmp_path)
    whole.take_tiny_values()
    workspace = _without_dvc(tmp_path, whole)
    assert workspace.result(sys.executable, "-c", "import dvc")[0] != 0
    assert shutil.which("dvc", path=workspace.environment["PATH"]) is None
    workspace.run("snakemake", "--cores", "2")
    assert "prediction.within_10pct" in json.loads((workspace.folder / "results" / DEVICE / "metrics.json").read_text())
    page = (workspace.folder / "results/report.html").read_text()
    for place in (f"{DEVICE}-prediction", f"{COLD_DEVICE}-cold-start", f"{COLD_DEVICE}-memory"):
        assert f'id="{place}"' in page
    assert "Nothing to be done" in workspace.run("snakemake", "-n")


#: What Snakemake and DVC say of a mistake that they meet themselves.
NOISE = ("Traceback", "RuleException", "CalledProcessError", "WorkflowError", "Errno", "MissingInputException")


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return make_workspace(tmp_path_factory.mktemp("wrong"))


@pytest.fixture
def workspace(start: Workspace, tmp_path: Path) -> Workspace:
    return start.clone(tmp_path / "clone")


def _refused(workspace: Workspace, *command: str) -> str:
    status, output = workspace.result(*command)
    assert status != 0
    assert output.count("error: ") == 1, output
    assert [word for word in NOISE if word in output] == [], output
    assert "Running stage 'zoo'" not in output
    assert not list((workspace.folder / "data").rglob("*.parquet"))
    return output


def _set(workspace: Workspace, key: str, value: object) -> None:
    path = workspace.folder / "params.yaml"
    params = yaml.safe_load(path.read_text())
    section, _, last = key.rpartition(".")
    (params[section] if section else params)[last] = value
    path.write_text(yaml.safe_dump(params))


@pytest.mark.parametrize(
    ("command", "key", "value", "told"),
    [
        ("dvc repro", "devices", ["cpu-nope"], "unknown device 'cpu-nope': there is no config/devices/cpu-nope.yaml"),
        ("snakemake -n", "zoo.variants_per_familly", 3, "zoo.variants_per_familly: no such field"),
    ],
)
def test_what_is_wrong_in_params_is_named_with_what_to_do(
    workspace: Workspace, command: str, key: str, value: object, told: str
) -> None:
    _set(workspace, key, value)
    output = _refused(workspace, *command.split())
    assert told in output
    assert key != "devices" or ("params.yaml, devices" in output and DEVICE in output.partition("next:")[2])


@pytest.mark.slow  # an experiment in a workspace of its own takes seconds to set up
@pytest.mark.parametrize("used_here", [False, True], ids=["new", "used-here"])
def test_experiment_elsewhere_is_told_to_add_the_device_to_git(workspace: Workspace, *, used_here: bool) -> None:
    text = (workspace.folder / f"config/devices/{DEVICE}.yaml").read_text()
    (workspace.folder / "config/devices/cpu-new.yaml").write_text(text.replace(DEVICE, "cpu-new"))
    if used_here:  # the check has passed with these params, where the file is seen
        _set(workspace, "devices", ["cpu-new"])
        workspace.run("dvc", "repro", "check")
        workspace.run("git", "add", "dvc.lock", "params.yaml")
        workspace.run("git", "commit", "--quiet", "--message", "on a new device")
    output = _refused(workspace, "dvc", "exp", "run", "--temp", "-S", "devices=[cpu-new]")
    assert "unknown device 'cpu-new'" in output
    assert "git add config/devices/cpu-new.yaml" in output


@pytest.mark.long
@pytest.mark.parametrize(("override", "named"), [("+fusion.alhpa=1", "fusion.alhpa"), ("fusion.alpha=-1", "fusion.alpha")])
def test_override_that_does_not_fit_is_named_and_nothing_runs(workspace: Workspace, override: str, named: str) -> None:
    """DVC refuses an unknown key itself, unless it is written with a plus."""
    output = _refused(workspace, "dvc", "exp", "run", "-S", override)
    assert f"params file does not fit: {named}: " in output
    assert "Running stage 'fusion" not in output
    assert "next:  correct the named fields" in output


@pytest.mark.parametrize("option", by_day(["--config", "--configfile"]))
def test_values_given_to_snakemake_are_refused(workspace: Workspace, tmp_path: Path, option: str) -> None:
    """The stages would not see them: without the refusal they were built with those of params.yaml."""
    (tmp_path / "other.yaml").write_text("zoo: {variants_per_family: 1}\n")
    given = "zoo={variants_per_family: 1}" if option == "--config" else str(tmp_path / "other.yaml")
    output = _refused(workspace, "snakemake", "-n", option, given)
    assert "other values than params.yaml" in output
    assert "where: zoo" in output
    assert "dvc exp run -S" in output


@pytest.mark.long
def test_snakemake_takes_the_values_of_the_file_itself(workspace: Workspace) -> None:
    assert "error" not in workspace.run("snakemake", "-n", "--configfile", "params.yaml")


_FOLDER = "workflow/edgeplan/chapters/toy/"
#: Files that `make wire` and `make schema` write.
_GENERATED = {
    *("dvc.yaml", "workflow/code.json", "workflow/rules/toy.smk", "workflow/rules/report.smk"),
    "config/schema/params.schema.json",
}


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    made = make_workspace(tmp_path_factory.mktemp("added"))
    add_toy_chapter(made)
    return made


@pytest.mark.long
def test_a_chapter_touches_its_line_and_its_settings(added: Workspace) -> None:
    changed = {line[3:] for line in added.run("git", "status", "--porcelain", "--untracked-files=all").splitlines()}
    touched = {path for path in changed if not path.startswith(_FOLDER)} - _GENERATED
    assert touched == {"workflow/edgeplan/chapters/__init__.py", "params.yaml"}
    before = json.loads(added.run("git", "show", "HEAD:workflow/code.json"))
    after = json.loads((added.folder / "workflow/code.json").read_text())
    assert {name: digest for name, digest in after.items() if name != "toy"} == before, "no other stage is built again"


@pytest.mark.long
def test_all_that_it_declares_is_there(added: Workspace) -> None:
    values = added.values()
    assert "toy.sizes=[100]" in values
    added.run("edgeplan", "stage", "toy", "--device", DEVICE)
    results = Path("results") / DEVICE / "toy/sorting.csv"
    assert len((added.folder / results).read_text().splitlines()) == 4
    assert "edgeplan stage toy --device {wildcards.device}" in (added.folder / "workflow/rules/toy.smk").read_text()
    assert "rule toy:" in added.run("snakemake", "-n", "--quiet", "host", "--force", str(results))
