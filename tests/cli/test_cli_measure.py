"""`edgeplan measure`: real runs beside predictions, whole and kernel by kernel, whatever the machine's noise."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from law_of_latency import trained_once, without_samples
from onnx_models import W, conv, model
from test_cli_predict import FIRST, SECOND, write_model
from typer.testing import CliRunner, Result

from depth import by_day
from edgeplan import measure, predict
from edgeplan.chapters.prediction.comparison import Measured, compare_kernels
from edgeplan.chapters.prediction.model_prediction import KernelLatency, PredictedFor, Prediction
from edgeplan.cli import app
from edgeplan.cli import measure as cli_measure
from edgeplan.engines.base import EngineNode, EngineSettings
from edgeplan.engines.registry import ENGINES, engine_class
from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.onnx.names import named_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.graph.splitting import split
from edgeplan.measurement import nominal
from edgeplan.measurement.records import Measurement
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.measurement.settings import ReferenceExponents
from edgeplan.support.files import write_json
from edgeplan.zoo import prior_models

RULES = FusionRules(pairs={"conv_bn": True, "bn_relu": True, "conv_relu": True})
FIELDS = {
    "model",
    "device",
    "latency_ms",
    "noise",
    "waited",
    "throttled",
    "prediction",
    "deviation",
    "inside_interval",
    "kernels",
}


@pytest.fixture(autouse=True)
def measuring_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace and state folder of the test's own, and references that take no three seconds to settle."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(nominal, "_SECONDS", 0.02)
    write_model(tmp_path / "camera.onnx")
    device()


def device(engine: str = "onnxruntime", **fields: object) -> None:
    document = {"format_version": 1, "name": "bench", "engine": engine, "cores": [min(os.sched_getaffinity(0))], **fields}
    Path("config/devices").mkdir(parents=True, exist_ok=True)
    Path("config/devices/bench.yaml").write_text(yaml.safe_dump(document))


def predictors() -> None:
    without_samples(trained_once()[0]).save(Path("results/bench/predictors"))  # no model stood around these
    RULES.write(Path("results/bench/fusion/rules.json"))


def measured(*more: str) -> Result:
    before = os.sched_getaffinity(0)
    done = CliRunner().invoke(app, ["measure", "camera.onnx", "-d", "bench", "--seconds", "1", *more])
    assert os.sched_getaffinity(0) == before
    return done


@pytest.mark.parametrize("engine", by_day([*ENGINES], least=2))
def test_each_engine_is_measured_beside_the_prediction(engine: str) -> None:
    try:
        engine_class(engine)(EngineSettings())
    except DeviceError as error:
        pytest.skip(error.what)
    device(engine)
    predictors()
    done = measured("--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found.keys() >= FIELDS
    wanted = predict("camera.onnx", "bench")
    assert found["prediction"]["latency_ms"] == wanted.latency_ms
    assert found["deviation"] == pytest.approx(wanted.latency_ms / found["latency_ms"] - 1)
    assert found["inside_interval"] == (wanted.low_ms <= found["latency_ms"] <= wanted.high_ms)
    assert 0 < found["least_ms"] <= found["median_ms"]
    convolutions = [k for k in found["kernels"] if FIRST in k["name"] and k["type"] != "reorder"]
    assert len(convolutions) == 1
    assert convolutions[0]["measured_ms"] > 0
    assert convolutions[0]["predicted_ms"] > 0
    assert any(SECOND in k["name"] for k in found["kernels"])
    told = sum(k["predicted_ms"] or 0 for k in found["kernels"])
    assert told + found["prediction"]["call_ms"] == pytest.approx(wanted.latency_ms)


def test_the_table_says_what_json_says() -> None:
    predictors()
    done = measured()
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "camera.onnx on bench"
    assert lines[1].startswith("measured ")
    assert any(line.startswith("predicted ") and "90 % interval" in line for line in lines)
    assert any(line.startswith("deviation ") and "side the interval" in line for line in lines)
    assert any(line.startswith(FIRST) for line in lines)


def test_without_predictors_it_still_measures_and_says_how_to_get_them() -> None:
    done = measured()
    assert done.exit_code == 0, done.output
    assert "measured " in done.stdout
    assert "no predictors of device 'bench'" in done.stdout
    assert "make reproduce DEVICE=bench" in done.stdout
    found = json.loads(measured("--json").stdout)
    assert (found["prediction"], found["deviation"], found["inside_interval"]) == (None, None, None)
    assert all(k["predicted_ms"] is None and k["measured_ms"] > 0 for k in found["kernels"])


def test_a_model_with_a_guess_is_held_to_no_interval() -> None:
    predictors()
    write_model(Path("camera.onnx"), groups=4)
    found = json.loads(measured("--json").stdout)
    assert found["deviation"] is not None
    assert (found["prediction"]["interval"], found["inside_interval"]) == (None, None)
    told = measured().stdout
    assert "no interval: 1 kernel is a guess" in told
    assert told.count("unlike anything measured") == 1
    assert "the interval" not in told


def test_what_is_predicted_in_part_has_no_deviation() -> None:
    predictors()
    write_model(Path("camera.onnx"), pooled=True)
    found = json.loads(measured("--json").stdout)
    assert found["prediction"]["missing"] == ["neck/shrink"]
    assert (found["deviation"], found["inside_interval"]) == (None, None)
    (pool,) = (k for k in found["kernels"] if k["name"] == "neck/shrink")
    assert pool["predicted_ms"] is None
    assert pool["measured_ms"] > 0
    assert "without: neck/shrink" in measured().stdout


def test_predictions_for_another_machine_say_so() -> None:
    predictors()
    environment = Path("results/bench/evaluation/environment.json")
    write_json(environment, {"fingerprint": "0" * 16, "cpu": "Somebody's Processor"})
    assert "for another machine (Somebody's Processor)" in measured().stdout
    write_json(environment, {"fingerprint": nominal.fingerprint(), "cpu": "mine"})
    assert "another machine" not in measured().stdout
    environment.write_text("[")
    assert measured().exit_code == 0


def _measured(**changes: object) -> Measured:
    quiet = Measured("m", "d", 1.0, 0.01, 0.9, 1.1, 1.0, 0.0, 0.0, 9.0, None, "none", "make", "", (), "")
    return replace(quiet, **changes)  # type: ignore[arg-type]


def test_noise_is_told_and_ends_nothing() -> None:
    assert "noisy" not in "\n".join(cli_measure.headlines(_measured()))
    assert "noisy" in "\n".join(cli_measure.headlines(_measured(noise=0.2)))
    assert "other work had the processor for 75 % of the time" in "\n".join(cli_measure.headlines(_measured(waited=0.75)))
    held = "\n".join(cli_measure.headlines(_measured(throttled=0.5)))
    assert "a CPU quota stopped the model for 50 % of the time" in held
    assert "other work" not in held


def test_a_loop_on_the_core_is_seen(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {core})
        while os.getppid() != 1:
            pass
        os._exit(0)
    try:
        found = measure(tmp_path / "camera.onnx", "bench", seconds=2)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert found.waited > 0.15
    assert found.latency_ms > 0


def test_wrong_devices_and_models_are_refused(tmp_path: Path) -> None:
    assert isinstance(CliRunner().invoke(app, ["measure", "camera.onnx", "-d", "nosuch"]).exception, DeviceError)
    assert isinstance(CliRunner().invoke(app, ["measure", "none.onnx", "-d", "bench"]).exception, ModelError)
    device(cores=[4096])
    assert isinstance(measured().exception, DeviceError)
    device("onednn", options={"layout": "odd"})
    assert isinstance(measured().exception, DeviceError)
    (tmp_path / "cut.onnx").write_bytes((tmp_path / "camera.onnx").read_bytes()[:-300])
    assert isinstance(CliRunner().invoke(app, ["measure", "cut.onnx", "-d", "bench"]).exception, ModelError)


@pytest.mark.parametrize(("named", "told"), [(True, "onnxruntime cannot run the model"), (False, "lies in 'apart.data'")])
def test_what_an_engine_cannot_load_is_told(tmp_path: Path, named: bool, told: str) -> None:
    big = onnx.load(tmp_path / "camera.onnx")
    for number, node in enumerate(big.graph.node):
        node.name = f"node {number}" if named else ""
    onnx.save(big, tmp_path / "apart.onnx", save_as_external_data=True, location="apart.data", size_threshold=0)
    (tmp_path / "apart.data").unlink()
    done = CliRunner().invoke(app, ["measure", "apart.onnx", "-d", "bench", "--seconds", "1"])
    assert isinstance(done.exception, ModelError)
    assert told in done.exception.what


@pytest.mark.parametrize("external", [False, True])
def test_nodes_without_names_get_those_of_the_graph(tmp_path: Path, external: bool) -> None:
    given = onnx.load(tmp_path / "camera.onnx")
    for node in given.graph.node:
        node.name = "same" if node.op_type == "Relu" else ""
    path, folder = tmp_path / "bare.onnx", tmp_path / "named"
    folder.mkdir()
    onnx.save(given, path, save_as_external_data=external, location="bare.data" if external else None, size_threshold=0)
    named = named_file(path, folder)
    assert named.parent == folder
    assert [op.name for op in load_onnx(named).operators] == [op.name for op in load_onnx(path).operators]
    names = {node.name for node in onnx.load(named).graph.node}
    assert names >= {op.name for op in load_onnx(path).operators}
    done = CliRunner().invoke(app, ["measure", "bare.onnx", "-d", "bench", "--seconds", "1", "--json"])
    assert len(json.loads(done.stdout)["kernels"]) >= 3


def test_a_file_whose_nodes_are_named_is_measured_itself(tmp_path: Path) -> None:
    path = save_onnx(load_onnx(tmp_path / "camera.onnx"), tmp_path / "again.onnx")
    assert named_file(path, tmp_path / "none") == path


def _measurement(nodes: tuple[EngineNode, ...], us: list[float]) -> Measurement:
    ones = np.ones(3)
    return Measurement(
        "s", 0, ones * sum(us), ones * sum(us), ones, ones, ones, nodes, np.tile(us, (3, 1)),
        ReferenceTimes(1.0, 1.0), ReferenceExponents(compute=1.0, bandwidth=0.0),
    )  # fmt: skip


def test_kernels_that_the_engine_runs_otherwise_are_put_together(tmp_path: Path) -> None:
    graph = load_onnx(write_model(tmp_path / "camera.onnx"))
    apart = split(graph, FusionRules(pairs={}))
    lines = tuple(KernelLatency(k.name, k.config.type, "", 2.0, 1.0, 3.0, 0.1) for k in apart)
    lines += (
        KernelLatency("graph input", "reorder", "", 0.5, 0.4, 0.6, 0.1),
        KernelLatency("c (output)", "reorder", "", 0.3, 0, 1, 0),
    )
    here = PredictedFor("", shipped=False, this_machine=True)
    told = Prediction("m", "d", here, "", 12.0, 11.0, 13.0, 0.9, 1.0, (), (), 0.0, (), 0.0, 0.0, lines)
    first, rest = graph.operators[0].name, tuple(op.name for op in graph.operators[1:])
    nodes = (
        EngineNode("r", "Reorder", "", (), graph.inputs[0]),
        EngineNode("a", "", "", (first,)),
        EngineNode("b", "", "", rest),
    )
    found = compare_kernels(graph, apart, told, _measurement(nodes, [100.0, 1000.0, 5000.0]))
    assert [(k.name, k.predicted_ms) for k in found] == [
        ("graph input", 0.5),
        (first, 2.0),
        (" + ".join(rest), 2.0 * len(rest)),
        ("c (output)", 0.3),
    ]
    assert [k.measured_ms for k in found] == [pytest.approx(v, rel=0.05) for v in (0.1, 1.0, 5.0)] + [None]
    assert found[1].deviation == pytest.approx(1.0, abs=0.1)
    assert found[3].deviation is None
    joined = split(graph, RULES)  # and the other way round: the engine runs apart what was predicted together
    lines = tuple(KernelLatency(k.name, k.config.type, "", 2.0, 1.0, 3.0, 0.1) for k in joined)
    nodes = tuple(EngineNode(op.name, "", "", (op.name,)) for op in graph.operators)
    found = compare_kernels(graph, joined, replace(told, kernels=lines), _measurement(nodes, [100.0] * len(nodes)))
    assert [k.name for k in found] == [k.name for k in joined]
    assert sum(k.measured_ms or 0 for k in found) == pytest.approx(0.1 * len(nodes))


@pytest.mark.parametrize("name", ["mobilenetv2_0.5", "squeezenet1_1"])
def test_every_kernel_of_known_models_is_compared(tmp_path: Path, name: str) -> None:
    save_onnx(prior_models()[name](), tmp_path / "camera.onnx")
    found = json.loads(measured("--json").stdout)
    graph = simplify(load_onnx(tmp_path / "camera.onnx"))
    assert found["without_kernels"] == ""
    assert 10 < len(found["kernels"]) <= 2 * len(graph.operators)
    total = sum(k["measured_ms"] for k in found["kernels"])
    assert 0.05 < total / found["latency_ms"] < 2  # preempted runs count in the whole, and in no typical node


def test_the_quiet_speed_is_that_of_stored_rows_of_this_machine(tmp_path: Path) -> None:
    identity = {"device": {"name": "bench"}, "fingerprint": nominal.fingerprint()}
    times = {"nominal_compute_us": 123.0, "nominal_bandwidth_us": 45.0}
    write_json(tmp_path / "data/rows/bench/truth/b.json", {**identity, "fingerprint": "other", **times})
    (tmp_path / "data/rows/bench/truth/a.json").write_text("{")
    references = References()
    here = nominal.nominal_times("bench", tmp_path / "data/rows", references, 2)
    assert here.compute_us != 123.0
    write_json(tmp_path / "state/edgeplan/identities/c.json", {**identity, **times})
    assert nominal.nominal_times("bench", tmp_path / "data/rows", references, 2) == ReferenceTimes(123.0, 45.0)
    assert nominal.nominal_times("other", tmp_path / "data/rows", references, 2).compute_us != 123.0


def test_a_model_that_the_engine_cannot_map_is_measured_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edgeplan.engines.onnxruntime.session.map_nodes", lambda *_: {}["nothing"])
    found = json.loads(measured("--json").stdout)
    assert found["kernels"] == []
    assert "cannot be told apart" in found["without_kernels"]
    assert found["latency_ms"] > 0


def test_grouped_models_of_other_builders(tmp_path: Path) -> None:
    onnx.save(model([conv()], [W]), tmp_path / "camera.onnx")
    assert measured().exit_code == 0
