"""Runs that start from a wrong params.yaml: the mistake is told at once, by one message, before anything is built."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from workspace import DEVICE, Workspace, make_workspace

from depth import by_day

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


@pytest.mark.parametrize("command", by_day([("dvc", "repro"), ("snakemake", "-n")]))
def test_device_without_a_file_is_named_with_what_to_do(workspace: Workspace, command: tuple[str, ...]) -> None:
    _set(workspace, "devices", ["cpu-nope"])
    output = _refused(workspace, *command)
    assert "unknown device 'cpu-nope': there is no config/devices/cpu-nope.yaml" in output
    assert "params.yaml, devices" in output
    assert DEVICE in output.partition("next:")[2]


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


@pytest.mark.parametrize("command", by_day([("snakemake", "-n"), ("dvc", "repro"), ("snakemake", "--cores", "1")]))
def test_misspelt_parameter_is_named(workspace: Workspace, command: tuple[str, ...]) -> None:
    _set(workspace, "zoo.variants_per_familly", 3)
    assert "zoo.variants_per_familly: no such field" in _refused(workspace, *command)


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
