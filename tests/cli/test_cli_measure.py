"""`edgeplan measure`: real runs beside predictions, whole and kernel by kernel, whatever the machine's noise."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
import yaml
from camera_model import executed, save_predictors, write_model
from model_file_runs import W, conv, model
from typer.testing import CliRunner, Result

from depth import by_day
from edgeplan import measure, predict
from edgeplan.chapters.prediction.api import Measured
from edgeplan.cli import app
from edgeplan.cli import measure as cli_measure
from edgeplan.engines.base import EngineSettings
from edgeplan.engines.registry import ENGINES, engine_class
from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement import references as references_module
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.support.files import write_json
from edgeplan.zoo import prior_models

FIELDS = {
    "model",
    "device",
    "latency_ms",
    "normalised_ms",
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
    monkeypatch.setattr(references_module, "_SECONDS", 0.02)
    write_model(tmp_path / "camera.onnx")
    device()


def device(engine: str = "onnxruntime", **fields: object) -> None:
    document = {"format_version": 1, "name": "bench", "engine": engine, "cores": [min(os.sched_getaffinity(0))], **fields}
    Path("config/devices").mkdir(parents=True, exist_ok=True)
    Path("config/devices/bench.yaml").write_text(yaml.safe_dump(document))


def predictors() -> None:
    save_predictors(Path("results/bench"))


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
    inside = None if wanted.low_ms is None else wanted.low_ms <= found["latency_ms"] <= wanted.high_ms
    assert found["inside_interval"] == inside
    assert 0 < found["least_ms"] <= found["latency_ms"]
    assert all(k["measured_ms"] > 0 for k in found["kernels"] if k["type"] == "Relu")
    told = sum(k["predicted_ms"] for k in found["kernels"])
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
    assert any(line.startswith("stem act ") for line in lines)


def test_without_predictors_it_still_measures_and_says_how_to_get_them() -> None:
    done = measured()
    assert done.exit_code == 0, done.output
    assert "measured " in done.stdout
    assert "no predictors of device 'bench'" in done.stdout
    assert "make reproduce DEVICE=bench" in done.stdout
    found = json.loads(measured("--json").stdout)
    assert (found["prediction"], found["deviation"], found["inside_interval"]) == (None, None, None)
    assert (found["kernels"], found["without_kernels"]) == ([], "there is no prediction to compare with")


def test_a_model_that_is_guessed_is_held_to_no_interval() -> None:
    predictors()
    write_model(Path("camera.onnx"), acts=["Erf"] * 5)
    found = json.loads(measured("--json").stdout)
    assert found["deviation"] is not None
    assert (found["prediction"]["low_ms"], found["inside_interval"]) == (None, None)
    said = measured().stdout
    assert "no interval: " in said
    assert said.count("of the time is guessed") == 1
    assert "the interval" not in said


def test_predictions_for_another_machine_say_so() -> None:
    predictors()
    environment = Path("results/bench/evaluation/environment.json")
    write_json(environment, {"fingerprint": "0" * 16, "cpu": "Somebody's Processor"})
    assert (
        "predicted for Somebody's Processor (rows of 2026-01-01, of this workspace), not for this machine" in measured().stdout
    )
    write_json(environment, {"fingerprint": references_module.fingerprint(), "cpu": "mine"})
    assert "not for this machine" not in measured().stdout
    environment.write_text("[")
    assert measured().exit_code == 0


def _measured(**changes: object) -> Measured:
    quiet = Measured("m", "d", 1.0, 0.9, 0.01, 0.9, 1.0, 0.0, 0.0, 9.0, None, "none", "make", (), "")
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


def test_what_an_engine_cannot_load_is_told(tmp_path: Path) -> None:
    big = onnx.load(tmp_path / "camera.onnx")
    onnx.save(big, tmp_path / "apart.onnx", save_as_external_data=True, location="apart.data", size_threshold=0)
    (tmp_path / "apart.data").unlink()
    done = CliRunner().invoke(app, ["measure", "apart.onnx", "-d", "bench", "--seconds", "1"])
    assert isinstance(done.exception, ModelError)
    assert "ONNX Runtime cannot run the model" in done.exception.what


@pytest.mark.parametrize("name", ["mobilenetv2_0.5", "squeezenet1_1"])
def test_every_kernel_of_known_models_is_compared(tmp_path: Path, name: str) -> None:
    save_onnx(prior_models()[name](), tmp_path / "camera.onnx")
    predictors()
    found = json.loads(measured("--json").stdout)
    assert found["without_kernels"] == ""
    assert len(found["kernels"]) == len(executed(tmp_path / "camera.onnx")) > 10
    total = sum(k["measured_ms"] for k in found["kernels"])
    assert 0.05 < total / found["latency_ms"] < 2  # preempted runs count in the whole, and in no typical node


def test_the_quiet_speed_is_that_of_stored_rows_of_this_machine(tmp_path: Path) -> None:
    identity = {"device": {"name": "bench"}, "fingerprint": references_module.fingerprint()}
    times = {"nominal_compute_us": 123.0, "nominal_bandwidth_us": 45.0}
    write_json(tmp_path / "data/rows/bench/truth/b.json", {**identity, "fingerprint": "other", **times})
    (tmp_path / "data/rows/bench/truth/a.json").write_text("{")
    references = References()
    here = references_module.nominal_times("bench", tmp_path / "data/rows", references, 2)
    assert here.compute_us != 123.0
    write_json(tmp_path / "state/edgeplan/identities/c.json", {**identity, **times})
    assert references_module.nominal_times("bench", tmp_path / "data/rows", references, 2) == ReferenceTimes(123.0, 45.0)
    assert references_module.nominal_times("other", tmp_path / "data/rows", references, 2).compute_us != 123.0


def test_grouped_models_of_other_builders(tmp_path: Path) -> None:
    onnx.save(model([conv()], [W]), tmp_path / "camera.onnx")
    assert measured().exit_code == 0
