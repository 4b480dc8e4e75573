"""Cold runs in fresh processes, with the real engines, on a tiny network."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgeplan.cold.jobs import PrepareJob, RunJob
from edgeplan.cold.process import ColdRunError, prepare_offline, run_cold
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx_export import save_onnx

INPUTS = {"input": (1, 3, 32, 32)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    b = GraphBuilder("tiny", INPUTS["input"])
    x = b.conv_bn(b.input, 16, 3, 2)
    y = b.conv_bn(x, 16, 3, groups=16, act="relu6")
    x = b.relu(b.add(b.conv_bn(y, 16, 1, act=""), x))
    x = b.softmax(b.fc(b.flatten(b.gap(x)), 10))
    return save_onnx(b.build(x), tmp_path_factory.mktemp("model") / "tiny.onnx")


@pytest.fixture(scope="module")
def reference(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "outputs.npz"
    job = PrepareJob(setting="onnxruntime", threads=1, model=model, inputs=INPUTS, folder=path.parent)
    artefact = prepare_offline(job).artefact
    assert artefact is not None
    run_cold(RunJob(setting="onnxruntime", threads=1, artefact=artefact, inputs=INPUTS, state="cached", save_outputs=path))
    return path


@pytest.mark.parametrize("setting", ["onnxruntime", "onnxruntime-optimised", "onnxruntime-prepacked"])
def test_stock_settings_agree_with_onnxruntime(setting: str, model: Path, reference: Path, tmp_path: Path) -> None:
    job = PrepareJob(setting=setting, threads=1, model=model, inputs=INPUTS, folder=tmp_path)
    artefact = prepare_offline(job).artefact
    assert artefact is not None
    result = run_cold(
        RunJob(setting=setting, threads=1, artefact=artefact, inputs=INPUTS, state="cached", warm_runs=3, reference=reference)
    )
    assert result.output_error is not None
    assert result.output_error < 1e-4
    assert result.state_reached
    assert len(result.warm_ms) == 3
    assert result.cold_ms == pytest.approx(result.stages_ms["open"] + result.stages_ms["first_run"])


def test_a_crashing_worker_gives_one_clear_error(model: Path) -> None:
    from edgeplan.cold.jobs import Artefact  # noqa: PLC0415

    broken = model.with_name("broken.onnx")
    broken.write_bytes(b"not a model")
    artefact = Artefact(main=broken, files=(broken,))
    with pytest.raises(
        ColdRunError, match=r"(?s)cold run of onnxruntime on broken\.onnx: .*exit code 1.*INVALID_PROTOBUF|Protobuf"
    ):
        run_cold(RunJob(setting="onnxruntime", threads=1, artefact=artefact, inputs=INPUTS, state="cached"))
