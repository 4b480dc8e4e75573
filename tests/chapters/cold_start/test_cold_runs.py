"""Cold runs: what is planned, which count, what becomes of them; in fresh processes, with real engines, on a tiny network."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from depth import by_day
from edgeplan.chapters.cold_start.measuring.artefacts import ArtefactStore, ColdModel
from edgeplan.chapters.cold_start.measuring.runs import (
    RUN_COLUMNS,
    ColdSettings,
    ExtraRun,
    PlannedRun,
    measure_runs,
    plan_runs,
    result_frame,
)
from edgeplan.engines.base import random_inputs
from edgeplan.engines.cold import Artefact
from edgeplan.engines.description import named_object
from edgeplan.engines.registry import SETTINGS, setting
from edgeplan.errors import DeviceError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.model_file import model_files
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process import worker
from edgeplan.measurement.process.job import STOCK_TOLERANCE, PrepareJob, PrepareResult, RunJob, RunResult
from edgeplan.measurement.process.starts import prepare_offline, prepared_plan, run_cold
from edgeplan.measurement.process.stock import inputs_of
from edgeplan.measurement.settings import TimeBudget
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.support.files import stamp
from edgeplan.support.workers import ColdRunError
from edgeplan.testing.engines import own_modules
from edgeplan.workloads.registry import WORKLOADS, save_workload

LANE = "processes"  # see tests/conftest.py

KNOBS = ColdSettings(settings=("onnxruntime", "onnxruntime-prepacked"), threads=(1, 2), repeats=3)
ARTEFACT = Artefact(main=Path("m"), files=(Path("m"),))


def test_every_combination_is_planned_once_a_repeat_with_its_probe_in_a_seeded_order() -> None:
    planned = list(plan_runs(["a", "b"], KNOBS))
    assert len(planned) == len(set(planned)) == 3 * 2 * (2 * 2 * 2 + 1)
    assert Counter(run.model for run in planned) == {"a": 27, "b": 27}
    assert Counter(run.repeat for run in planned if not run.setting) == {0: 2, 1: 2, 2: 2}
    assert planned == list(plan_runs(["a", "b"], KNOBS))
    assert planned != list(plan_runs(["a", "b"], KNOBS.model_copy(update={"seed": 1})))
    assert [run.repeat for run in planned] == sorted(run.repeat for run in planned)
    orders = {
        tuple((r.setting, r.threads, r.state) for r in planned if (r.model, r.repeat) == ("a", repeat)) for repeat in range(3)
    }
    assert len(orders) == 3


def test_guests_are_shuffled_into_the_groups_of_their_model() -> None:
    guest = ExtraRun("b", ColdModel("b--K", Path("b.onnx"), {"x": (1,)}), "edgeplan", 2, ("cached",), PrepareResult(reason=""))
    planned = list(plan_runs(["a", "b"], KNOBS, [guest]))
    probes = [i for i, run in enumerate(planned) if (run.model, run.setting) == ("b", "")]
    groups = [planned[i + 1 : i + 10] for i in probes]  # 2 settings x 2 threads x 2 states, and the guest
    assert [Counter(run.model for run in group) for group in groups] == [{"b": 8, "b--K": 1}] * 3
    places = [[run.model for run in group].index("b--K") for group in groups]
    assert len(set(places)) > 1
    assert [(groups[r][place].repeat, groups[r][place].state) for r, place in enumerate(places)] == [
        (repeat, "cached") for repeat in range(3)
    ]


def test_every_setting_names_a_program_and_what_prepares_it() -> None:
    with pytest.raises(DeviceError, match="unknown setting 'tensorflow'"):
        setting("tensorflow")
    for found in SETTINGS.values():
        assert found.program.is_file()
        assert callable(named_object(found.prepare))


REFERENCES = {"compute_us": 300.0, "bandwidth_us": 400.0}


def _record(name: str, threads: int, cold_ms: float, *, repeat: int = 0, **changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"cold_ms": cold_ms, "warm_ms": (4.0, 2.0, 3.0), "state_reached": True, "output_error": 1e-6}
    fields["interference"] = 1.5
    result = RunResult.model_validate({**fields, **changes})
    place = {"model": "a", "setting": name, "threads": threads, "state": "cached", "repeat": repeat, "measured_at": 1.0}
    return {"key": "", **place, "result": json.loads(result.model_dump_json()), "references": REFERENCES}


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("onnxruntime", {"output_error": 5e-4}, ""),
        ("onnxruntime", {"output_error": float("inf")}, "outputs differ"),
        ("edgeplan", {"output_error": 1e-4}, ""),
        ("edgeplan", {"output_error": 5e-4}, "outputs differ"),
        ("edgeplan-evicted", {"output_error": 5e-4}, "outputs differ"),
        ("onnxruntime", {"state_reached": False, "cached_before": 0.25}, "25% of the files"),
        ("onnxruntime", {"reason": "no such layer"}, "no such layer"),
    ],
)
def test_rows_have_the_schema_and_runs_that_do_not_count_say_why(name: str, changes: dict[str, Any], reason: str) -> None:
    """Our outputs are held to less than those of stock engines."""
    prepared = PrepareResult(engine_version="1", artefact=ARTEFACT, prepare_ms=7.0)
    frame = result_frame([_record(name, 1, 9.0, **changes)], {("a", name, 1): prepared})
    assert list(frame.columns) == list(RUN_COLUMNS)
    row = frame.iloc[0]
    assert reason in row["reason"]
    assert (row["reason"] == "") == (reason == "")
    assert (row["warm_min_ms"], row["warm_median_ms"], row["prepare_ms"], row["interference"]) == (2.0, 3.0, 7.0, 1.5)


INPUTS = {"input": (1, 3, 32, 32)}
STOCK = sorted(name for name, known in SETTINGS.items() if known.stock)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    b = GraphBuilder("tiny", INPUTS["input"])
    x = b.conv_bn(b.input, 16, 3, 2)
    y = b.conv_bn(x, 16, 3, groups=16, act="relu6")
    x = b.relu(b.add(b.conv_bn(y, 16, 1, act=""), x))
    # a line of text beside the class: what detectors and recognisers need beyond classifiers
    line = b.transpose(b.squeeze(b.conv(b.upsample(x), 8, (32, 1), pad=0), (2,)), (2, 0, 1))
    line = b.reshape(b.transpose(b.lstm(line, 4, bidirectional=True), (0, 2, 1, 3)), (32, 8))
    x = b.softmax(b.fc(b.flatten(b.gap(x)), 10))
    return save_onnx(b.build(x, b.fc(line, 5)), tmp_path_factory.mktemp("model") / "tiny.onnx")


def _prepared(setting: str, model: Path, folder: Path) -> PrepareResult:
    return prepare_offline(PrepareJob(setting=setting, threads=1, model=model, inputs=INPUTS, folder=folder))


def _job(artefact: Artefact | Path | None, **changes: Any) -> RunJob:
    """A cold run of an artefact, or of a model that is one."""
    given = Artefact(main=artefact, files=(artefact,)) if isinstance(artefact, Path) else artefact
    values = {"setting": "onnxruntime", "threads": 1, "artefact": given, "inputs": INPUTS, "state": "cached"}
    return RunJob.model_validate(values | changes)


@pytest.fixture(scope="module")
def reference(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "outputs.npz"
    run_cold(_job(model, save_outputs=path))
    return path


def test_a_crashing_worker_gives_one_clear_error(model: Path) -> None:
    broken = model.with_name("broken.onnx")
    broken.write_bytes(b"not a model")
    with pytest.raises(ColdRunError, match=r"(?s)onnxruntime on broken\.onnx: .*exit code 1.*(?:INVALID_PROTOBUF|Protobuf)"):
        run_cold(_job(broken))


def test_eviction_shows_in_the_bytes_a_run_reads(model: Path) -> None:
    cached, evicted = (run_cold(_job(model, cpus=(0,), state=state, usual_us=1e9)) for state in ("cached", "evicted"))
    assert 0 < cached.interference < 1e-3, "it was asked to look at its processors"
    assert (cached.cached_before, cached.state_reached) == (1.0, True)
    if not evicted.state_reached:
        pytest.skip("this file system keeps its pages")
    assert evicted.read_bytes >= evicted.file_bytes > cached.read_bytes
    assert evicted.output_digest == cached.output_digest
    assert evicted.peak_rss_bytes >= evicted.rss_before_bytes > 0
    assert evicted.minor_faults > 0


def test_a_killed_worker_names_its_signal_and_one_that_hangs_is_ended(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # an engine that dies in native code: a module of its name that ends its own process
    (tmp_path / "onnxruntime.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(ColdRunError, match="was ended by SIGSEGV") as caught:
        run_cold(_job(model))
    assert "\n" not in caught.value.reason
    monkeypatch.undo()
    with pytest.raises(ColdRunError, match=r"no result within 0\.01 s"):
        run_cold(_job(model, warm_runs=100_000), timeout_seconds=0.01)


def test_a_cache_that_the_engine_rejects_does_not_count_as_used(model: Path, tmp_path: Path) -> None:
    artefact = _prepared("litert-cached", model, tmp_path).artefact
    assert artefact is not None
    artefact.companions["cache"].write_bytes(b"")
    result = run_cold(_job(artefact, setting="litert-cached"))
    assert result.cold_ms is None
    assert "cache" in result.reason or "again" in result.reason


def test_what_is_started_once_gets_inputs_of_the_types_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = save_workload(WORKLOADS["lstm"](), tmp_path / "lstm.onnx", 0)
    monkeypatch.setattr(worker, "setting", lambda name: replace(SETTINGS[name], starts_once=True))
    job = PrepareJob(setting="onnxruntime", threads=1, model=tokens, folder=tmp_path, **inputs_of(tokens))
    assert not worker.prepare(job).reason


@pytest.mark.parametrize("location", by_day(["parts/all of them", "weights.bin", "tiny.onnx.data", ""]))
@pytest.mark.parametrize("setting", STOCK)
def test_stock_settings_agree_with_onnxruntime_and_find_the_files_that_a_model_names(
    setting: str, location: str, model: Path, reference: Path, tmp_path: Path
) -> None:
    """In the model, beside it, under any name, or in a folder below its own.

    Plan folders know the model by its stamp; with another, each of their starts would hash the whole file.
    """
    named = tmp_path / "tiny.onnx"
    if location:
        (named.parent / location).parent.mkdir(exist_ok=True)
        onnx.save(onnx.load(model), named, save_as_external_data=True, location=location, size_threshold=100)
        assert model_files(named) == (named, tmp_path / location)
    else:
        named = model
    (tmp_path / "made").mkdir()
    before = stamp(named.stat())
    prepared = _prepared(setting, named, tmp_path / "made")
    assert stamp(named.stat()) == before
    if prepared.artefact is None:
        assert "is not installed" in prepared.reason or "Vulkan finds no GPU" in prepared.reason
        pytest.skip(prepared.reason)
    result = run_cold(_job(prepared.artefact, setting=setting, warm_runs=3, reference=reference))
    assert result.reason == ""
    assert result.output_error is not None
    assert result.output_error < 1e-4 < STOCK_TOLERANCE
    assert result.state_reached
    assert len(result.warm_ms) == 3
    assert result.cold_ms == pytest.approx(result.stages_ms["open"] + result.stages_ms["first_run"])
    if not location:
        assert own_modules(setting, prepared.artefact, INPUTS, tmp_path) == []


@pytest.mark.long
def test_beyond_the_budget_only_what_must_be_is_run_and_a_measuring_goes_on_where_it_was_killed(
    model: Path, tmp_path: Path
) -> None:
    """The engines are real, and so is the time: none."""
    knobs = ColdSettings(settings=("onnxruntime", "onnxruntime-optimised"), threads=(1,), repeats=2, warm_runs=1)
    store, journal, over = ArtefactStore(tmp_path / "store"), tmp_path / "runs.jsonl", TimeBudget(0.0)
    models = [ColdModel("tiny", model, INPUTS)]

    def must(run: PlannedRun) -> bool:
        return (run.setting, run.repeat) == ("onnxruntime", 0)

    found = measure_runs(models, knobs, store, journal, budget=over, must=must)
    made = found.runs[found.runs["reason"] == ""]
    assert made[["setting", "repeat"]].to_numpy().tolist() == [["onnxruntime", 0]] * 2  # in both states
    told = found.runs.set_index("setting")["reason"]
    assert "the time for measuring cold starts was over" in told["onnxruntime-optimised"]
    assert found.left_out == 2 + 2  # the second repeat, and two probes of the disk
    assert not list(tmp_path.glob("store/*optimised*/prepared.json"))
    again = measure_runs(models, knobs, store, journal, budget=over, must=lambda _run: False)
    assert (again.runs["reason"] == "").sum() == len(made)  # what is known is given, whatever the time
    whole = measure_runs(models, knobs, store, journal)
    assert whole.left_out == 0
    assert whole.runs["reason"].tolist() == [""] * 8
    assert len(whole.bandwidth) == 2
    hurried = measure_runs(models, knobs, store, tmp_path / "other.jsonl", budget=over, must=lambda _run: False)
    assert set(hurried.runs["setting"]) == {"onnxruntime", "onnxruntime-optimised"}  # prepared before, and never run
    assert hurried.runs["cold_ms"].isna().all()

    written = journal.read_bytes()
    journal.write_bytes(written[:-40])  # killed while writing the last line
    resumed = measure_runs(models, knobs, store, journal)
    assert journal.read_bytes().count(b"\n") == written.count(b"\n")
    assert len(set(resumed.runs["measured_at"]) - set(whole.runs["measured_at"])) <= 1, "one alone was made again"
    more = measure_runs(models, knobs.model_copy(update={"warm_runs": 2}), store, journal)  # never mixed in
    assert set(more.runs["measured_at"]).isdisjoint(resumed.runs["measured_at"])


def test_what_cannot_run_is_a_row_with_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    b = GraphBuilder("odd", (1, 8))
    graph = b.build(b.relu(b.input))
    model = save_onnx(graph, tmp_path / "odd.onnx")
    knobs = ColdSettings(settings=("onnxruntime", "ncnn"), threads=(1,), states=("cached",), repeats=1, warm_runs=0)
    (tmp_path / "pnnx").mkdir()
    program = tmp_path / "pnnx" / "pnnx"
    program.write_text("#!/bin/sh\nexit 3\n")  # a converter that gives up
    program.chmod(0o755)
    (tmp_path / "pnnx" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    results = measure_runs([ColdModel("odd", model, {"input": (1, 8)})], knobs, ArtefactStore(tmp_path / "s"), tmp_path / "j")
    reasons = results.runs.set_index("setting")["reason"]
    assert reasons["onnxruntime"] == ""
    assert "pnnx" in reasons["ncnn"] or "not installed" in reasons["ncnn"]


_SMALL = {"input": (1, 3, 40, 40)}


def _graph() -> Graph:
    b = GraphBuilder("small", _SMALL["input"])
    x = b.conv_bn(b.input, 32, 3, 2)
    for channels in (32, 64, 64, 128):
        x = b.concat([b.conv_bn(x, channels, 1), b.conv_bn(x, channels, 3)])
    return b.build(b.fc(b.flatten(b.gap(x)), 100))


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_onnx(_graph(), tmp_path_factory.mktemp("model") / "small.onnx")


def _planned(dnnl: Dnnl, planned: Callable[..., Plan], small: Path, folder: Path) -> Path:
    plan = planned(small, _graph(), sources=("cached_mmap", "cached_read", "raw"), widen_from=9)
    return build_plan_folder(dnnl, small, plan, folder)


@pytest.fixture(scope="module")
def folder(dnnl: Dnnl, planned: Callable[..., Plan], small: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, only to be read."""
    return _planned(dnnl, planned, small, tmp_path_factory.mktemp("planned") / "plan")


def test_a_plan_is_measured_beside_the_others(folder: Path, small: Path, tmp_path: Path) -> None:
    knobs = ColdSettings(settings=("edgeplan",), threads=(2,), repeats=1, warm_runs=2)
    ready = {("small", "edgeplan", 2): prepared_plan(folder)}
    models = [ColdModel("small", small, _SMALL)]
    runs = measure_runs(models, knobs, ArtefactStore(tmp_path / "s"), tmp_path / "j.jsonl", ready=ready).runs
    assert runs["reason"].tolist() == [""] * 2
    assert (runs["output_error"] < 1e-4).all()


@pytest.mark.parametrize("setting", by_day(["edgeplan-fixed", "edgeplan-continuous"]))
def test_other_modes_run_the_same_plan(folder: Path, setting: str) -> None:
    artefact = prepared_plan(folder).artefact
    values = {"threads": 2, "artefact": artefact, "inputs": _SMALL, "state": "cached", "warm_runs": 3}
    plain, other = (run_cold(RunJob.model_validate(values | {"setting": name})) for name in ("edgeplan", setting))
    assert (other.reason, len(other.warm_ms)) == ("", 3)
    assert other.output_digest == plain.output_digest
    assert {"open", "read", "create", "transform", "execute"} <= set(plain.stages_ms)
    assert min(plain.stages_ms.values()) > 0


def test_every_file_of_a_start_is_one_that_can_be_evicted(folder: Path) -> None:
    """What is not named would stay in memory where the page cache is said to be evicted."""
    named = set(prepared_plan(folder).artefact.files)
    with open_session(folder) as session:
        session.run(random_inputs(_graph()))
        held = {Path(place) for place in map(os.path.realpath, Path("/proc/self/fd").iterdir())}
        mapped = {Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines()}
    mine = {p for p in held | mapped if p.is_relative_to(folder.resolve()) or p.suffix == ".onnx"}
    assert {p.name for p in mine} == {"program.bin", "weights.cache", "small.onnx"}
    assert mine <= named


def test_a_run_without_its_cache_or_of_another_model_says_so(dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path) -> None:
    own = _planned(dnnl, planned, save_onnx(_graph(), tmp_path / "small.onnx"), tmp_path / "plan")
    values = {"setting": "edgeplan", "threads": 2, "inputs": _SMALL, "state": "cached"}
    job, cache = RunJob.model_validate(values | {"artefact": prepared_plan(own).artefact}), own / "weights.cache"
    assert run_cold(job).cold_ms is not None
    whole = cache.read_bytes()
    content = bytearray(whole)
    content[-5000] ^= 1
    for path, bad, told in (
        (cache, content, "damaged"),
        (cache, whole, "its weights were checked"),
        (tmp_path / "small.onnx", b"another model", "the model changed since the plan was made"),  # see test_model_stamps.py
    ):
        path.write_bytes(bad)
        with pytest.raises(ColdRunError, match=told):
            run_cold(job)


def test_plans_are_not_made_by_the_worker(small: Path, tmp_path: Path) -> None:
    job = PrepareJob(setting="edgeplan", threads=2, model=small, inputs=_SMALL, folder=tmp_path)
    assert "edgeplan plan cold-start" in prepare_offline(job).reason


def test_versions_follow_the_plan(dnnl: Dnnl, planned: Callable[..., Plan], small: Path, tmp_path: Path) -> None:
    graph = _graph()
    one, other = (
        prepared_plan(build_plan_folder(dnnl, small, planned(small, graph, widen_from=w), tmp_path / str(w))) for w in (0, 5)
    )
    assert one.engine_version != other.engine_version
