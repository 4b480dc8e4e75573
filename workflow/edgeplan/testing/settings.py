"""This contract holds a setting that is started cold to edgeplan's demands: subclass `SettingContract` and name the setting.

    class TestMine(SettingContract):
        name = "mine-cached"

Each start is a process of its own, as when it is measured.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from edgeplan.engines.cold import Artefact
from edgeplan.engines.registry import setting, setting_protocol
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.child import prepare_offline, run_cold
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.measurement.process.job import PrepareJob, RunJob, RunResult
from edgeplan.measurement.process.program import Program
from edgeplan.support.tensors import OUTPUT_TOLERANCE

_INPUTS: dict[str, tuple[int, ...]] = {"input": (1, 3, 32, 32)}
_REFERENCE = "onnxruntime"
_TELL_MODULES = """
import signal
import sys


def tell(number, frame):
    with open({told!r}, "w") as file:
        file.write("\\n".join(sys.modules))


signal.signal(signal.SIGUSR1, tell)
"""


class SettingContract:
    """A contract holds a setting to its interface; `name` is the setting's, as in `cold_start.settings`."""

    name: ClassVar[str] = ""

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """Return the path of a small classifier."""
        b = GraphBuilder("small", _INPUTS["input"])
        x = b.conv_bn(b.input, 16, 3, 2)
        y = b.conv_bn(x, 16, 3, groups=16, act="relu6")
        x = b.relu(b.add(b.conv_bn(y, 16, 1, act=""), x))
        return save_onnx(b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 10))), tmp_path / "small.onnx")

    @pytest.fixture
    def artefact(self, model: Path, tmp_path: Path) -> Artefact:
        """Prepare the setting's artefact; the tests are skipped where its engine is not installed."""
        return _prepared(self.name, model, tmp_path / "artefact")

    def test_rows_have_a_protocol(self) -> None:
        """Rows are keyed by it."""
        assert setting_protocol(self.name).name
        assert setting(self.name).title

    def test_outputs_are_those_of_onnx_runtime(self, artefact: Artefact, model: Path, tmp_path: Path) -> None:
        """Outputs agree in single precision, on one thread and on two."""
        wanted = tmp_path / "outputs.npz"
        _started(_REFERENCE, _prepared(_REFERENCE, model, tmp_path / "reference"), save_outputs=wanted)
        for threads in (1, 2):
            found = _started(self.name, artefact, threads=threads, reference=wanted)
            assert found.output_error is not None
            assert found.output_error < OUTPUT_TOLERANCE

    def test_opening_and_the_first_run_are_what_is_timed(self, artefact: Artefact) -> None:
        """Hold that opening and the first run are timed, and further runs apart."""
        found = _started(self.name, artefact, warm_runs=3)
        assert found.reason == ""
        assert found.cold_ms == pytest.approx(found.stages_ms["open"] + found.stages_ms["first_run"])
        assert len(found.warm_ms) == 3

    def test_a_stock_engine_is_started_with_nothing_of_edgeplan(self, artefact: Artefact, tmp_path: Path) -> None:
        """Hold that the process of a stock setting has no module of edgeplan."""
        if not setting(self.name).stock:
            pytest.skip("it is edgeplan's own")
        assert own_modules(self.name, artefact, _INPUTS, tmp_path) == []


def own_modules(name: str, artefact: Artefact, inputs: Mapping[str, tuple[int, ...]], folder: Path) -> list[str]:
    """Return edgeplan's modules in `sys.modules` of a setting's process, which has opened and run a model.

    Args:
        name: of the setting.
        artefact: what it opens.
        inputs: shapes of its inputs.
        folder: to write to.
    """
    hook, told = folder / "hook", folder / "modules.txt"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(_TELL_MODULES.format(told=str(told)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(hook), os.environ.get("PYTHONPATH")))))
        with Program(name, artefact, random_inputs(inputs, 0), threads=1) as program:
            program.go()
            os.kill(program.number, signal.SIGUSR1)
            assert len(list(program.run(1))) == 1, "it has answered the signal before"
    modules = told.read_text().split()
    assert "numpy" in modules
    return [module for module in modules if module.partition(".")[0] == "edgeplan"]


def _prepared(name: str, model: Path, folder: Path) -> Artefact:
    folder.mkdir()
    made = prepare_offline(PrepareJob(setting=name, threads=1, model=model, inputs=_INPUTS, folder=folder))
    if made.artefact is None:
        if "not installed" in made.reason:
            pytest.skip(made.reason)
        raise AssertionError(made.reason)
    return made.artefact


def _started(name: str, artefact: Artefact, threads: int = 1, **more: object) -> RunResult:
    job = {"setting": name, "threads": threads, "artefact": artefact, "inputs": _INPUTS, "state": "cached", **more}
    return run_cold(RunJob.model_validate(job))
