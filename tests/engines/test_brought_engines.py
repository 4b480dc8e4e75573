"""An engine of another package, installed in a folder: found by its entry point, and held to the suites that edgeplan ships."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from edgeplan.devices.config import load_device
from edgeplan.engines import registry
from edgeplan.engines.base import EngineSettings
from edgeplan.engines.registry import ENGINES, SETTINGS, engine_class, engine_protocol, setting_protocol
from edgeplan.errors import DeviceError
from edgeplan.support.store import Protocol

LANE = "processes"  # see tests/conftest.py

#: ONNX Runtime without its optimisations stands for an engine that edgeplan does not know.
_PACKAGE = '''
"""A tiny engine."""

from edgeplan.engines.base import Engine, Session, random_inputs
from edgeplan.engines.description import Description, Setting


def _opened(path, threads):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])


class _TinySession(Session):
    def __init__(self, session, inputs):
        self.session, self.inputs, self.names = session, inputs, [output.name for output in session.get_outputs()]

    def run(self):
        self.found = self.session.run(self.names, self.inputs)

    def outputs(self):
        return dict(zip(self.names, self.found))


class Tiny(Engine):
    name = "tiny"

    @classmethod
    def version(cls):
        return "1.0"

    def load(self, model, graph):
        return _TinySession(_opened(model, self.settings.threads), random_inputs(graph))


ENGINE = Description(
    "tiny",
    "pip install tiny-engine",
    "tiny_engine:Tiny",
    {"tiny": Setting("tiny_start", "tiny-engine", "Tiny")},
    {"measure": "tiny/1", "mapping": "tiny-nodes/1", "cold": "tiny-cold/1"},
)
'''
_SUITE = """
from edgeplan.testing.engines import EngineContract
from edgeplan.testing.engines import SettingContract


class TestTiny(EngineContract):
    name = "tiny"


class TestTinyCold(SettingContract):
    name = "tiny"
"""


def _install(folder: Path, points: str) -> None:
    """What an installer leaves in site-packages."""
    (folder / "tiny_engine.py").write_text(_PACKAGE)
    (folder / "tiny_start.py").write_text(SETTINGS["onnxruntime"].program.read_text())
    about = folder / "tiny_engine-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-engine\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{points}")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that packages are found in."""
    monkeypatch.syspath_prepend(tmp_path)
    registry._brought.cache_clear()
    yield tmp_path
    sys.modules.pop("tiny_engine", None)
    registry._brought.cache_clear()


def test_an_engine_of_another_package_stands_beside_ours(folder: Path) -> None:
    _install(folder, "tiny = tiny_engine:ENGINE\n")
    assert [name for name in ENGINES if name not in registry._own()] == ["tiny"]
    assert SETTINGS["tiny"].title == "Tiny"
    assert engine_class("tiny")(EngineSettings()).version() == "1.0"
    assert engine_protocol("measure", "tiny").name == "tiny/1"
    assert setting_protocol("tiny").name == "tiny-cold/1"
    assert engine_protocol("measure", "onnxruntime") == Protocol("onnxruntime/2", ("a29787b50778deab",))
    file = folder / "mine.yaml"
    shipped = yaml.safe_load((Path(__file__).parents[2] / "config/devices/cpu-onnxruntime.yaml").read_text())
    file.write_text(yaml.safe_dump({**shipped, "name": "mine", "engine": "tiny", "options": {}}))
    assert load_device(file).engine == "tiny"


@pytest.mark.long
def test_it_is_held_to_the_suites_that_edgeplan_ships(folder: Path) -> None:
    _install(folder, "tiny = tiny_engine:ENGINE\n")
    (folder / "test_tiny.py").write_text(_SUITE)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.fspath(folder), *sys.path])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", os.fspath(folder), "test_tiny.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    passed = int(done.stdout.split(" passed")[0].split()[-1])
    assert passed >= 9
    assert " failed" not in done.stdout


@pytest.mark.parametrize(
    ("points", "why"),
    [
        ("tiny = absent_engine:ENGINE\n", "cannot be loaded"),
        ("tiny = tiny_engine:Tiny\n", "it is no Description"),
        ("first = tiny_engine:ENGINE\nsecond = tiny_engine:ENGINE\n", "another engine has that name"),
    ],
)
def test_one_that_does_not_fit_is_left_out_with_a_warning(
    folder: Path, points: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    _install(folder, points)
    with caplog.at_level(logging.WARNING):
        assert set(ENGINES) >= {"onnxruntime", "openvino", "onednn"}
    assert why in caplog.text
    assert ("tiny" in ENGINES) == ("second" in points)


def test_an_engine_without_a_protocol_is_not_measured(folder: Path) -> None:
    _install(folder, "tiny = tiny_engine:ENGINE\n")
    (folder / "tiny_engine.py").write_text(_PACKAGE.replace('"measure": "tiny/1", ', ""))
    with pytest.raises(DeviceError, match="no measuring protocol 'measure/tiny'"):
        engine_protocol("measure", "tiny")


def test_a_command_that_needs_our_engines_alone_looks_for_no_others() -> None:
    """Reading the entry points of everything that is installed takes longer than a prediction."""
    code = (
        "from edgeplan.devices.config import load_device\n"
        "from edgeplan.engines import registry\n"
        "def refuse(**_):\n    raise AssertionError\n"
        "registry.entry_points = refuse\n"
        "load_device('cpu-onnxruntime'); registry.engine_class('onnxruntime'); registry.setting('onnxruntime')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
