"""The package as a wheel: it predicts where there is neither a checkout nor a workspace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from workspace import make_workspace

from edgeplan.graph.onnx.write import save_onnx
from edgeplan.zoo import prior_models

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

_CLEARED = ("PYTHONPATH", "EDGEPLAN_WORKSPACE", "VIRTUAL_ENV")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, installed from a wheel that was built of the tree; what it depends on is that of this environment."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = make_workspace(folder / "built").folder
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = [
        *pip,
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "--wheel-dir",
        os.fspath(folder),
        os.fspath(tree),
    ]
    subprocess.run(built, check=True)
    (wheel,) = folder.glob("*.whl")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv/bin/python"
    subprocess.run([*pip, f"--python={python}", "install", "--no-deps", "--no-index", os.fspath(wheel)], check=True)
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    # a line of a .pth file is a folder of modules alone: what points from there to the checkout is not followed
    places = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (packages / "dependencies.pth").write_text("\n".join(places) + "\n")
    return folder / "venv/bin/edgeplan"


def _environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _CLEARED}
    return {**kept, "HOME": os.fspath(folder), "XDG_STATE_HOME": os.fspath(folder / "state")}


def test_the_package_is_that_of_the_wheel(program: Path, tmp_path: Path) -> None:
    command = [program.with_name("python"), "-c", "import edgeplan; print(edgeplan.__file__)"]
    found = subprocess.run(command, cwd=tmp_path, env=_environment(tmp_path), check=True, capture_output=True, text=True)
    assert Path(found.stdout.strip()).is_relative_to(program.parents[1])


@pytest.mark.parametrize("device", ["cpu-onnxruntime", "cpu-openvino", "cpu-onednn"])
def test_it_predicts_in_an_empty_folder(program: Path, tmp_path: Path, device: str) -> None:
    model = save_onnx(prior_models()["resnet18"](), tmp_path / "resnet18.onnx")

    def said(*options: str) -> str:
        command = [program, "predict", model.name, "--device", device, *options]
        done = subprocess.run(command, cwd=tmp_path, env=_environment(tmp_path), check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout

    found = json.loads(said("--json"))
    assert 0 < found["low_ms"] < found["latency_ms"] < found["high_ms"]
    assert "machine" in said().splitlines()[0]  # whose it is
    assert {path.name for path in tmp_path.iterdir()} <= {model.name, "state", ".cache"}
