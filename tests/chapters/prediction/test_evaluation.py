"""Metrics, tables and figures of merit of predictions by hand; Table 11 and figures of speed, told with their machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd
import pytest
from evaluation_evidence import full_evidence
from executed_nodes import drawn, model
from quick_bench import DEVICE, SETTINGS, measuring_alone  # noqa: F401  a fixture
from shipped_params import PARAMS_FILE
from trained_nodes import device_file, trained, write_device

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation import page, tables
from edgeplan.chapters.prediction.evaluation.tables import LINEAR_BASELINES, Evidence, leave_one_family_out, with_baselines
from edgeplan.chapters.prediction.stages import calibration, evaluation, zoo
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
from edgeplan.chapters.prediction.stages.transfer import transfer
from edgeplan.chapters.prediction.stages.truth import measure_models
from edgeplan.chapters.prediction.stages.zoo import conv_shapes
from edgeplan.chapters.prediction.whole_models import graphs, read_models
from edgeplan.chapters.registry import Params, load_params
from edgeplan.errors import FormatError
from edgeplan.graph.kinds import graph_macs
from edgeplan.graph.simplify import simplify
from edgeplan.reporting import chapter_report as kit
from edgeplan.reporting import metrics
from edgeplan.reporting.bars import interval_keys
from edgeplan.reporting.page import cell_text, table, write_table
from edgeplan.support.frames import write_parquet
from edgeplan.workloads import exports
from edgeplan.zoo import FAMILIES, VariantSpec, prior_models, variants


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return full_evidence()


def test_metrics_of_known_vectors() -> None:
    measured, predicted = [10.0, 20.0], [13.0, 16.0]
    assert metrics.rmse(measured, predicted) == pytest.approx(np.sqrt((9 + 16) / 2))
    assert metrics.rmspe(measured, predicted) == pytest.approx(100 * np.sqrt((0.3**2 + 0.2**2) / 2))
    measured, predicted = [100.0, 100.0, 100.0, 100.0, 3.0], [110.0, 90.0, 105.0, 111.0, 3.3]
    hit = metrics.accuracy(measured, predicted)  # the bound itself counts, and both signs
    assert (hit.models, hit.within_5pct, hit.within_10pct) == (5, pytest.approx(1 / 5), pytest.approx(4 / 5))
    assert (hit.rmse, hit.rmspe) == (metrics.rmse(measured, predicted), metrics.rmspe(measured, predicted))
    assert metrics.coverage([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 3.5, 3.0], [2.0, 2.0, 5.0, 3.9]) == 0.5
    assert metrics.relative_width([10.0, 10.0, 20.0], [9.0, 8.0, 18.0], [10.0, 14.0, 23.0]) == pytest.approx(0.25)
    ones = [1.0, 1.0]
    for bad, other in (([1.0, np.nan], ones), (ones, [1.0, np.inf]), ([1.0, 0.0], ones), ([1.0], ones), ([], [])):
        with pytest.raises(FormatError, match="no pairs of finite numbers"):
            metrics.rmspe(bad, other)


def test_a_family_is_predicted_by_the_line_of_the_others() -> None:
    rng = np.random.default_rng(3)
    macs, memory = rng.uniform(1e8, 1e10, 12), rng.uniform(1e6, 1e9, 12)
    known = {"family": np.repeat(["vgg", "resnet", "alexnet"], 4), "macs": macs, "memory_bytes": memory}
    models = pd.DataFrame({**known, "measured_ms": 2.0 + 3e-9 * macs + 5e-8 * memory}, index=np.arange(100, 112))
    predicted = leave_one_family_out(models, LINEAR_BASELINES["flops_mac"])
    assert list(predicted.index) == list(models.index)
    np.testing.assert_allclose(predicted, models["measured_ms"], rtol=1e-9)
    before = leave_one_family_out(models, ("macs",))
    vgg = models["family"] == "vgg"
    changed = models.assign(measured_ms=models["measured_ms"].where(~vgg, models["measured_ms"] * 7))
    after = leave_one_family_out(changed, ("macs",))
    np.testing.assert_allclose(after[vgg], before[vgg], err_msg="a family is never trained on itself")
    assert not np.allclose(after[~vgg], before[~vgg])
    both = with_baselines(models)
    assert metrics.rmspe(both["measured_ms"], both["flops_mac_ms"]) < metrics.rmspe(both["measured_ms"], both["flops_ms"])


def test_every_table_is_made_from_full_evidence_and_none_from_nothing(evidence: Evidence) -> None:
    made = kit.make(tables.TABLES, evidence)[0]
    assert list(made) == list(tables.TABLES)
    assert all(len(frame) > 0 for frame in made.values())
    assert kit.make(tables.TABLES, Evidence("cpu-test"))[0] == {}
    without = replace(evidence, models=evidence.models.drop(columns="operator_sum_ms"))
    assert set(tables.TABLES) - set(kit.make(tables.TABLES, without)[0]) == {"table_01"}


_BY_PART = [("adaptive", "yes", 5.0), ("operators", "yes", 0.5), ("random", "no", 5.0), ("frozen", "no", 1.0)]
_KERNELS = ["paper kernel", "rows", "algorithms"]
#: Table -> columns, and the first rows of these; models take 10 and 5 ms.
BY_HAND = {
    "table_01": (slice(1, 7), [("mean of 2 variants", 7.5, 10.5, (20 + 80) / 2, 7.8, (8 + 4) / 2)]),
    "table_03": (slice(1, 7), [("small", 20, 5, 24.5, 25, "undecided"), ("large", 40, 10, 49, 50, "separate")]),
    "table_06": (_KERNELS, [("Conv++bn++relu", 2, 1), ("FC", 1, 1), ("SE", 0, 0)]),
    "table_08": (slice(0, 6), [(f, 2, 0.34**0.5, 40**0.5, 50, 100) for f in ("MobileNetv2s", "all")]),
    "table_12": (slice(0, 3), [*_BY_PART, ("calibration", "yes", 1.0), ("total behind the predictors", "yes", 6.5)]),
    "table_conv_fusion": (slice(1, 6), [(2, 15, 0, 0, 0), (2, 15.35, 2, 1, 3)]),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_tables_by_hand(evidence: Evidence, name: str) -> None:
    columns, wanted = BY_HAND[name]
    times = {"measured_ms": [10.0, 5.0], "predicted_ms": [10.8, 4.8], "operator_sum_ms": [12.0, 9.0]}
    models = pd.DataFrame({"model_id": ["a", "b"], "family": "mobilenetv2", **times})
    given = replace(evidence, models=models, calibration=pd.DataFrame({"seconds": [20.0, 40.0]}))
    made = getattr(tables, name)(given)
    shown = made[columns] if isinstance(columns, list) else made.iloc[:, columns]
    for row, one in zip(shown.itertuples(index=False, name=None), wanted, strict=False):
        assert list(row) == pytest.approx(list(one))
    assert name != "table_08" or made.iloc[-1]["paper VPU: within 10 % (%)"] == 83.4


def test_kernels_of_other_devices_and_sample_spaces_are_counted(evidence: Evidence) -> None:
    kernels = tables.table_04(evidence)
    assert list(kernels["cpu-test"]) == list(kernels["paper GPU"])
    assert kernels["paper CPU"].sum() == paper.printed("table_04")["paper CPU"].sum() == 31
    no_plain = evidence.conv_fusion[lambda f: f["type"] != "conv"]
    with pytest.raises(kit.NotMeasuredError, match="no plain `conv`"):
        tables.table_conv_fusion(replace(evidence, conv_fusion=no_plain))
    made = tables.table_05(evidence).set_index("dimension")
    assert made.loc["Cin", "ours"] == "4 - 8"
    # 1 size x 1 kernel x 1 stride x 5 input x 9 output channels.
    assert made.loc["configurations", "ours"].startswith("4.5e-08 billion (2 distinct")


def test_samplers_are_compared_by_their_conv_predictors_and_by_whole_models_with_these(evidence: Evidence) -> None:
    measured = evidence.models["measured_ms"]
    models = evidence.models.assign(adaptive_sampling_ms=measured * 1.2, random_sampling_ms=measured * 1.01)
    made = tables.table_10(replace(evidence, models=models)).set_index("sampler")
    assert list(made["conv RMSPE (%)"]) == [8.0, 40.0]
    assert list(made["lowest"]) == ["yes", "no"]
    assert list(made["minutes"]) == [5.0, 5.0]
    assert list(made.loc["random", ["over adaptive, from (points)", "to (points)"]]) == [20.0, 50.0]
    assert np.isnan(made.loc["adaptive", "over adaptive, from (points)"])
    assert list(made["models within 10 % (%)"]) == list(made["AlexNets within 10 % (%)"]) == [0.0, 100.0]
    alone = replace(evidence, samplers=evidence.samplers.iloc[:1])
    assert list(tables.table_10(alone)["lowest"]) == [""]


def test_kernels_stand_beside_the_papers_and_forests_where_nothing_was_learnt_from(evidence: Evidence) -> None:
    made = tables.table_09(evidence).set_index(["split", "kernel"])
    row = made.loc[("paper only", "se")]
    assert np.isnan(row["RMSE (ms)"])
    assert (row["paper CPU: RMSE (ms)"], row["paper VPU: within 10 % (%)"]) == (0.45, 99.0)
    assert ("paper only", "conv") not in made.index
    assert made.loc[("frozen", "conv"), "rows"] == 15
    assert np.isnan(made.loc[("cross-validation", "conv"), "forest: RMSPE (%)"])
    assert made.loc[("frozen", "conv"), "forest: RMSPE (%)"] > 0


def test_what_was_not_measured_is_absent_from_metrics_and_bars_depend_on_the_device(evidence: Evidence) -> None:
    values = page.metrics(evidence)
    named = [f"prediction.{name}" for name in ("within_10pct", "within_5pct", "normalised_within_10pct", "repeat_within_10pct")]
    assert list(values) == sorted({*page.MERITS, *(end for key in named for end in interval_keys(key))})
    told = {"interval.width_90": 0.2, "fusion.precision": 0.75, "fusion.recall": 0.944444}
    assert values.items() >= {**told, "measuring.kernel_minutes": 7.66667, "prediction.left_out_within_10pct": 0.833333}.items()
    usual = evidence.models["normalised_ms"]
    first_off = usual * [1.2, *[1.01] * (len(usual) - 1)]
    changed = evidence.models.assign(repeat_ms=first_off, predicted_ms=usual, measured_ms=1.2 * usual)
    values = page.metrics(replace(evidence, models=changed))  # as they ran none is within 10 %, at the usual speed all are
    assert values["prediction.repeat_within_10pct"] == pytest.approx(1 - 1 / len(usual), rel=1e-5)
    assert (values["prediction.within_10pct"], values["prediction.normalised_within_10pct.low"]) == (0, 1)
    assert [page.bars(device)[0].reached(0.955) for device in ("cpu-onnxruntime", "cpu-openvino")] == [False, True]
    assert page.metrics(Evidence("cpu-test")) == {}
    only = page.metrics(Evidence("cpu-test", sampling=evidence.sampling))
    assert only == {"measuring.kernel_minutes": 5.5}
    unfused = evidence.verification[lambda f: f["pair"] == "fc_relu"]
    assert page.metrics(Evidence("cpu-test", verification=unfused)) == {}
    no_interval = page.metrics(Evidence("cpu-test", models=evidence.models.drop(columns=["low_ms"])))
    assert "interval.coverage_90" not in no_interval
    assert "prediction.within_10pct" in no_interval


def test_a_written_table_reads_back_and_carries_its_date(tmp_path: Path) -> None:
    frame = pd.DataFrame({"family": ["a|b", "c"], "value": [1.23456789, np.nan]})
    write_table(table("table_1.5", "Title", "Caption.", frame), frame, tmp_path, "2024-05-06")
    back = pd.read_csv(tmp_path / "table_1.5.csv")
    assert list(back["measured_at"]) == ["2024-05-06"] * 2
    assert back["value"][0] == pytest.approx(1.23457)
    text = (tmp_path / "table_1.5.md").read_text(encoding="utf-8")
    assert "| a\\|b | 1.235 |" in text
    assert "| c |  |" in text
    assert text.endswith("Measured: 2024-05-06\n")


def test_cells_have_four_significant_digits_and_families_are_recognised() -> None:
    told = {12345.6: "12346", 100.0: "100", 0.0123456: "0.01235", 0.0: "0", float("nan"): "", True: "yes", 7: "7", -2.5: "-2.5"}
    assert {value: cell_text(value) for value in told} == told
    assert {paper.family_key(name) for name in ("MobileNet_V2", "MobileNetv2s", "mobilenetv2")} == {"mobilenetv2"}
    assert paper.family_key("ProxylessNAS") == paper.family_key("ProxylessNass") == "proxylessnas"


PARAMS = load_params(PARAMS_FILE)
SOURCE, TARGET = PARAMS.transfer.source, PARAMS.transfer.target


def evaluated(folder: Path, fingerprint: str, models: pd.DataFrame) -> Path:
    folder.mkdir()
    models.to_parquet(folder / "models.parquet")
    about = {"cpu": "Example CPU", "cores": 2, "fingerprint": fingerprint, "measured_at": f"{folder.name} UTC"}
    (folder / "environment.json").write_text(json.dumps(about))
    return folder


def transferred(source: Path, target: Path) -> tuple[pd.DataFrame, str]:
    csv = source.parent / "table_11.csv"
    transfer(PARAMS, source=source, target=target, csv=csv, chapter=source.parent / "page.json")
    frame = pd.read_csv(csv, keep_default_na=False, na_values=[""])
    return frame.drop(columns="measured_at"), str(frame["measured_at"][0])


def test_devices_of_one_machine_are_compared(tmp_path: Path, evidence: Evidence) -> None:
    models = evidence.models
    faster = models.assign(predicted_ms=models["measured_ms"] * 0.5)
    table, dates = transferred(evaluated(tmp_path / "a", "f1", faster), evaluated(tmp_path / "b", "f1", models))
    row = table.set_index("family").loc["AlexNets"]
    assert row["transferred: RMSPE (%)"] == pytest.approx(50.0)
    assert (row["paper transferred: RMSE (ms)"], row["paper rebuilt: within 5 % (%)"]) == (8.02, 86.5)
    assert dates == f"{SOURCE} a UTC; {TARGET} b UTC"


def test_devices_of_two_machines_and_without_a_common_model_get_a_note(tmp_path: Path, evidence: Evidence) -> None:
    source, target = evaluated(tmp_path / "a", "f1", evidence.models), evaluated(tmp_path / "b", "f2", evidence.models)
    table, _ = transferred(source, target)
    (note,) = table["note"]
    assert list(table.columns) == ["note"]
    for part in ("not measured on one machine", f"{SOURCE} on Example CPU, 2 cores, fingerprint f1", "fingerprint f2"):
        assert part in note
    assert note.endswith(f"make reproduce DEVICE={SOURCE} and make reproduce DEVICE={TARGET}")
    (source / "environment.json").write_text("{}")
    assert "fingerprint not recorded" in transferred(source, target)[0]["note"][0]
    few, rest = (
        evaluated(tmp_path / name, "f1", evidence.models[part]) for name, part in (("c", slice(3)), ("d", slice(3, None)))
    )
    assert "no common model" in transferred(few, rest)[0]["note"][0]


def test_what_was_measured_is_read_where_nothing_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "measure_speed", lambda *_: {"predict_call_ms": 8.123456789})
    results = write_device(tmp_path)
    measured = evaluation.speed_of(PARAMS, "dev", trained(), pd.DataFrame(), results)
    assert measured.figures == {"predict_call_ms": 8.12346}
    assert measured.told(results / "predictors").endswith("with these predictors.")
    assert measured.fingerprint in measured.told(results / "predictors")
    write_device(tmp_path, replace(trained(), measured_at="later"))
    assert measured.told(results / "predictors").endswith("with earlier predictors of this device.")
    monkeypatch.setenv(evaluation.STORED_ROWS_ONLY, "1")
    monkeypatch.setattr(evaluation, "measure_speed", lambda *_: pytest.fail("measured"))
    assert measured.model_copy(update={"figures": {}}).told(Path()) == ""
    assert evaluation.speed_of(PARAMS, "dev", trained(), pd.DataFrame(), results) == measured
    for text in (None, "", "{", '{"format_version": 2}'):
        (results / "evaluation/speed.json").unlink() if text is None else (results / "evaluation/speed.json").write_text(text)
        with pytest.raises(FormatError, match="may not be measured now") as caught:
            evaluation.speed_of(PARAMS, "dev", trained(), pd.DataFrame(), results)
        assert "git checkout" in caught.value.next_step


def test_models_for_the_speed_are_others_of_as_many_nodes() -> None:
    told = [model("a", drawn(np.random.default_rng(1), 9)), model("b", drawn(np.random.default_rng(2), 5))]
    made = list(evaluation._varied(told, 7, 3))
    assert [len(one.nodes) for one in made] == [9, 5, 9, 5, 9, 5, 9]
    assert len({node.config.key for one in made for node in one.nodes}) > 30
    assert made == list(evaluation._varied(told, 7, 3))


MODELS = 4


def measured(folder: Path, repeat: list[str]) -> pd.DataFrame:
    family = FAMILIES["nasbench201"]
    specs = list(variants(family, MODELS, 1))
    named = [(f"{family.id}-{spec.index:05d}", family.id, spec.index, spec.to_json(), 0, 0) for spec in specs]
    table = pd.DataFrame(named, columns=["model_id", "family", "index", "spec", "macs", "memory_bytes"])
    write_parquet(table, folder / "models.parquet")
    params = load_params(PARAMS_FILE)
    truth = params.truth.model_copy(update={"repeat": repeat, "min_gap_seconds": 0.2})
    files = {"models": "models.parquet", "rows": "rows", "truth": "truth.parquet", "environment": "environment.json"}
    paths = {name: folder / file for name, file in files.items()}
    measure_models(params.model_copy(update={"measurement": SETTINGS, "truth": truth}), device=device_file(folder), **paths)
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
    # models of other devices are measured once
    assert measured(tmp_path, [])[["repeat_ms", "repeat_gap_s"]].isna().all(axis=None)


def _with_calibration(params: Params, models: int) -> Params:
    calibrating = params.calibration.model_copy(update={"variants_per_family": models})
    return params.model_copy(update={"measurement": SETTINGS, "calibration": calibrating})


def test_models_that_calibrate_are_of_every_family_and_none_is_evaluated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 15,625 cells so many are evaluated that some are drawn again under another seed."""
    params = _with_calibration(load_params(PARAMS_FILE), 40)
    table = calibration.calibrating_models(params)
    assert table.groupby("family").size().to_dict() == dict.fromkeys(FAMILIES, 40)
    assert table["model_id"].is_unique
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
        assert len({(*name[:place], *name[place + 1 :]) for name in of}) == 1
    checks = [graph.name.rpartition("-plain")[0] for graph in check_graphs() if graph.name.endswith("-plain")]
    tails = ("bn", "bn-relu", "plain", "relu")
    assert sorted(graph.name for graph in check_graphs()) == sorted(f"{name}-{tail}" for name in checks for tail in tails)


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
