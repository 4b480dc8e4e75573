"""Tables and metrics.json from small synthetic frames, against values worked out by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from evaluation_evidence import full_evidence

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation import page, tables
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.reporting import chapter_report as kit
from edgeplan.reporting.bars import interval_keys
from edgeplan.reporting.page import cell_text, table, write_table


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return full_evidence()


def test_every_table_is_made_from_full_evidence_and_none_from_nothing(evidence: Evidence) -> None:
    made = kit.make(tables.TABLES, evidence)[0]
    assert list(made) == list(tables.TABLES)
    assert all(len(frame) > 0 for frame in made.values())
    assert kit.make(tables.TABLES, Evidence("cpu-test"))[0] == {}


def test_a_missing_optional_column_drops_its_table_alone(evidence: Evidence) -> None:
    without = replace(evidence, models=evidence.models.drop(columns="operator_sum_ms"))
    assert set(tables.TABLES) - set(kit.make(tables.TABLES, without)[0]) == {"table_01"}


def test_table_08_stands_beside_the_paper(evidence: Evidence) -> None:
    models = pd.DataFrame(
        {
            "model_id": ["a", "b"],
            "family": ["alexnet", "alexnet"],
            "measured_ms": [10.0, 10.0],
            "predicted_ms": [10.8, 9.6],
        }
    )
    table = tables.table_08(replace(evidence, models=models))
    row = table.iloc[0]
    assert (row["family"], row["models"]) == ("AlexNets", 2)
    assert row["RMSPE (%)"] == pytest.approx(100 * np.sqrt((0.08**2 + 0.04**2) / 2))
    assert (row["within 5 % (%)"], row["within 10 % (%)"]) == (50.0, 100.0)
    assert row["paper CPU: within 10 % (%)"] == 98.6
    assert table.iloc[-1]["paper VPU: within 10 % (%)"] == 83.4


def test_table_01_takes_the_mean_of_the_variants(evidence: Evidence) -> None:
    models = pd.DataFrame(
        {
            "model_id": ["mobilenetv2-0000", "mobilenetv2-0001"],
            "family": "mobilenetv2",
            "measured_ms": [10.0, 5.0],
            "predicted_ms": [10.5, 5.0],
            "operator_sum_ms": [12.0, 9.0],
        }
    )
    row = tables.table_01(replace(evidence, models=models)).iloc[0]
    assert (row["models"], row["latency (ms)"], row["operator sum (ms)"]) == ("mean of 2 variants", 7.5, 10.5)
    assert row["operator sum error (%)"] == pytest.approx((20.0 + 80.0) / 2)
    assert row["kernel sum error (%)"] == pytest.approx((5.0 + 0.0) / 2)


def test_table_03_tells_tests_on_small_and_large_tensors_apart(evidence: Evidence) -> None:
    ours = tables.table_03(evidence).head(2)
    assert list(ours["tensors"]) == ["small", "large"]
    assert list(ours["pool_relu"]) == ["undecided", "separate"]


def test_table_04_agrees_with_the_papers_gpu(evidence: Evidence) -> None:
    table = tables.table_04(evidence)
    assert list(table["cpu-test"]) == list(table["paper GPU"])
    assert table["paper CPU"].sum() == paper.printed("table_04")["paper CPU"].sum() == 31


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
    intervals = [
        end
        for name in ("within_10pct", "within_5pct", "normalised_within_10pct", "repeat_within_10pct")
        for end in interval_keys(f"prediction.{name}")
    ]
    assert list(values) == sorted({*page.MERITS, *intervals})
    assert values["interval.width_90"] == pytest.approx(0.2)
    assert values["fusion.precision"] == pytest.approx(0.75)
    assert values["fusion.recall"] == pytest.approx(0.944444)


def test_what_was_not_measured_is_absent_from_metrics(evidence: Evidence) -> None:
    assert page.metrics(Evidence("cpu-test")) == {}
    only = page.metrics(Evidence("cpu-test", sampling=evidence.sampling))
    assert only == {"measuring.kernel_minutes": 5.5}
    unfused = evidence.verification[lambda f: f["pair"] == "fc_relu"]
    assert page.metrics(Evidence("cpu-test", verification=unfused)) == {}
    no_interval = page.metrics(Evidence("cpu-test", models=evidence.models.drop(columns=["low_ms"])))
    assert "interval.coverage_90" not in no_interval
    assert "prediction.within_10pct" in no_interval


def test_bars_depend_on_the_device() -> None:
    bar = {device: page.bars(device)[0] for device in ("cpu-onnxruntime", "cpu-openvino")}
    assert not bar["cpu-onnxruntime"].reached(0.955)
    assert bar["cpu-openvino"].reached(0.955)


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (12345.6, "12346"),
        (100.0, "100"),
        (0.0123456, "0.01235"),
        (0.0, "0"),
        (float("nan"), ""),
        (True, "yes"),
        (7, "7"),
        (-2.5, "-2.5"),
    ],
)
def test_cells_have_four_significant_digits(value: object, text: str) -> None:
    assert cell_text(value) == text


@pytest.mark.parametrize("name", ["MobileNet_V2", "MobileNetv2s", "mobilenetv2"])
def test_family_names_are_recognised(name: str) -> None:
    assert paper.family_key(name) == "mobilenetv2"


def test_family_names_that_end_in_s_themselves() -> None:
    assert paper.family_key("ProxylessNAS") == paper.family_key("ProxylessNass") == "proxylessnas"
