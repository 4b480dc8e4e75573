"""What is drawn and measured whole: the zoo, random models, truth, calibration."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pytest
from quick_bench import DEVICE, SETTINGS, measuring_alone  # noqa: F401  a fixture
from shipped_params import PARAMS_FILE
from trained_nodes import device_file

from edgeplan.chapters.prediction.stages import calibration, zoo
from edgeplan.chapters.prediction.stages.nodes import (
    TABLE5_IN_CHANNELS,
    TABLE5_KERNELS,
    TABLE5_OUT_CHANNELS,
    TABLE5_SIZES,
    TABLE5_STRIDES,
    check_graphs,
    random_graphs,
    sweep_graphs,
)
from edgeplan.chapters.prediction.stages.truth import measure_models
from edgeplan.chapters.prediction.stages.zoo import conv_shapes
from edgeplan.chapters.prediction.whole_models import graphs, read_models
from edgeplan.chapters.registry import Params, load_params
from edgeplan.graph.kinds import graph_macs
from edgeplan.graph.simplify import simplify
from edgeplan.support.frames import write_parquet
from edgeplan.workloads import exports
from edgeplan.zoo import FAMILIES, VariantSpec, prior_models, variants

MODELS = 6


def measured(folder: Path, repeat: list[str]) -> pd.DataFrame:
    family = FAMILIES["nasbench201"]
    specs = list(variants(family, MODELS, 1))
    named = [(f"{family.id}-{spec.index:05d}", family.id, spec.index, spec.to_json(), 0, 0) for spec in specs]
    table = pd.DataFrame(named, columns=["model_id", "family", "index", "spec", "macs", "memory_bytes"])
    write_parquet(table, folder / "models.parquet")
    params = load_params(PARAMS_FILE)
    truth = params.truth.model_copy(update={"repeat": repeat, "min_gap_seconds": 0.2})
    measure_models(
        params.model_copy(update={"measurement": SETTINGS, "truth": truth}),
        device=device_file(folder),
        models=folder / "models.parquet",
        rows=folder / "rows",
        truth=folder / "truth.parquet",
        environment=folder / "environment.json",
    )
    found = pd.read_parquet(folder / "truth.parquet")
    assert list(found["model_id"]) == list(table["model_id"])
    return found


def test_models_are_measured_in_an_order_of_their_own_and_reported_in_the_tables(tmp_path: Path) -> None:
    first = measured(tmp_path, [DEVICE.name])
    order = np.argsort(first["measured_at_s"].to_numpy())
    assert list(order) != list(range(MODELS))
    assert (first["blocks_span_s"] > 0.3).all(), "three blocks, two gaps of a fifth of a second"
    # the second measurements begin when all first ones have ended
    assert (first["repeat_gap_s"] > first["blocks_span_s"]).all()
    # read from the store, in whichever order, every model has its own values again
    pd.testing.assert_frame_equal(measured(tmp_path, [DEVICE.name]), first)


def test_models_of_other_devices_are_measured_once(tmp_path: Path) -> None:
    assert measured(tmp_path, [])[["repeat_ms", "repeat_gap_s"]].isna().all(axis=None)


def _with_calibration(params: Params, models: int) -> Params:
    calibrating = params.calibration.model_copy(update={"variants_per_family": models})
    return params.model_copy(update={"measurement": SETTINGS, "calibration": calibrating})


def test_models_that_calibrate_are_of_every_family_and_none_is_evaluated() -> None:
    params = _with_calibration(load_params(PARAMS_FILE), 5)
    table = calibration.calibrating_models(params)
    assert table.groupby("family").size().to_dict() == dict.fromkeys(FAMILIES, 5)
    assert table["model_id"].is_unique
    for family in FAMILIES.values():
        mine = [VariantSpec.from_json(text) for text in table.loc[table["family"] == family.id, "spec"]]
        evaluated = variants(family, params.zoo.variants_per_family, params.zoo.seed)
        assert len({spec.choices for spec in mine}) == 5
        assert not {spec.choices for spec in mine} & {spec.choices for spec in evaluated}


def test_a_cell_that_is_evaluated_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 15,625 cells so many are evaluated that some are drawn again under another seed."""
    params = _with_calibration(load_params(PARAMS_FILE), 40)
    zoo = params.zoo.model_copy(update={"variants_per_family": 2000})
    family = FAMILIES["nasbench201"]
    monkeypatch.setattr(calibration, "FAMILIES", {family.id: family})
    evaluated = {spec.cell for spec in variants(family, 2000, zoo.seed)}
    assert evaluated & {spec.cell for spec in variants(family, 40, params.calibration.seed)}
    found = calibration.calibrating_models(params.model_copy(update={"zoo": zoo}))
    cells = {VariantSpec.from_json(text).cell for text in found["spec"]}
    assert len(cells) == 40
    assert not cells & evaluated


def test_models_that_calibrate_are_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "FAMILIES", {"nasbench201": FAMILIES["nasbench201"]})
    monkeypatch.setattr(exports, "FAMILIES", {"table": exports.FAMILIES["table"]})
    params = _with_calibration(load_params(PARAMS_FILE), 2)
    sampling = params.sampling.model_copy(update={"exports_per_family": 2})
    params = params.model_copy(update={"truth": params.truth.model_copy(update={"min_gap_seconds": 0.0}), "sampling": sampling})
    found = []
    for name in ("first", "again"):
        path = tmp_path / f"{name}.parquet"
        calibration.measure_calibration(params, device=device_file(tmp_path), rows=tmp_path / "rows", models=path)
        found.append(path.read_bytes())
    assert found[0] == found[1]
    table = pd.read_parquet(tmp_path / "again.parquet")
    assert (table["measured_ms"] > 0).all()
    assert list(table["family"]) == ["nasbench201"] * 2 + ["table"] * 2
    assert (table["slowness"] > 0).all()


def test_random_convolutions_fill_the_sample_space_and_are_the_same_every_time() -> None:
    drawn = list(random_graphs(Random(1), 200))  # noqa: S311
    shapes = [next(iter(conv_shapes([graph]))) for graph in drawn]
    assert {s.kernel for s in shapes} == set(TABLE5_KERNELS)
    assert {s.stride for s in shapes} == set(TABLE5_STRIDES)
    assert {s.size for s in shapes} <= set(TABLE5_SIZES)
    for of, (least, most) in (("in_channels", TABLE5_IN_CHANNELS), ("out_channels", TABLE5_OUT_CHANNELS)):
        values = [getattr(s, of) for s in shapes]
        assert least <= min(values) < 0.1 * most
        assert 0.8 * most < max(values) <= most
    assert all(s.kernel <= s.size for s in shapes)
    assert max(map(graph_macs, drawn)) < 2.1e9  # with those of bn and relu
    assert drawn == list(random_graphs(Random(1), 200))  # noqa: S311


def test_sweeps_vary_one_dimension_and_checks_what_is_fused() -> None:
    sweeps = [graph.name.split("-") for graph in sweep_graphs()]
    for sweep, place in (("kernel_size", 4), ("input_size", 2), ("out_channels", 3)):
        of = [name for name in sweeps if name[0] == sweep]
        assert len({name[place] for name in of}) == len(of) > 4
        assert len({tuple(part for i, part in enumerate(name) if i != place) for name in of}) == 1
    checks = [graph.name.split("-") for graph in check_graphs()]
    of_size = pd.DataFrame({"size": ["-".join(name[:5]) for name in checks], "tail": ["-".join(name[5:]) for name in checks]})
    assert of_size.groupby("size")["tail"].apply(sorted).tolist() == [["bn", "bn-relu", "plain", "relu"]] * 9


def test_the_stage_writes_models_that_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: FAMILIES[name] for name in ("alexnet", "nasbench201")}
    monkeypatch.setattr(zoo, "FAMILIES", few)
    monkeypatch.setattr(zoo, "prior_models", lambda: {"alexnet": prior_models()["alexnet"]})
    params = load_params(PARAMS_FILE)
    params = params.model_copy(update={"zoo": params.zoo.model_copy(update={"variants_per_family": 2})})
    models, prior, costs = (tmp_path / name for name in ("models.parquet", "prior.parquet", "costs.csv"))
    zoo.build_zoo(params, models=models, prior=prior, costs=costs)
    table = read_models(models, bases=True, variants=True)
    assert table.groupby("family")["index"].apply(sorted).to_dict() == {key: [-1, 0, 1] for key in few}
    assert len(read_models(models, bases=False, variants=True)) == 4
    assert [graph_macs(graph) for graph in graphs(table)] == table["macs"].tolist()
    written = pd.read_parquet(prior)
    shapes = conv_shapes([simplify(prior_models()["alexnet"]())])
    assert written["count"].sum() == shapes.total()
    assert {json.loads(text).get("kernel_h", 1) for text in written["config"]} == {s.kernel for s in shapes}
    assert pd.read_csv(costs)["variants"].tolist() == [2, 2]
