"""Files predicted by what is executed of them, measured further where little is known, compared as they ran, and adapted."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executed_nodes import CACHE, drawn, key, model, node, product, relu, transpose
from model_file_runs import made, write
from model_file_runs import node as operator
from quantised_models import quantised
from quick_bench import DEVICE, measuring_alone  # noqa: F401  a fixture
from trained_nodes import RULES, SETTINGS, conv, device_file, trained, write_device

import edgeplan
from depth import by_day
from edgeplan.chapters.prediction import api
from edgeplan.chapters.prediction.adapting import adapt_device
from edgeplan.chapters.prediction.paper import paper_kernel
from edgeplan.errors import DeviceError
from edgeplan.graph.kernel_nodes import FUSED
from edgeplan.graph.nodes import NodeConfig
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.measurement.local import WholeModel, measure_subject
from edgeplan.measurement.records import FileSubject, Subject
from edgeplan.predictors import source
from edgeplan.predictors.nodes.learner import Samples, learn
from edgeplan.predictors.nodes.storing import own_folder, read_kernels, read_measured
from edgeplan.predictors.source import find_predictors
from edgeplan.predictors.teller import Teller
from edgeplan.support.files import write_json
from edgeplan.support.machine import fingerprint

HERE, ELSEWHERE = {"fingerprint": fingerprint(), "cpu": "Mine"}, {"fingerprint": "f", "cpu": "Another"}
NOMINAL = {"nominal_compute_us": 100.0, "nominal_bandwidth_us": 400.0}
ERF = node("Erf", [(1, 4096)], (1, 4096))


@pytest.fixture(name="space")
def _space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with one device of this machine's ONNX Runtime."""
    (tmp_path / "config/devices").mkdir(parents=True)
    device_file(tmp_path / "config/devices")
    monkeypatch.setenv("EDGEPLAN_WORKSPACE", str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def _nothing_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "SHIPPED", tmp_path / "shipped")


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    """A product that the predictor knows the likes of, and two operators that it does not."""
    weights = {"w": np.full((256, 64), 0.01, np.float32)}
    steps = [operator("MatMul", "x w", "h"), operator("Erf", "h", "e"), operator("Erf", "e", "y")]
    return write(made(steps, {"x": (16, 256)}, weights), tmp_path / "erf.onnx")


def test_kernels_and_the_call_add_up_to_the_whole(tmp_path: Path) -> None:
    configs = [product(16, 256, 64), relu(4096), ERF, transpose(64, 64)]
    one = model("m", configs, times=3)
    one = replace(one, nodes=tuple(replace(n, operators=(f"op{i}",), name="same") for i, n in enumerate(one.nodes)))
    write_device(tmp_path, known={relu(4096).key: 7.0})
    found = api.predict_executed(one, find_predictors(str(device_file(tmp_path)), tmp_path))
    assert sum(k.latency_ms for k in found.kernels) + found.call_ms == pytest.approx(found.latency_ms)
    assert sum(k.share for k in found.kernels) + found.call_ms / found.latency_ms == pytest.approx(1)
    assert [k.source for k in found.kernels] == ["learnt", "measured", "guessed", "learnt"]
    assert [k.operators for k in found.kernels] == [(f"op{i}",) for i in range(4)]  # whatever the names of the nodes
    assert found.kernels[1].latency_ms == pytest.approx(3 * 7.0 / 1e3)
    for name, share in found.shares.items():
        assert share == pytest.approx(sum(k.share for k in found.kernels if k.source == name))
    guess = found.kernels[2]
    assert (guess.low_ms, guess.high_ms) == (None, None)
    for k in (*found.kernels[:2], found.kernels[3]):
        assert (k.low_ms or np.inf) < k.latency_ms < (k.high_ms or 0)
    assert found.predicted_for.told_by == "an engine"  # which is not the one that was measured


def test_the_papers_kernel_of_a_node() -> None:
    """It does not hang on the engine, which may tell how it computes, and in what layout."""
    for config, kernel in (
        (conv(16, 8), "conv"),
        (conv(16, 8, 16), "dwconv"),
        (NodeConfig("Conv", "com.microsoft.nchwc", (), conv(16, 8).inputs, conv(16, 8).outputs), "conv"),
        (product(4, 8, 8), "fc"),
        (node("Gemm", [(4, 8), (8, 8)], (4, 8), weights=1), "fc"),
        (node("MaxPool", [(1, 4, 8, 8)], (1, 4, 4, 4), kernel_shape=(2, 2)), "maxpool"),
        (node("GlobalAveragePool", [(1, 4, 8, 8)], (1, 4, 1, 1)), "avgpool"),
        *((transpose(8, 9), "transpose"), (node("Add", [(4, 8), (4, 8)], (4, 8)), "add"), (relu(8), "relu"), (ERF, "erf")),
    ):
        assert paper_kernel(key(config)) == kernel
        for way in ("blocked.jit:avx512_core", "Convolution.brgconv_avx512_1x1_f32"):
            told = tuple(sorted({**dict(config.attributes), "implementation": way}.items()))
            assert paper_kernel(key(NodeConfig(config.op, FUSED, told, config.inputs, config.outputs))) == kernel


@pytest.mark.parametrize("about", by_day([{**ELSEWHERE, **NOMINAL}, None, HERE, ELSEWHERE], least=2))
def test_what_is_measured_is_kept_and_known_to_the_next_prediction(
    space: Path, file: Path, about: dict[str, Any] | None
) -> None:
    write_device(space / "results", environment=about)
    first = edgeplan.predict(file, "dev")
    assert [k.source for k in first.kernels] == ["learnt", "guessed", "guessed"]
    measured = edgeplan.predict(file, "dev", measure=5.0)
    assert {k.source for k in measured.kernels if k.type == "Erf"} == {"measured"}
    kept = read_measured(own_folder("dev", "onnxruntime", trained().engine_version))
    assert kept
    assert measured.kernels[1].latency_ms * 1e3 in [pytest.approx(us, rel=1e-4) for us in kept.values()]
    again = edgeplan.predict(file, "dev")
    assert [k.source for k in again.kernels] == [k.source for k in measured.kernels]
    assert again.latency_ms == pytest.approx(measured.latency_ms, rel=1e-4)
    assert again.low_ms is not None  # nothing is guessed any more


def test_nothing_is_measured_of_what_is_known_well_enough(space: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = Teller(DEVICE, RULES).of_file(file, Preparation()).nodes
    write_device(space / "results", known={one.config.key: 5.0 for one in nodes}, environment=HERE)
    monkeypatch.setattr("edgeplan.chapters.prediction.api.Bench", lambda *_: pytest.fail("measured"))
    assert edgeplan.predict(file, "dev", measure=5.0).shares["measured"] > 0.8


def test_times_of_another_machine_are_scaled_by_references(space: Path, file: Path) -> None:
    write_device(space / "results", environment=HERE)
    here = edgeplan.predict(file, "dev")
    write_device(space / "results", environment={**ELSEWHERE, **NOMINAL})
    kept = {"compute_us": 200.0, "bandwidth_us": 400.0}  # this machine's, from a second of them at some time
    write_json(space / "state/edgeplan/references" / f"{fingerprint()}-dev.json", kept)
    scaled = edgeplan.predict(file, "dev")
    factor = 2**0.8
    assert scaled.latency_ms == pytest.approx(factor * here.latency_ms)
    assert [k.latency_ms for k in scaled.kernels] == pytest.approx([factor * k.latency_ms for k in here.kernels])
    assert (here.about, scaled.about) == ("", f"predicted for this machine: {factor:.2f} times that of Another, by references")
    write_device(space / "results", environment=ELSEWHERE)
    unscaled = edgeplan.predict(file, "dev")
    assert unscaled.latency_ms == pytest.approx(here.latency_ms)
    assert "for Another" in unscaled.about


@pytest.mark.parametrize("form", by_day(["dynamic", "float"]))
def test_truth_is_the_file_itself_as_it_ran(space: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_device(space / "results", environment=HERE)
    quantised(space, "dynamic")
    path = space / f"{form}.onnx"
    ran: list[tuple[Subject | FileSubject, WholeModel]] = []

    def spy(*given: Any) -> WholeModel:
        ran.append((given[1], measure_subject(*given)))
        return ran[-1][1]

    monkeypatch.setattr(api, "measure_subject", spy)
    monkeypatch.setattr(api, "prepare_file", lambda *_: pytest.fail("prepared"))
    found = edgeplan.measure(path, "dev", seconds=0.3)
    ((subject, whole),) = ran
    assert isinstance(subject, FileSubject)
    assert subject.write(space / "elsewhere.onnx") == path
    assert found.latency_ms == float(np.median(whole.measurement.median_us)) / 1e3
    types = {k.type for k in found.kernels}
    assert ("ConvInteger" in types) == (form == "dynamic")
    assert all(k.measured_ms and k.predicted_ms and k.deviation is not None for k in found.kernels)
    assert found.prediction is not None
    assert len(found.kernels) == len(found.prediction.kernels)
    assert found.deviation == found.prediction.latency_ms / found.latency_ms - 1


@pytest.mark.usefixtures("space")
def test_a_model_is_measured_without_predictors_too(file: Path) -> None:
    found = edgeplan.measure(file, "dev", seconds=0.2)
    assert (found.prediction, found.kernels, found.deviation, found.inside) == (None, (), None, None)
    assert "no predictors" in found.without_prediction
    assert found.latency_ms > 0


@pytest.mark.long
def test_adapting_finds_that_a_prior_is_twice_too_slow(space: Path) -> None:
    """The prior is trained on twice what nodes take here; what is adapted on it takes half of what it says."""
    configs = [*dict.fromkeys(drawn(np.random.default_rng(1), 36))]
    here = api.measure_configs(DEVICE, configs, 1 << 20)
    kept = [config for config in configs if config.key in here]
    doubled = Samples.of(kept, [1 << 20] * len(kept), [2 * here[c.key] for c in kept], [f"m{i % 9}" for i in range(len(kept))])
    prior = replace(trained(), kernels=learn(doubled, CACHE, SETTINGS))
    write_device(
        space / "results", prior, name="old", kernels=[(c, 1 << 20, 2 * here[c.key]) for c in kept], environment=ELSEWHERE
    )
    adapted = adapt_device("dev", seconds=5.0)
    assert (adapted.device, adapted.old, adapted.folder) == ("dev", "old", space / "results/dev/predictors")
    assert adapted.kernels >= 12
    found = find_predictors("dev")
    assert found.here
    assert {config.key: us for config, _, us in read_kernels(found.folder)} == pytest.approx(found.known, rel=1e-6)
    assert len(found.known) == adapted.kernels  # and so it can be the prior of others
    tested = drawn(np.random.default_rng(2), 36)
    ratio = found.predictor.nodes_us(tested, 1 << 20) / prior.nodes_us(tested, 1 << 20)
    assert 0.35 < np.median(ratio) < 0.7


def test_nothing_is_adapted_from_devices_of_other_engines(space: Path) -> None:
    write_device(space / "results", replace(trained(), engine="openvino"), name="old")
    with pytest.raises(DeviceError, match="no device of engine onnxruntime") as caught:
        adapt_device("dev")
    assert "make reproduce DEVICE=dev" in caught.value.next_step
    with pytest.raises(DeviceError, match="onnxruntime cannot run the nodes that openvino tells"):
        adapt_device("dev", "old")
