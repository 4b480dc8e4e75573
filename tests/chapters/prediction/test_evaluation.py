"""Metrics, tables and figures of merit of predictions by hand; Table 11 and figures of speed, told with their machine."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from evaluation_evidence import full_evidence
from executed_nodes import drawn, model
from shipped_params import PARAMS_FILE
from trained_nodes import trained, write_device

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation import page, tables
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.tables import LINEAR_BASELINES, leave_one_family_out, with_baselines
from edgeplan.chapters.prediction.stages import evaluation
from edgeplan.chapters.prediction.stages.transfer import transfer
from edgeplan.chapters.registry import load_params
from edgeplan.errors import FormatError
from edgeplan.reporting import chapter_report as kit
from edgeplan.reporting import metrics
from edgeplan.reporting.bars import interval_keys
from edgeplan.reporting.page import cell_text, table, write_table


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


def _linear_models() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    macs, memory = rng.uniform(1e8, 1e10, 12), rng.uniform(1e6, 1e9, 12)
    models = {"family": np.repeat(["vgg", "resnet", "alexnet"], 4), "macs": macs, "memory_bytes": memory}
    return pd.DataFrame({**models, "measured_ms": 2.0 + 3e-9 * macs + 5e-8 * memory}, index=np.arange(100, 112))


def test_a_family_is_predicted_by_the_line_of_the_others() -> None:
    models = _linear_models()
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


def test_table_08_stands_beside_the_paper(evidence: Evidence) -> None:
    about = {"model_id": ["a", "b"], "family": "alexnet"}
    models = pd.DataFrame({**about, "measured_ms": 10.0, "predicted_ms": [10.8, 9.6]})
    made = tables.table_08(replace(evidence, models=models))
    row = made.iloc[0]
    assert (row["family"], row["models"]) == ("AlexNets", 2)
    assert row["RMSPE (%)"] == pytest.approx(100 * np.sqrt((0.08**2 + 0.04**2) / 2))
    assert (row["within 5 % (%)"], row["within 10 % (%)"]) == (50.0, 100.0)
    assert row["paper CPU: within 10 % (%)"] == 98.6
    assert made.iloc[-1]["paper VPU: within 10 % (%)"] == 83.4


def test_table_01_takes_the_mean_of_the_variants(evidence: Evidence) -> None:
    about = {"model_id": ["mobilenetv2-0000", "mobilenetv2-0001"], "family": "mobilenetv2"}
    times = {"measured_ms": [10.0, 5.0], "predicted_ms": [10.5, 5.0], "operator_sum_ms": [12.0, 9.0]}
    row = tables.table_01(replace(evidence, models=pd.DataFrame({**about, **times}))).iloc[0]
    assert (row["models"], row["latency (ms)"], row["operator sum (ms)"]) == ("mean of 2 variants", 7.5, 10.5)
    assert row["operator sum error (%)"] == pytest.approx((20.0 + 80.0) / 2)
    assert row["kernel sum error (%)"] == pytest.approx((5.0 + 0.0) / 2)


def test_fusion_is_told_as_it_was_tested_and_as_the_paper_has_it(evidence: Evidence) -> None:
    ours = tables.table_03(evidence).head(2)
    assert list(ours["tensors"]) == ["small", "large"]
    assert list(ours["pool_relu"]) == ["undecided", "separate"]
    kernels = tables.table_04(evidence)
    assert list(kernels["cpu-test"]) == list(kernels["paper GPU"])
    assert kernels["paper CPU"].sum() == paper.printed("table_04")["paper CPU"].sum() == 31
    made = tables.table_conv_fusion(evidence).set_index("kernel")
    assert made.loc["conv++bn++relu", "configurations"] == 2
    assert made.loc["conv++bn++relu", "over Conv, max (%)"] == pytest.approx(3.0)
    no_plain = evidence.conv_fusion[lambda f: f["type"] != "conv"]
    with pytest.raises(kit.NotMeasuredError, match="no plain `conv`"):
        tables.table_conv_fusion(replace(evidence, conv_fusion=no_plain))


def test_sample_spaces_and_rows_are_counted(evidence: Evidence) -> None:
    made = tables.table_05(evidence).set_index("dimension")
    assert made.loc["Cin", "ours"] == "4 - 8"
    # 1 size x 1 kernel x 1 stride x 5 input x 9 output channels.
    assert made.loc["configurations", "ours"].startswith("4.5e-08 billion (2 distinct")
    made = tables.table_06(evidence).set_index("kernel")  # by the paper's kernel, where they are learnt from
    assert made.loc["conv", ["rows", "algorithms"]].tolist() == [2, 1]
    assert (made.loc["fc", "rows"], made.loc["se", "rows"]) == (1, 0)  # the latter is several nodes here


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


def test_measuring_cost_leaves_baselines_and_the_frozen_set_out(evidence: Evidence) -> None:
    none, calibration = pd.DataFrame(), pd.DataFrame({"seconds": [20.0, 40.0]})
    assert tables.kernel_minutes(evidence.sampling, none) == pytest.approx(5.5)
    assert tables.kernel_minutes({"seconds": {"adaptive": 60}}, calibration) == pytest.approx(2.0)
    made = tables.table_12(evidence).set_index("part")
    assert (made.loc["random", "behind the predictors"], made.loc["random", "minutes"]) == ("no", 5.0)
    assert made.loc["calibration", "behind the predictors"] == "yes"


def test_models_are_predicted_beside_how_well_they_repeat(evidence: Evidence) -> None:
    frame = evidence.models
    usual = frame["normalised_ms"]
    frame = frame.assign(repeat_ms=usual * [1.2, *[1.01] * (len(frame) - 1)], predicted_ms=usual)
    frame["measured_ms"] = 1.2 * usual  # as it ran, which alone counts for the first
    values = page.metrics(replace(evidence, models=frame))
    assert values["prediction.repeat_within_10pct"] == pytest.approx(1 - 1 / len(frame), rel=1e-5)
    assert values["prediction.repeat_within_10pct.low"] < values["prediction.repeat_within_10pct"] < 1
    assert (values["prediction.within_10pct"], values["prediction.normalised_within_10pct.low"]) == (0, 1)


def test_metrics_are_exactly_the_keys_and_values(evidence: Evidence) -> None:
    values = page.metrics(evidence)
    named = [f"prediction.{name}" for name in ("within_10pct", "within_5pct", "normalised_within_10pct", "repeat_within_10pct")]
    assert list(values) == sorted({*page.MERITS, *(end for key in named for end in interval_keys(key))})
    assert values["interval.width_90"] == pytest.approx(0.2)
    assert values["fusion.precision"] == pytest.approx(0.75)
    assert values["fusion.recall"] == pytest.approx(0.944444)


def test_what_was_not_measured_is_absent_from_metrics_and_bars_depend_on_the_device(evidence: Evidence) -> None:
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
    monkeypatch.delenv(evaluation.STORED_ROWS_ONLY, raising=False)
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


def test_models_for_the_speed_are_others_of_as_many_nodes() -> None:
    told = [model("a", drawn(np.random.default_rng(1), 9)), model("b", drawn(np.random.default_rng(2), 5))]
    made = list(evaluation._varied(told, 7, 3))
    assert [len(one.nodes) for one in made] == [9, 5, 9, 5, 9, 5, 9]
    assert len({node.config.key for one in made for node in one.nodes}) > 30
    assert made == list(evaluation._varied(told, 7, 3))
    assert (trained().predict_many(made) > 0).all()


@pytest.mark.parametrize("text", [None, "", "{", '{"format_version": 2}'])
def test_figures_that_cannot_be_read_are_asked_for(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "speed.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FormatError, match="may not be measured now") as caught:
        evaluation.stored_speed(path)
    assert "git checkout" in caught.value.next_step
