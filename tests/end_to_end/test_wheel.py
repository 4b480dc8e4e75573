"""The package as a wheel: it predicts, plans and runs where there is neither a checkout nor a workspace."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from workspace import ROOT, make_workspace

from edgeplan.graph.onnx.write import save_onnx
from edgeplan.zoo import prior_models

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_CLEARED = ("PYTHONPATH", "EDGEPLAN_WORKSPACE", "VIRTUAL_ENV")


_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
#: What pip says where there is no index to install from.
_OFFLINE = ("No matching distribution found", "Could not find a version", "Connection", "Failed to establish")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = make_workspace(folder / "built").folder
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", os.fspath(folder)]
    subprocess.run([*_PIP, "wheel", *options, os.fspath(tree)], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, installed from the wheel; what it depends on is that of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv/bin/python"
    subprocess.run([*_PIP, f"--python={python}", "install", "--no-deps", "--no-index", os.fspath(wheel)], check=True)
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    # a line of a .pth file is a folder of modules alone: what points from there to the checkout is not followed
    places = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (packages / "dependencies.pth").write_text("\n".join(places) + "\n")
    return folder / "venv/bin/edgeplan"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, installed with its extra `runtime` into an empty environment, as README.md says."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    command = [*_PIP, f"--python={folder / 'venv/bin/python'}", "install", f"{wheel}[runtime]"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=_cleared())
    if done.returncode and any(text in done.stderr for text in _OFFLINE):
        pytest.skip("no package index to install from")
    assert done.returncode == 0, done.stderr
    return folder / "venv/bin/edgeplan"


def _cleared() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _CLEARED}


def _ended(command: Path, folder: Path, *words: str) -> tuple[int, str]:
    """Exit status and output of a command in a folder."""
    environment = {**_cleared(), "HOME": os.fspath(folder), "XDG_STATE_HOME": os.fspath(folder / "state")}
    done = subprocess.run([command, *words], cwd=folder, env=environment, check=False, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_the_package_is_that_of_the_wheel(program: Path, tmp_path: Path) -> None:
    _, found = _ended(program.with_name("python"), tmp_path, "-c", "import edgeplan; print(edgeplan.__file__)")
    assert Path(found.strip()).is_relative_to(program.parents[1])


@pytest.fixture(params=["program", "installed"])
def command(request: pytest.FixtureRequest) -> Path:
    """The command, with the packages of this environment, and with those of an index."""
    return Path(request.getfixturevalue(request.param))


def test_every_wish_is_served_in_an_empty_folder(command: Path, tmp_path: Path) -> None:
    def said(*words: str) -> str:
        code, told = _ended(command, tmp_path, *words)
        assert code == 0, f"{words}: {told}"
        return told

    assert said("--version").startswith("edgeplan ")
    said("export", "squeezenet", "-o", "models/net.onnx")
    for device in ("cpu-onnxruntime", "cpu-openvino", "cpu-onednn"):
        answer = said("predict", "models/net.onnx", "-d", device)
        assert " ms (90 % interval" in answer
        assert "machine" in answer.splitlines()[0]  # whose it is
    assert {path.name for path in tmp_path.iterdir()} <= {"models", "state", ".cache"}
    planned = said("plan", "cold-start", "models/net.onnx", "--costs", "predicted", "-o", "cold")
    assert "ms predicted (predicted costs" in planned
    assert "largest difference from ONNX Runtime" in said("run", "cold", "--check")
    assert "measured peak" in said("plan", "memory", "models/net.onnx", "-b", "16MiB", "-o", "memory")
    ran = said("run", "memory", "--check", "-o", "out/y.npz")
    assert "largest difference from ONNX Runtime" in ran
    told = r"peak ([\d.]+) MiB, [\d.]+ before the plan was opened: [\d.]+ over the ([\d.]+) of the idle process, budget 16.00"
    peak = re.search(told, ran)
    assert peak
    assert float(peak[1]) <= float(peak[2]) + 16
    assert (tmp_path / "out/y.npz").is_file()


def test_pairs_are_known_as_in_a_checkout(program: Path, tmp_path: Path) -> None:
    """Their devices are found and their cores looked at; a plan by predictors asks for what a checkout measures."""
    model = save_onnx(prior_models()["resnet18"](), tmp_path / "resnet18.onnx")

    for pair in sorted(path.stem for path in (ROOT / "config/pairs").glob("*.yaml")):
        code, said = _ended(program, tmp_path, "device", "check", "--pair", pair)
        assert code == 0, said
        assert re.search(rf"^pair +{pair}\ncpu +oneDNN .*\ngpu ", said), said
        code, said = _ended(
            program, tmp_path, "plan", "partition", model.name, "--pair", pair, "-o", "plan", "--costs", "predicted"
        )
        assert code, said
        assert f"dvc repro partition@{pair}" in said
    assert "known pairs: pair-pocl" in _ended(program, tmp_path, "device", "check", "--pair", "pair-none")[1]
