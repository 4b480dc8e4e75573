"""`edgeplan predict`, `measure` and `device adapt`, on files that no builder of this package wrote."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from camera_model import CALL_US, FIRST, executed, law, save_predictors, write_model
from quick_bench import measuring_alone  # noqa: F401  a fixture
from typer.testing import CliRunner, Result

from depth import by_day
from edgeplan import measure, predict
from edgeplan.chapters.prediction.adapting import Adapted
from edgeplan.chapters.prediction.api import Measured
from edgeplan.cli import app
from edgeplan.cli import predict as cli_predict
from edgeplan.cli.device import told as adapted
from edgeplan.cli.memory import sureness_lines
from edgeplan.engines.base import EngineSettings
from edgeplan.engines.registry import ENGINES, engine_class
from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement import references as references_module
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.profiling.streaming import StreamProfile
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
def _in_a_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
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
    assert "noisy" not in "\n".join(cli_predict.headlines(_measured()))
    assert "noisy" in "\n".join(cli_predict.headlines(_measured(noise=0.2)))
    assert "other work had the processor for 75 % of the time" in "\n".join(cli_predict.headlines(_measured(waited=0.75)))
    held = "\n".join(cli_predict.headlines(_measured(throttled=0.5)))
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


Answers = Callable[..., tuple[int, str, str]]
#: Type and operators of each line, as ONNX Runtime executes the file; the second convolution has no name.
LINES = [
    ("Relu", ["stem act 0"]),
    ("ReorderInput.nchwc", []),
    ("Conv.nchwc+Relu", [FIRST, "backbone/block_a/norm", "relu_3"]),
    ("Conv.nchwc+Relu", ["conv_4", "dropout_5", "block_b/act"]),
    ("ReorderOutput.nchwc", []),
]


@pytest.fixture
def answer(tmp_path: Path, edgeplan: Callable[..., Any]) -> Answers:
    """What `predict` says of a file of a device with predictors: exit code, output, errors."""
    save_predictors(tmp_path / "results/bench")

    def ask(path: Path, *more: str) -> tuple[int, str, str]:
        done = edgeplan("predict", str(path), "--device", "bench", *more, folder=tmp_path)
        return done.code, done.out, done.err

    return ask


def told(answer: Answers, path: Path, *more: str) -> Mapping[str, Any]:
    code, said, error = answer(path, "--json", *more)
    assert code == 0, error
    found: Mapping[str, Any] = json.loads(said)
    return found


def test_json_has_the_latency_its_interval_and_every_kernel(tmp_path: Path, answer: Answers) -> None:
    path = write_model(tmp_path / "camera.onnx")
    found = told(answer, path)
    assert (found["model"], found["device"], found["interval"]) == ("camera.onnx", "bench", 0.9)
    assert 0 < found["low_ms"] < found["latency_ms"] < found["high_ms"]
    kernels = found["kernels"]
    assert [(k["type"], k["operators"]) for k in kernels] == LINES
    assert {k["source"] for k in kernels} == {"learnt"}
    assert found["call_ms"] == pytest.approx(CALL_US / 1e3)
    assert sum(k["latency_ms"] for k in kernels) + found["call_ms"] == pytest.approx(found["latency_ms"])
    assert found["shares"] == {"measured": 0, "learnt": pytest.approx(sum(k["share"] for k in kernels)), "guessed": 0}
    assert all(k["low_ms"] <= k["latency_ms"] <= k["high_ms"] for k in kernels)
    for kernel, config in zip(kernels, executed(path), strict=True):
        assert kernel["latency_ms"] == pytest.approx(law(config) / 1e3, rel=0.15), kernel["name"]


def test_the_table_has_the_same_numbers_adds_up_and_says_where_they_are_from(tmp_path: Path, answer: Answers) -> None:
    path = write_model(tmp_path / "camera.onnx", acts=["Erf"])
    found = told(answer, path)
    headline, header, *lines, shares = answer(path)[1].rstrip().splitlines()
    numbers = re.fullmatch(r"camera\.onnx on bench: (\S+) ms \(90 % interval (\S+) to (\S+) ms\)", headline)
    assert numbers is not None, headline
    assert [float(text) for text in numbers.groups()] == pytest.approx(
        [found["latency_ms"], found["low_ms"], found["high_ms"]], abs=5e-4
    )
    assert header.split() == ["kernel", "type", "operators", "ms", "share", "from"]
    rows = [re.search(r"(\S+) +(\S+) % *(\w*) *$", line) for line in lines]
    cells = [row.groups() for row in rows if row]
    assert [cell[2] for cell in cells] == ["guessed", *["learnt"] * 4, ""]
    wanted = [k["latency_ms"] for k in found["kernels"]] + [found["call_ms"]]
    assert [float(cell[0]) for cell in cells] == pytest.approx(wanted, abs=5e-5)
    assert sum(float(cell[1]) for cell in cells) == pytest.approx(100, abs=0.05 * len(cells))
    assert shares == ", ".join(f"{100 * share:.0f} % {source}" for source, share in found["shares"].items())


def test_guesses_have_no_interval_and_stand_in_one_warning(tmp_path: Path, answer: Answers) -> None:
    path = write_model(tmp_path / "camera.onnx", acts=["Erf"] * 5)
    found = told(answer, path)
    bounds = {(k["low_ms"], k["high_ms"]) for k in found["kernels"] if k["source"] == "guessed"}
    assert (found["low_ms"], found["high_ms"], bounds) == (None, None, {(None, None)})
    _, said, warned = answer(path)
    share = f"{100 * found['shares']['guessed']:.0f} % of"
    assert f"(no interval: {share} it is guessed)" in said.splitlines()[0]
    assert re.fullmatch(
        rf"warning: {share} the time is guessed \((stem act \d, ){{2}}stem act \d and 2 more\); --measure 5 .*\n", warned
    )
    assert answer(write_model(tmp_path / "camera.onnx"))[2] == ""


def test_what_is_measured_is_known_from_then_on(tmp_path: Path, answer: Answers) -> None:
    path = write_model(tmp_path / "camera.onnx", acts=["Erf"])
    before = told(answer, path)
    found = told(answer, path, "--measure", "5")
    stem = found["kernels"][0]
    assert [before["kernels"][0]["source"], stem["source"]] == ["guessed", "measured"]
    assert stem["low_ms"] < stem["latency_ms"] < stem["high_ms"]
    assert found["shares"]["measured"] == pytest.approx(stem["share"])
    again = told(answer, path)
    assert (again["latency_ms"], again["kernels"][0]["source"]) == (pytest.approx(found["latency_ms"]), "measured")
    assert answer(path)[2] == ""


def test_names_in_a_model_are_not_taken_for_markup(tmp_path: Path, answer: Answers) -> None:
    model = onnx.load(write_model(tmp_path / "a[bold].onnx", acts=["Erf"]))
    model.graph.node[0].name = "[/red]"
    onnx.save(model, tmp_path / "a[bold].onnx")
    code, said, warned = answer(tmp_path / "a[bold].onnx")
    assert code == 0
    assert said.startswith("a[bold].onnx on bench")
    assert "\n[/red] " in said
    assert "guessed ([/red])" in warned


def test_errors_of_models_that_were_measured_say_what_to_expect() -> None:
    found = Adapted("mine", "theirs", Path("results/mine/predictors"), 61.0, 300, 40, 0.06)
    first, measured, expect, following = adapted(found, 60.0)
    assert first == "results/mine/predictors: mine from theirs"
    assert measured == "measured 300 kernels and 40 whole models in 61 s"
    share = math.erf(math.log(1.1) / (0.06 * math.sqrt(2)))
    assert expect == f"expect {100 * share:.0f} % of models within 10 %"
    assert following == "next: edgeplan predict MODEL.onnx --device mine"


@pytest.mark.parametrize("spread", [math.nan, 0.0])
def test_too_few_models_ask_for_more_time(spread: float) -> None:
    *_, last = adapted(Adapted("mine", "theirs", Path("p"), 9.0, 30, 1, spread), 20.0)
    assert last == "too few whole models to say how good it is; next: --seconds 80"


def test_nothing_but_time_is_asked_for(edgeplan: Callable[..., Any]) -> None:
    done = edgeplan("device", "adapt", "mine", "--within", "10")
    assert done.code == 2
    assert "No such option: --within" in done.err


def _profile(run_ms: tuple[float, ...], others: float) -> StreamProfile:
    return StreamProfile(
        compute_ms=(1.0,), bytes_per_ms=1.0, lanes=2, objects_bytes=0, idle_bytes=0, run_ms=run_ms, lowest=(), others=others
    )


@pytest.mark.parametrize(
    ("run_ms", "unsure"),
    [((), 0.0), ((50.0, 10.0), 0.0), ((90.0, 10.0, 10.0, 10.0), 0.0), ((9.0, 8.0, 9.0, 10.0, 11.0, 12.0), 0.2)],
)
def test_quartiles_of_all_inferences_but_the_first_say_how_sure_times_are(run_ms: tuple[float, ...], unsure: float) -> None:
    assert _profile(run_ms, 0.0).unsure == pytest.approx(unsure)


def test_other_work_is_named_where_it_was_there() -> None:
    quiet, busy = (sureness_lines(_profile((9.0, 8.0, 12.0), others)) for others in (0.05, 0.5))
    assert len(quiet) == 1
    assert "20 %" in quiet[0]
    assert "50 % of the processors' time" in busy[1]
