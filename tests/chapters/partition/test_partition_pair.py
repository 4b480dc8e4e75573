"""The chapter on partitions on a real pair: oneDNN on one core beside OpenCL on another. Times are compared with nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import pytest
import yaml
from partition_frames import opened_here, save_predictors, write_workspace
from plan_folders import COMMAND, OPENED, body_of, changed_plan, loaded_by
from shipped_params import PARAMS_FILE
from typer.testing import CliRunner

from edgeplan import plan_partition
from edgeplan.chapters.partition import layers as drawing
from edgeplan.chapters.partition.evaluation.tables import LAYER_WAYS
from edgeplan.chapters.partition.layers import CONV, LINEAR, LayerShape
from edgeplan.chapters.partition.learning.predictors import PairPredictors, load_pair_predictors
from edgeplan.chapters.partition.measuring.opened import Opened
from edgeplan.chapters.partition.measuring.rows import COLUMNS, NotThereError, PartitionRows
from edgeplan.chapters.partition.measuring.samples import ChainPlace, samples, timed, write_pool
from edgeplan.chapters.partition.measuring.splits import SplitMeasuring
from edgeplan.chapters.partition.settings import PartitionSettings
from edgeplan.chapters.partition.stages.partition import measured
from edgeplan.chapters.profiles import profile
from edgeplan.cli import run_pair
from edgeplan.cli.commands import app
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import FormatError, ModelError
from edgeplan.runs import run
from edgeplan.runtime.partitioned.session import Synchronisation
from edgeplan.runtime.processor import Dispatcher
from edgeplan.support.store import STORED_ROWS_ONLY
from edgeplan.workloads.registry import WORKLOADS, save_workload

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(
    find_spec("pyopencl") is None or len(os.sched_getaffinity(0)) < 2, reason="a pair takes pyopencl and two cores"
)
_CORES = sorted(os.sched_getaffinity(0))[:2]


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_workspace(tmp_path_factory.mktemp("pair"))


@pytest.fixture(autouse=True)
def _here(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGEPLAN_WORKSPACE", str(workspace))


def _loaded(predictors: Path) -> PairPredictors:
    return load_pair_predictors(predictors, load_pair("pair-pocl"))


def _dispatcher(pair: Opened) -> Dispatcher:
    return pair.pair.dispatcher(pair.numbers)


@pytest.fixture
def pair(workspace: Path) -> Iterator[Opened]:
    with opened_here(workspace) as found:
        yield found


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pool")
    write_pool(folder)
    return folder


@pytest.fixture
def predictors(workspace: Path) -> Path:
    """Those of the pair, which is closed."""
    return save_predictors(workspace)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_workload(WORKLOADS["squeezenet"](), tmp_path_factory.mktemp("model") / "squeezenet.onnx", 3)


def _settings(**changes: object) -> PartitionSettings:
    base = yaml.safe_load(PARAMS_FILE.read_text())["partition"]
    tiny = profile(ROOT / "config/profiles/tiny.yaml")["partition"]
    return PartitionSettings.model_validate({**base, **tiny, **changes})


def _frame(settings: PartitionSettings) -> pd.DataFrame:
    drawn = (drawing.sampled(kind, 6, settings.layer_flops, 1) for kind in (LINEAR, CONV))
    return pd.DataFrame([asdict(layer) for layers in drawn for layer in layers])


def test_a_chain_times_every_place_in_every_run(pair: Opened, pool: Path) -> None:
    layers = (LayerShape(CONV, 14, 14, 32, 64, 3), LayerShape.linear(20, 64, 48), LayerShape(CONV, 32, 32, 3, 16, 3, 2))
    places = [ChainPlace(layer, c) for layer in layers for c in (0, 16, layer.outputs)]
    found = timed(pair, places, pool, 3)
    assert found.us.shape == (3, 9)
    assert (found.us > 0).all()
    for place, (on_cpu, on_gpu) in zip(places, found.implementations, strict=True):
        assert bool(on_cpu) == (place.channels > 0)
        assert bool(on_gpu) == (place.channels < place.layer.outputs)
    by_events = timed(pair, places[1:2], pool, 2, synchronisation=Synchronisation.events)
    assert by_events.us.shape == (2, 1)
    assert (by_events.us > 0).all()


def test_samples_are_measured_once_and_found_again(
    pair: Opened, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(samples=8)
    sampled = samples(PartitionRows(tmp_path, pair.identity), pair, _dispatcher(pair), settings, 5, pool)
    first = sampled.frame
    assert {side: len(us) for side, us in sampled.anchors_us.items()} == dict.fromkeys(("cpu", "gpu"), len(drawing.ANCHORS))
    assert first.groupby("kind").size().to_dict() == {"conv": 8, "linear": 8, "other": 1}
    assert (first[["cpu_us", "gpu_us"]] > 0).to_numpy().all()
    assert len(list((tmp_path / "samples").iterdir())) == 1, "few files"
    monkeypatch.setenv(STORED_ROWS_ONLY, "1")
    again = samples(PartitionRows(tmp_path, pair.identity), None, _dispatcher(pair), settings, 5, pool)
    assert again.frame.equals(first)
    assert again.anchors_us == sampled.anchors_us
    with pytest.raises(NotThereError):
        samples(PartitionRows(tmp_path, pair.identity), None, _dispatcher(pair), settings, 6, pool)
    with pytest.raises(NotThereError):
        samples(PartitionRows(tmp_path, ["another machine"]), None, _dispatcher(pair), settings, 5, pool)


def test_layers_are_split_in_every_way(
    predictors: Path, pair: Opened, pool: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = _settings(grid_points=3, fresh_runs=2)
    measuring = SplitMeasuring(PartitionRows(tmp_path, pair.identity), pair, _loaded(predictors), settings, pool, 2.0)
    factors, errors = measuring.beside(_frame(settings))
    assert set(factors) == set(errors) == {"linear", "conv"}
    assert min(factors.values()) >= 1
    assert min(errors.values()) >= 0
    found = measuring.layers(7)
    for (_, name), own in found.groupby(["kind", "name"]):
        assert set(own["way"]) == {"cpu", "gpu", *LAYER_WAYS}, name
        by_way = own.set_index("way")
        assert by_way.loc["cpu", "channels"] == by_way.loc["cpu", "outputs"]
        assert by_way.loc["gpu", "channels"] == 0
        assert (by_way["us"] > 0).all()
        split = by_way[(by_way["channels"] > 0) & (by_way["channels"] < by_way["outputs"])]
        assert (split["channels"] % settings.grid_step == 0).all()
    drawn = [drawing.layers(kind, 2, settings.layer_flops, settings.conv_divisors, 7) for kind in (LINEAR, CONV)]
    assert list(dict.fromkeys(found["name"])) == [layer.name for layers in drawn for layer in layers]
    assert measuring.layers(7)["us"].equals(found["us"]), "found again"
    assert (found["channels"] == found["now"]).all()
    # Predictors that would split elsewhere find the rows where nothing may be measured, and not where it may.
    card = measuring.predictors.card
    slow_cpu = {"fixed_share": dict.fromkeys(card.fixed_share, 0.1), "gain_errors": dict.fromkeys(("linear", "conv"), 1.0)}
    others = replace(measuring.predictors, card=card.model_copy(update=slow_cpu))
    with monkeypatch.context() as patch:
        patch.setenv(STORED_ROWS_ONLY, "1")
        stored = replace(measuring, pair=None, predictors=others)
        again = stored.layers(7)
        assert stored.beside(_frame(settings))[0].keys() == {"linear", "conv"}
        assert replace(measuring, pair=None).beside(_frame(settings)) == (factors, errors)
    names = ["kind", "name", "way", "channels", "outputs", "us"]
    assert again[names].equals(found[names]), "what was measured"
    ours = again[again["way"] == "ours"]
    assert ours["now"].isin([0, *ours["outputs"]]).all(), "no gain is beyond such an error"
    with pytest.raises(AssertionError):
        replace(measuring, pair=None, predictors=others).layers(7)  # these splits would have to be measured


def test_a_model_is_measured_in_every_way(workspace: Path, predictors: Path, model: Path, pool: Path, tmp_path: Path) -> None:
    own = load_pair(workspace / "config/pairs/pair-pocl.yaml")
    found = measured(own, _loaded(predictors), model, tmp_path, 2, ["onnxruntime"], pool).set_index("way")
    assert list(found.columns) == [name for name in COLUMNS["models"] if name != "way"]
    assert list(found.index) == ["ours", "cpu", "gpu", "equal", "fixed", "greedy", "cpu, all cores", "onnxruntime"]
    assert (found["median_ms"] > 0).all(), found["reason"].to_dict()
    assert (found["error"].dropna() <= found["tolerance"].dropna()).all(), "all ways compute the same"
    assert found.loc["equal", "splits"] > 0
    assert found.loc["ours", "slowdown"] > 0


@pytest.mark.usefixtures("predictors")
def test_a_plan_is_written_run_and_refused_elsewhere(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, own = tmp_path / "plan", tmp_path / "squeezenet.onnx"
    shutil.copy(model, own)
    planned = plan_partition(own, folder, "pair-pocl", costs="predicted")
    assert {path.name for path in folder.iterdir()} == {"plan.json", "program.json", "weights.bin"}
    own.rename(tmp_path / "elsewhere.onnx")
    with pytest.raises(ModelError, match=r"not found(?s:.*)--model"):
        run(folder, check=True)
    with monkeypatch.context() as patch:
        for name in ("onnx.load_model_from_string", "edgeplan.runtime.lowering.lower", "edgeplan.graph.onnx.read.load_onnx"):
            patch.setattr(name, None)  # a run reads no model, and lowers and cuts none
        found = run(folder, repeat=2)
    assert len(found.warm_ms) == 2
    checked = run(folder, check=True, model=tmp_path / "elsewhere.onnx")
    assert checked.difference is not None
    assert checked.difference <= 1e-4
    plan = run_pair.planned(found.plan)
    assert plan == msgspec.convert(planned.plan.model_dump(), run_pair.ShownPlan)
    for step, (start, *ends) in zip(plan.steps, found.spans_ms, strict=True):
        assert [end > start for end in ends] == [step.on != "gpu", step.on != "cpu"] or ends == [start, start]
    made = body_of(folder)["made_for"]
    for key, value in (("machine", "f" * 16), ("driver", "another driver"), ("library", "0.1"), ("isa", "another isa")):
        changed_plan(folder, lambda d, key=key, value=value: d["made_for"].update({key: value}))
        with pytest.raises(FormatError, match=f"(?s){key} is .*, the plan is for {value}.*edgeplan plan partition"):
            run(folder)
        changed_plan(folder, lambda d: d.update(made_for=made))
    save_workload(WORKLOADS["squeezenet"](), own, 4)
    with pytest.raises(ModelError, match="is not the model that was planned"):
        run(folder, check=True, model=own)


@pytest.mark.usefixtures("predictors")
def test_a_plan_of_a_pair_runs_in_a_process_without_compilers_and_readers_of_models(model: Path, tmp_path: Path) -> None:
    plan_partition(model, tmp_path / "plan", "pair-pocl", costs="predicted")
    assert loaded_by(COMMAND, "run", tmp_path / "plan", "--check", "--repeat", "2") == []
    assert loaded_by(OPENED, tmp_path / "plan") == []


def test_predictors_of_another_machine_are_refused(predictors: Path, model: Path, tmp_path: Path) -> None:
    card = json.loads((predictors / "card.json").read_text())
    (predictors / "card.json").write_text(json.dumps(card | {"fingerprint": "elsewhere"}))
    with pytest.raises(FormatError, match=r"of another machine(?s:.*)dvc repro partition@pair-pocl"):
        plan_partition(model, tmp_path / "plan", "pair-pocl", costs="predicted")
    shutil.rmtree(predictors)
    with pytest.raises(FormatError, match=r"no predictors of pair .pair-pocl.(?s:.*)dvc repro partition@pair-pocl"):
        plan_partition(model, tmp_path / "plan", "pair-pocl", costs="predicted")


@pytest.mark.usefixtures("predictors")
def test_the_commands_say_how_a_pair_waits_and_what_was_busy(model: Path, tmp_path: Path) -> None:
    cli = CliRunner()
    told = cli.invoke(app, ["device", "check", "--pair", "pair-pocl"], catch_exceptions=False).output
    assert "waits by    polling: memory is shared while kernels run" in told
    assert told.count("handshake   by") == 2
    folder = tmp_path / "plan"
    done = cli.invoke(
        app,
        ["plan", "partition", str(model), "--pair", "pair-pocl", "-o", str(folder), "--costs", "predicted"],
        catch_exceptions=False,
    )
    assert "optimal, bound" in done.output
    out = tmp_path / "out.npz"
    shown = cli.invoke(app, ["run", str(folder), "--repeat", "2", "--check", "-o", str(out)], catch_exceptions=False).output
    assert re.search(r"busy: .* ms and .* ms of .* ms", shown)
    assert "largest difference from ONNX Runtime" in shown
    with np.load(out) as outputs:
        assert all(np.isfinite(outputs[name]).all() for name in outputs.files)
