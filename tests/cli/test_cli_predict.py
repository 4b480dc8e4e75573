"""`edgeplan predict`, `measure` and `device adapt`, on files that no builder of this package wrote."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from executed_nodes import law
from model_file_runs import made, node, values, write
from quick_bench import DEVICE, measuring_alone  # noqa: F401  a fixture
from trained_nodes import CALL_US, RULES, write_device
from trained_nodes import trained as of_nodes
from typer.testing import CliRunner, Result

from depth import by_day
from edgeplan import measure, predict
from edgeplan.chapters.prediction.adapting import Adapted
from edgeplan.chapters.prediction.api import Measured
from edgeplan.cli import predict as cli_predict
from edgeplan.cli.commands import app
from edgeplan.cli.device import told as adapted
from edgeplan.cli.memory import sureness_lines
from edgeplan.engines.base import EngineSettings
from edgeplan.engines.registry import ENGINES, engine_class
from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.measurement import references as references_module
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.predictors.teller import Teller
from edgeplan.profiling.streaming import StreamProfile
from edgeplan.support.files import write_json

MODEL, LAYERS = "camera.onnx", 3


def write_model(path: Path, acts: Sequence[str] = ("Relu",)) -> Path:
    """Activations, then layers; the second one has no name."""
    names = ["camera:0", *(f"stem {n}" for n in range(len(acts)))]
    nodes = [node(act, [names[n]], [names[n + 1]], name=f"stem act {n}") for n, act in enumerate(acts)]
    for n in range(LAYERS):
        written = "scores:0" if n == LAYERS - 1 else f"t/{n}"
        nodes.append(node("MatMul", [names[-1], f"W.{n}"], [written], name="" if n == 1 else f"backbone/block_{n}"))
        names.append(written)
    weights = {f"W.{n}": values(256, 256, seed=n) for n in range(LAYERS)}
    return write(made(nodes, {"camera:0": (16, 256)}, weights, output="scores:0"), path)


@pytest.fixture(autouse=True)
def _in_a_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / MODEL)
    device()


def device(engine: str = "onnxruntime", **fields: object) -> None:
    document = {"format_version": 1, "name": "bench", "engine": engine, "cores": [min(os.sched_getaffinity(0))], **fields}
    Path("config/devices").mkdir(parents=True, exist_ok=True)
    Path("config/devices/bench.yaml").write_text(yaml.safe_dump(document))


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """A device with predictors; the machine that they are of, where it is told."""
    predictor = replace(of_nodes(), measured_at="2026-01-01")
    return write_device(tmp_path / "results", predictor, name="bench") / "evaluation/environment.json"


def measured(*more: str) -> Result:
    before = os.sched_getaffinity(0)
    done = CliRunner().invoke(app, ["measure", MODEL, "-d", "bench", "--seconds", "1", *more])
    assert os.sched_getaffinity(0) == before
    return done


@pytest.mark.usefixtures("trained")
@pytest.mark.parametrize("engine", by_day([*ENGINES]))
def test_each_engine_is_measured_beside_the_prediction(engine: str) -> None:
    try:
        engine_class(engine)(EngineSettings())
    except DeviceError as error:
        pytest.skip(error.what)
    device(engine)
    done = measured("--json")
    assert done.exit_code == 0, done.output
    found, wanted = json.loads(done.stdout), predict(MODEL, "bench")
    assert found["prediction"]["latency_ms"] == wanted.latency_ms
    assert found["deviation"] == pytest.approx(wanted.latency_ms / found["latency_ms"] - 1)
    inside = None if wanted.low_ms is None else wanted.low_ms <= found["latency_ms"] <= wanted.high_ms
    assert found["inside_interval"] == inside
    assert 0 < found["least_ms"] <= found["latency_ms"]
    assert {"normalised_ms", "noise", "waited", "throttled"} <= found.keys()
    times = [k["measured_ms"] for k in found["kernels"] if k["measured_ms"] is not None]
    assert min(times, default=0 if engine != "opencl" else 1) > 0, "each that is the same in both"
    told = sum(k["predicted_ms"] for k in found["kernels"])
    assert told + found["prediction"]["call_ms"] == pytest.approx(wanted.latency_ms)


def _headlines(**changes: object) -> str:
    """Of a quiet measurement without a prediction, but for some fields."""
    quiet = Measured("m", "d", 1.0, 0.9, 0.01, 0.9, 1.0, 0.0, 0.0, 9.0, None, "none", "make", (), "")
    return "\n".join(cli_predict.headlines(replace(quiet, **changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "predicted   none\n            to have predictions: make"),
        ({"noise": 0.2}, "noisy"),
        ({"waited": 0.75}, "other work had the processor for 75 % of the time"),
        ({"throttled": 0.5}, "a CPU quota stopped the model for 50 % of the time"),
    ],
)
def test_noise_is_told_and_ends_nothing(changes: dict[str, float], told: str) -> None:
    assert told in (said := _headlines(**changes))
    assert sum(text in said for text in ("noisy", "other work", "a CPU quota")) == len(changes)


def test_a_prediction_is_told_beside_what_was_measured(trained: Path) -> None:
    """One for another machine says so; a file of the machine that cannot be read ends nothing."""
    done = measured()
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == f"{MODEL} on bench"
    assert [line for line in lines if line.startswith("stem act ")]
    found = predict(MODEL, "bench")
    assert found.high_ms is not None
    for latency_ms, side in ((found.latency_ms, "inside"), (2 * found.high_ms, "outside")):
        assert re.search(rf"(?s)90 % interval.*{side} the interval", _headlines(prediction=found, latency_ms=latency_ms))
    for about, other in (
        ({"fingerprint": "0" * 16, "cpu": "Somebody's Processor"}, True),
        ({"fingerprint": references_module.fingerprint(), "cpu": "mine"}, False),
    ):
        write_json(trained, about)
        said = _headlines(prediction=predict(MODEL, "bench"))
        told = "predicted for Somebody's Processor (rows of 2026-01-01, of this workspace), not for this machine"
        assert (told in said, "not for this machine" in said) == (other, other)
    write_model(Path(MODEL), acts=["Erf"] * 5)
    said = _headlines(prediction=predict(MODEL, "bench"))
    assert "no interval: " in said
    assert said.count("of the time is guessed") == 1
    assert "the interval" not in said
    trained.write_text("[")
    assert measured().exit_code == 0


def test_a_loop_on_the_core_is_seen(tmp_path: Path) -> None:
    core = min(os.sched_getaffinity(0))
    child = os.fork()
    if child == 0:
        os.sched_setaffinity(0, {core})
        while os.getppid() != 1:
            pass
        os._exit(0)
    try:
        found = measure(tmp_path / MODEL, "bench", seconds=1)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert found.waited > 0.15
    assert found.latency_ms > 0


def test_models_and_options_that_an_engine_does_not_take_are_refused() -> None:
    Path("cut.onnx").write_bytes(Path(MODEL).read_bytes()[:-300])
    onnx.save(onnx.load(MODEL), "apart.onnx", save_as_external_data=True, location="apart.data", size_threshold=0)
    Path("apart.data").unlink()
    for model, told in (("cut.onnx", "not a readable ONNX model"), ("apart.onnx", "ONNX Runtime cannot run the model")):
        with pytest.raises(ModelError, match=told):
            measure(model, "bench")
    device("onednn", options={"layout": "odd"})
    assert isinstance(measured().exception, DeviceError)


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


Answers = Callable[..., Any]


@pytest.fixture
def answer(trained: Path, edgeplan: Callable[..., Any]) -> Answers:
    """What `predict` says of a file of a device with predictors."""
    assert trained
    return partial(edgeplan, "predict", "--device", "bench")


def told(answer: Answers, path: Path) -> Mapping[str, Any]:
    done = answer(str(path), "--json")
    assert done.code == 0, done.err
    found: Mapping[str, Any] = json.loads(done.out)
    return found


def test_json_has_the_latency_its_interval_and_every_kernel(answer: Answers) -> None:
    path = Path(MODEL)
    found = told(answer, path)
    assert (found["model"], found["device"], found["interval"]) == (MODEL, "bench", 0.9)
    assert 0 < found["low_ms"] < found["latency_ms"] < found["high_ms"]
    kernels, layers = found["kernels"], ("backbone/block_0", "matmul_2", "backbone/block_2")
    assert [(k["type"], k["operators"]) for k in kernels] == [("Relu", ["stem act 0"]), *(("MatMul", [op]) for op in layers)]
    assert {k["source"] for k in kernels} == {"learnt"}
    assert found["call_ms"] == pytest.approx(CALL_US / 1e3)
    assert found["shares"] == {"measured": 0, "learnt": pytest.approx(sum(k["share"] for k in kernels)), "guessed": 0}
    for kernel, executed in zip(kernels, Teller(DEVICE, RULES).of_file(path, Preparation()).nodes, strict=True):
        assert kernel["latency_ms"] == pytest.approx(law(executed.config) / 1e3, rel=0.15), kernel["name"]


def test_the_table_has_the_same_numbers_adds_up_and_says_where_they_are_from(answer: Answers) -> None:
    path = write_model(Path(MODEL), acts=["Erf"])
    found = told(answer, path)
    headline, header, *lines, shares = answer(str(path)).out.rstrip().splitlines()
    numbers = re.fullmatch(r"camera\.onnx on bench: (\S+) ms \(90 % interval (\S+) to (\S+) ms\)", headline)
    assert numbers is not None, headline
    wanted = [found[name] for name in ("latency_ms", "low_ms", "high_ms")]
    assert [float(text) for text in numbers.groups()] == pytest.approx(wanted, abs=5e-4)
    assert header.split() == ["kernel", "type", "operators", "ms", "share", "from"]
    rows = [re.search(r"(\S+) +(\S+) % *(\w*) *$", line) for line in lines]
    cells = [row.groups() for row in rows if row]
    assert [cell[2] for cell in cells] == ["guessed", *["learnt"] * LAYERS, ""]
    wanted = [k["latency_ms"] for k in found["kernels"]] + [found["call_ms"]]
    assert [float(cell[0]) for cell in cells] == pytest.approx(wanted, abs=5e-5)
    assert sum(float(cell[1]) for cell in cells) == pytest.approx(100, abs=0.05 * len(cells))
    assert shares == ", ".join(f"{100 * share:.0f} % {source}" for source, share in found["shares"].items())


def test_guesses_have_no_interval_and_stand_in_one_warning(answer: Answers) -> None:
    path = write_model(Path(MODEL), acts=["Erf"] * 5)
    share = f"{100 * told(answer, path)['shares']['guessed']:.0f} % of"
    done, named = answer(str(path)), r"\((stem act \d, ){2}stem act \d and 2 more\)"
    assert f"(no interval: {share} it is guessed)" in done.out.splitlines()[0]
    assert re.fullmatch(rf"warning: {share} the time is guessed {named}; --measure 5 .*\n", done.err)
    assert answer(str(write_model(Path(MODEL)))).err == ""


def test_names_in_a_model_are_not_taken_for_markup(tmp_path: Path, answer: Answers) -> None:
    model = onnx.load(write_model(tmp_path / "a[bold].onnx", acts=["Erf"]))
    model.graph.node[0].name = "[/red]"
    onnx.save(model, tmp_path / "a[bold].onnx")
    done = answer(str(tmp_path / "a[bold].onnx"))
    assert done.out.startswith("a[bold].onnx on bench")
    assert "\n[/red] " in done.out
    assert "guessed ([/red])" in done.err


def test_errors_of_models_that_were_measured_say_what_to_expect() -> None:
    found = Adapted("mine", "theirs", Path("results/mine/predictors"), 61.0, 300, 40, 0.06)
    share = math.erf(math.log(1.1) / (0.06 * math.sqrt(2)))
    came, took, expected, following = adapted(found, 60.0)
    assert f"{came}; {took}" == "results/mine/predictors: mine from theirs; measured 300 kernels and 40 whole models in 61 s"
    assert expected == f"expect {100 * share:.0f} % of models within 10 %"
    assert following == "next: edgeplan predict MODEL.onnx --device mine"
    for spread in (math.nan, 0.0):
        *_, last = adapted(replace(found, spread=spread), 20.0)
        assert last == "too few whole models to say how good it is; next: --seconds 80"


def _profile(run_ms: tuple[float, ...], others: float) -> StreamProfile:
    return StreamProfile(
        compute_ms=(1.0,), bytes_per_ms=1.0, lanes=2, objects_bytes=0, idle_bytes=0, run_ms=run_ms, lowest=(), others=others
    )


def test_quartiles_of_all_inferences_but_the_first_say_how_sure_times_are_and_other_work_is_named() -> None:
    for run_ms in ((), (50.0, 10.0), (90.0, 10.0, 10.0, 10.0)):
        assert _profile(run_ms, 0.0).unsure == 0
    assert _profile((9.0, 8.0, 9.0, 10.0, 11.0, 12.0), 0.0).unsure == pytest.approx(0.2)
    quiet, busy = (sureness_lines(_profile((9.0, 8.0, 12.0), others)) for others in (0.05, 0.5))
    assert len(quiet) == 1
    assert "20 %" in quiet[0]
    assert "50 % of the processors' time" in busy[1]
