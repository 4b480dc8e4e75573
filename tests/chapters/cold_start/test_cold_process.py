"""Cold runs in fresh processes, with the real engines, on a tiny network."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from depth import by_day
from edgeplan.chapters.cold_start.measuring.artefacts import ArtefactStore, ColdModel
from edgeplan.chapters.cold_start.measuring.runs import ColdSettings, PlannedRun, measure
from edgeplan.engines.cold import Artefact
from edgeplan.engines.registry import SETTINGS
from edgeplan.errors import ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.model_file import model_files
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.job import STOCK_TOLERANCE, PrepareJob, RunJob
from edgeplan.measurement.process.starts import prepare_offline, run_cold
from edgeplan.support.files import stamp
from edgeplan.support.workers import ColdRunError
from edgeplan.testing.engines import own_modules

LANE = "processes"  # see tests/conftest.py

INPUTS = {"input": (1, 3, 32, 32)}


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


@pytest.fixture(scope="module")
def reference(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("reference") / "outputs.npz"
    job = PrepareJob(setting="onnxruntime", threads=1, model=model, inputs=INPUTS, folder=path.parent)
    artefact = prepare_offline(job).artefact
    assert artefact is not None
    run_cold(RunJob(setting="onnxruntime", threads=1, artefact=artefact, inputs=INPUTS, state="cached", save_outputs=path))
    return path


def test_a_crashing_worker_gives_one_clear_error(model: Path) -> None:
    broken = model.with_name("broken.onnx")
    broken.write_bytes(b"not a model")
    artefact = Artefact(main=broken, files=(broken,))
    with pytest.raises(ColdRunError, match=r"(?s)onnxruntime on broken\.onnx: .*exit code 1.*(?:INVALID_PROTOBUF|Protobuf)"):
        run_cold(RunJob(setting="onnxruntime", threads=1, artefact=artefact, inputs=INPUTS, state="cached"))


def test_eviction_shows_in_the_bytes_a_run_reads(model: Path, tmp_path: Path) -> None:
    job = PrepareJob(setting="onnxruntime", threads=1, model=model, inputs=INPUTS, folder=tmp_path)
    artefact = prepare_offline(job).artefact
    assert artefact is not None
    base = {"setting": "onnxruntime", "threads": 1, "artefact": artefact, "inputs": INPUTS, "cpus": (0,)}
    cached = run_cold(RunJob.model_validate(base | {"state": "cached"}))
    evicted = run_cold(RunJob.model_validate(base | {"state": "evicted"}))
    assert (cached.cached_before, cached.state_reached) == (1.0, True)
    if not evicted.state_reached:
        pytest.skip("this file system keeps its pages")
    assert evicted.read_bytes >= evicted.file_bytes > cached.read_bytes
    assert evicted.output_digest == cached.output_digest
    assert evicted.peak_rss_bytes >= evicted.rss_before_bytes > 0
    assert evicted.minor_faults > 0


def test_a_run_that_is_asked_to_looks_at_its_processors(model: Path) -> None:
    base = {"setting": "onnxruntime", "threads": 1, "inputs": INPUTS, "cpus": (0,), "state": "cached"}
    artefact = Artefact(main=model, files=(model,))
    asked = run_cold(RunJob.model_validate(base | {"artefact": artefact, "usual_us": 1e9}))
    assert 0 < asked.interference < 1e-3
    assert run_cold(RunJob.model_validate(base | {"artefact": artefact})).interference == 1.0, "not asked"


def test_a_killed_worker_names_its_signal(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # an engine that dies in native code: a module of its name that ends its own process
    (tmp_path / "onnxruntime.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    job = RunJob(setting="onnxruntime", threads=1, artefact=Artefact(main=model, files=(model,)), inputs=INPUTS, state="cached")
    with pytest.raises(ColdRunError, match="was ended by SIGSEGV") as caught:
        run_cold(job)
    assert "\n" not in caught.value.reason


def test_a_cache_that_the_engine_rejects_does_not_count_as_used(model: Path, tmp_path: Path) -> None:
    job = PrepareJob(setting="litert-cached", threads=1, model=model, inputs=INPUTS, folder=tmp_path)
    artefact = prepare_offline(job).artefact
    assert artefact is not None
    artefact.companions["cache"].write_bytes(b"")
    run = RunJob(setting="litert-cached", threads=1, artefact=artefact, inputs=INPUTS, state="cached")
    result = run_cold(run)
    assert result.cold_ms is None
    assert "cache" in result.reason or "again" in result.reason


@pytest.mark.long
def test_no_setting_changes_the_stamp_of_the_model(model: Path, tmp_path: Path) -> None:
    """Plan folders know the model by it; with another, each of their starts would hash the whole file."""
    before = stamp(model.stat())
    for setting in sorted(name for name, setting in SETTINGS.items() if setting.stock):
        job = PrepareJob(setting=setting, threads=1, model=model, inputs=INPUTS, folder=tmp_path / setting)
        job.folder.mkdir()
        prepare_offline(job)
        assert stamp(model.stat()) == before, setting


@pytest.mark.parametrize("location", by_day(["parts/all of them", "weights.bin", "tiny.onnx.data", ""]))
@pytest.mark.parametrize("setting", sorted(name for name, setting in SETTINGS.items() if setting.stock))
def test_stock_settings_agree_with_onnxruntime_and_find_the_files_that_a_model_names(
    setting: str, location: str, model: Path, reference: Path, tmp_path: Path
) -> None:
    """In the model, beside it, under any name, or in a folder below its own."""
    named = tmp_path / "tiny.onnx"
    if location:
        (named.parent / location).parent.mkdir(exist_ok=True)
        onnx.save(onnx.load(model), named, save_as_external_data=True, location=location, size_threshold=100)
        assert model_files(named) == (named, tmp_path / location)
    else:
        named = model
    job = PrepareJob(setting=setting, threads=1, model=named, inputs=INPUTS, folder=tmp_path / "made")
    job.folder.mkdir()
    prepared = prepare_offline(job)
    if prepared.artefact is None:
        assert "is not installed" in prepared.reason or "Vulkan finds no GPU" in prepared.reason
        pytest.skip(prepared.reason)
    run = RunJob(
        setting=setting, threads=1, artefact=prepared.artefact, inputs=INPUTS, state="cached", warm_runs=3, reference=reference
    )
    result = run_cold(run)
    assert result.reason == ""
    assert result.output_error is not None
    assert result.output_error < 1e-4 < STOCK_TOLERANCE
    assert result.state_reached
    assert len(result.warm_ms) == 3
    assert result.cold_ms == pytest.approx(result.stages_ms["open"] + result.stages_ms["first_run"])
    if not location:
        assert own_modules(setting, prepared.artefact, INPUTS, tmp_path) == []


@pytest.mark.parametrize("location", ["../elsewhere", "/etc/hostname"])
def test_files_outside_a_models_folder_are_not_taken(location: str, model: Path, tmp_path: Path) -> None:
    proto = onnx.load(model)
    proto.graph.initializer[0].ClearField("raw_data")
    proto.graph.initializer[0].data_location = onnx.TensorProto.EXTERNAL
    entry = proto.graph.initializer[0].external_data.add()
    entry.key, entry.value = "location", location
    named = tmp_path / "inner/tiny.onnx"
    named.parent.mkdir()
    named.write_bytes(proto.SerializeToString())
    (tmp_path / "elsewhere").write_bytes(b"\0" * 4096)
    with pytest.raises(ModelError, match="outside the model's folder"):
        model_files(named)


def test_a_process_that_hangs_is_ended(model: Path) -> None:
    artefact = Artefact(main=model, files=(model,))
    job = RunJob(setting="onnxruntime", threads=1, artefact=artefact, inputs=INPUTS, state="cached", warm_runs=100_000)
    with pytest.raises(ColdRunError, match=r"no result within 0\.01 s"):
        run_cold(job, timeout_seconds=0.01)


@pytest.mark.long
def test_a_measuring_goes_on_where_it_was_killed(model: Path, tmp_path: Path) -> None:
    knobs = ColdSettings(
        settings=("onnxruntime", "onnxruntime-optimised"), threads=(1,), states=("cached",), repeats=2, warm_runs=1
    )
    store, journal = ArtefactStore(tmp_path / "store"), tmp_path / "journal.jsonl"
    models = [ColdModel("tiny", model, INPUTS)]
    first = measure(models, knobs, store, journal)
    assert first.runs["reason"].tolist() == [""] * 4
    assert len(first.bandwidth) == 2
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-40])  # killed while writing the last line
    started: list[PlannedRun] = []
    again = measure(models, knobs, store, journal, lambda run, _done, _of: started.append(run))
    assert len(started) == 6
    assert journal.read_bytes().count(b"\n") == whole.count(b"\n")
    kept = again.runs["cold_ms"].tolist()[:3]
    assert kept == first.runs["cold_ms"].tolist()[:3]
    more = measure(models, knobs.model_copy(update={"warm_runs": 2}), store, journal)  # other conditions are never mixed in
    assert set(more.runs["measured_at"]).isdisjoint(again.runs["measured_at"])


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
    results = measure([ColdModel("odd", model, {"input": (1, 8)})], knobs, ArtefactStore(tmp_path / "s"), tmp_path / "j.jsonl")
    reasons = results.runs.set_index("setting")["reason"]
    assert reasons["onnxruntime"] == ""
    assert "pnnx" in reasons["ncnn"] or "not installed" in reasons["ncnn"]
