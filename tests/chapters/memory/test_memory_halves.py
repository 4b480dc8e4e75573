"""Plans with weights in half their bytes: what is planned, told and refused, and the study of what they gain."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from plan_folders import body_of, changed_plan
from streamed_models import plain_model

from edgeplan import plan_memory
from edgeplan.chapters.memory.folders import RunCores
from edgeplan.chapters.memory.plan import MemoryPlanned
from edgeplan.chapters.memory.settings import MemorySettings
from edgeplan.chapters.memory.studies import StudiedModel, halved
from edgeplan.errors import CheckError, FormatError, ParamsError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.program_file import PROGRAM_BIN, Section, rows_of
from edgeplan.runtime.streaming.schedules import HALVES_TOLERANCE, MemoryPrediction, stored_as

LANE = "processes"  # see tests/conftest.py
Edgeplan = Callable[..., Any]
_BUDGET = "64MiB"


@pytest.fixture(scope="module")
def model(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights take more than a page a step."""
    assert dnnl.info.version  # where the library is not there, nothing can be planned
    return save_onnx(plain_model(), tmp_path_factory.mktemp("halves") / "plain.onnx")


@pytest.fixture(scope="module")
def made(model: Path) -> MemoryPlanned:
    """A plan with weights in half their bytes."""
    return plan_memory(model, model.with_name("halves"), _BUDGET, weights="bf16")


@pytest.fixture(scope="module")
def cancelling(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights cancel out but for what is lost when they are rounded."""
    assert dnnl.info.version  # see above
    b = GraphBuilder("cancelling", (1, 64))
    path = save_onnx(b.build(b.fc(b.fc("input", 64), 64)), tmp_path_factory.mktemp("cancelling") / "cancelling.onnx")
    document = onnx.load(path)
    constant, weights, *_ = (one for one in document.graph.initializer if len(one.dims) == 2)
    ones = np.zeros((64, 64), np.float32)
    alternating = np.tile(np.array([1.003, -1.0], np.float32), (64, 32))
    for one, values in ((constant, ones), (weights, alternating)):
        one.CopyFrom(numpy_helper.from_array(values, one.name))
    for one in document.graph.initializer:
        if len(one.dims) == 1:
            one.CopyFrom(numpy_helper.from_array(np.ones(64, np.float32), one.name))
    onnx.save(document, path)
    return path


def test_a_plan_reads_half_the_bytes_and_tells_its_error(made: MemoryPlanned, model: Path) -> None:
    stored = sum(step.stored_bytes for step in made.candidate.program.steps)
    assert stored < 0.6 * sum(made.document.weight_bytes)
    assert (made.folder / "weights.bin").stat().st_size == stored
    assert made.error is not None
    assert 1e-4 < made.error < HALVES_TOLERANCE  # more than rounding of sums
    assert not made.inexact
    assert made.candidate.profile.widened_per_ms > 0
    plan = read_folder(made.folder)
    assert stored_as(plan) == "bf16"
    assert plan.predicted(MemoryPrediction).error == made.error
    assert made.candidate.reader.chunk_bytes == 4 << 20
    found = run(plan, check=True, model=model, repeat=2)
    assert found.difference == pytest.approx(made.error, rel=0.5)
    found.require_checked()


def test_smaller_budgets_run_by_the_same_halves(made: MemoryPlanned) -> None:
    whole = run(made.folder).outputs
    (schedules,) = rows_of(made.folder / PROGRAM_BIN, Section.SCHEDULES)
    small = run(made.folder, budgets=[str(schedules["budget_bytes"][1])], repeat=2)
    assert small.phases[0].read_bytes > 0
    for name, values in small.outputs.items():
        assert values.tobytes() == whole[name].tobytes()


def test_weights_too_inexact_are_told_loudly(edgeplan: Edgeplan, cancelling: Path) -> None:
    planned = edgeplan(
        "plan", "memory", str(cancelling), "-b", _BUDGET, "-o", "plan", "--weights", "bf16", folder=cancelling.parent
    )
    assert planned.code == 0, planned.err
    assert f"MORE THAN {HALVES_TOLERANCE:g}: plan again with --weights f32" in planned.out
    plan = read_folder(cancelling.parent / "plan")
    found = run(plan, check=True)
    with pytest.raises(CheckError, match="its weights are stored as bf16") as told:
        found.require_checked()
    assert "--weights f32" in (told.value.next_step or "")
    ran = edgeplan("run", "plan", "--check", folder=cancelling.parent)
    assert ran.code == CheckError.exit_code


def test_a_plan_says_nothing_of_weights_that_are_whole(model: Path, tmp_path: Path) -> None:
    made = plan_memory(model, tmp_path / "plan", _BUDGET)
    assert (made.weights, made.error) == ("f32", None)
    body = body_of(made.folder)
    assert "weights" not in body["schedule"]
    assert "error" not in body["prediction"]
    assert stored_as(read_folder(made.folder)) == "f32"


@pytest.mark.parametrize("kind", ["fp8", ""])
def test_kinds_of_weights_that_are_not_known_are_refused(made: MemoryPlanned, model: Path, tmp_path: Path, kind: Any) -> None:
    with pytest.raises(ParamsError, match="there is no kind of weights"):
        plan_memory(model, tmp_path / "plan", _BUDGET, weights=kind)
    for path in made.folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    changed_plan(tmp_path, lambda body: body["schedule"].update(weights=kind))
    with pytest.raises(FormatError, match="has another format") as told:
        stored_as(read_folder(tmp_path))
    assert "edgeplan plan memory" in (told.value.next_step or "")


def test_both_kinds_are_run_in_turns(model: Path, tmp_path: Path, cores: RunCores) -> None:
    settings = MemorySettings(
        devices=["cpu-onednn"], models=("vgg19",), settings=("onnxruntime",), shares=(0.5,), threads=1, runs=3,
        halved_model="vgg19", halved_shares=(1e-6, 1.0), halved_pairs=2,
    )  # fmt: skip
    rows = list(halved(StudiedModel("plain", model, tmp_path, cores, settings), 16 << 20))
    assert [(row["share"], row["setting"]) for row in rows] == [(s, kind) for s in (1e-6, 1.0) for kind in ("f32", "bf16")]
    assert all("is not enough" in row["reason"] for row in rows[:2])
    whole, half = rows[2:]
    assert np.isnan(whole["error"])
    assert 1e-4 < half["error"] < HALVES_TOLERANCE
    assert half["weights"] < 0.6 * whole["weights"]
    for row in (whole, half):
        assert row["pairs"] == 2
        assert 0 < row["least_ms"] <= row["median_ms"]
        assert 0 < row["peak"] <= 16 << 20


def test_the_model_of_the_study_is_one_of_those_measured() -> None:
    with pytest.raises(ValueError, match="is none of the models"):
        MemorySettings(
            devices=["cpu-onednn"], models=("vgg19",), settings=("onnxruntime",), shares=(0.5,), threads=1, runs=3,
            halved_model="squeezenet",
        )  # fmt: skip
