"""Plan folders as a cold setting and on the command line, in fresh processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from depth import by_day
from edgeplan.chapters.cold_start.measuring.artefacts import ArtefactStore, ColdModel
from edgeplan.chapters.cold_start.measuring.runs import ColdSettings, measure_runs
from edgeplan.engines.base import random_inputs
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.job import PrepareJob, RunJob
from edgeplan.measurement.process.starts import prepare_offline, prepared_plan, run_cold
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.support.workers import ColdRunError

LANE = "processes"  # see tests/conftest.py

INPUTS = {"input": (1, 3, 40, 40)}


def _graph() -> Graph:
    b = GraphBuilder("small", INPUTS["input"])
    x = b.conv_bn(b.input, 32, 3, 2)
    for channels in (32, 64, 64, 128):
        x = b.concat([b.conv_bn(x, channels, 1), b.conv_bn(x, channels, 3)])
    return b.build(b.fc(b.flatten(b.gap(x)), 100))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_onnx(_graph(), tmp_path_factory.mktemp("model") / "small.onnx")


def _planned(dnnl: Dnnl, planned: Callable[..., Plan], model: Path, folder: Path) -> Path:
    plan = planned(model, _graph(), sources=("cached_mmap", "cached_read", "raw"), widen_from=9)
    return build_plan_folder(dnnl, model, plan, folder)


@pytest.fixture(scope="module")
def folder(dnnl: Dnnl, planned: Callable[..., Plan], model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan, only to be read."""
    return _planned(dnnl, planned, model, tmp_path_factory.mktemp("planned") / "plan")


def test_a_plan_is_measured_beside_the_others(folder: Path, model: Path, tmp_path: Path) -> None:
    knobs = ColdSettings(settings=("edgeplan",), threads=(2,), repeats=1, warm_runs=2)
    ready = {("small", "edgeplan", 2): prepared_plan(folder)}
    models = [ColdModel("small", model, INPUTS)]
    runs = measure_runs(models, knobs, ArtefactStore(tmp_path / "s"), tmp_path / "j.jsonl", ready=ready).runs
    assert runs["reason"].tolist() == [""] * 2
    assert (runs["output_error"] < 1e-4).all()


@pytest.mark.parametrize("setting", by_day(["edgeplan-fixed", "edgeplan-continuous"]))
def test_other_modes_run_the_same_plan(folder: Path, setting: str) -> None:
    artefact = prepared_plan(folder).artefact
    values = {"threads": 2, "artefact": artefact, "inputs": INPUTS, "state": "cached", "warm_runs": 3}
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
    values = {"setting": "edgeplan", "threads": 2, "inputs": INPUTS, "state": "cached"}
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


def test_plans_are_not_made_by_the_worker(model: Path, tmp_path: Path) -> None:
    job = PrepareJob(setting="edgeplan", threads=2, model=model, inputs=INPUTS, folder=tmp_path)
    assert "edgeplan plan cold-start" in prepare_offline(job).reason


def test_versions_follow_the_plan(dnnl: Dnnl, planned: Callable[..., Plan], model: Path, tmp_path: Path) -> None:
    graph = _graph()
    one, other = (
        prepared_plan(build_plan_folder(dnnl, model, planned(model, graph, widen_from=w), tmp_path / str(w))) for w in (0, 5)
    )
    assert one.engine_version != other.engine_version
