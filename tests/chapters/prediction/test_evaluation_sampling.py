"""Tables of what was sampled, what it cost, and what predictors make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from evaluation_evidence import full_evidence

from edgeplan.chapters.prediction.evaluation import tables
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.reporting.chapter_report import NotMeasuredError


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return full_evidence()


def test_conv_fusion_compares_equal_configurations(evidence: Evidence) -> None:
    table = tables.table_conv_fusion(evidence).set_index("kernel")
    assert table.loc["conv++bn++relu", "configurations"] == 2
    assert table.loc["conv++bn++relu", "over Conv, max (%)"] == pytest.approx(3.0)
    no_plain = evidence.conv_fusion[lambda f: f["type"] != "conv"]
    with pytest.raises(NotMeasuredError, match="no plain `conv`"):
        tables.table_conv_fusion(replace(evidence, conv_fusion=no_plain))


def test_sample_space_counts_every_dimension(evidence: Evidence) -> None:
    table = tables.table_05(evidence).set_index("dimension")
    assert table.loc["Cin", "ours"] == "4 - 8"
    # 1 size x 1 kernel x 1 stride x 5 input x 9 output channels.
    assert table.loc["configurations", "ours"].startswith("4.5e-08 billion (2 distinct")


def test_rows_are_counted_by_the_papers_kernel_where_they_are_learnt_from(evidence: Evidence) -> None:
    table = tables.table_06(evidence).set_index("kernel")
    assert table.loc["conv", ["rows", "algorithms"]].tolist() == [2, 1]
    assert table.loc["fc", "rows"] == 1
    assert table.loc["se", "rows"] == 0  # the paper's, which is several nodes here


def test_samplers_are_compared_by_their_conv_predictors_and_by_whole_models_with_these(evidence: Evidence) -> None:
    measured = evidence.models["measured_ms"]
    models = evidence.models.assign(adaptive_sampling_ms=measured * 1.2, random_sampling_ms=measured * 1.01)
    table = tables.table_10(replace(evidence, models=models)).set_index("sampler")
    assert list(table["conv RMSPE (%)"]) == [8.0, 40.0]
    assert list(table["lowest"]) == ["yes", "no"]
    assert list(table["minutes"]) == [5.0, 5.0]
    assert list(table.loc["random", ["over adaptive, from (points)", "to (points)"]]) == [20.0, 50.0]
    assert np.isnan(table.loc["adaptive", "over adaptive, from (points)"])
    assert list(table["models within 10 % (%)"]) == list(table["AlexNets within 10 % (%)"]) == [0.0, 100.0]
    alone = replace(evidence, samplers=evidence.samplers.iloc[:1])
    assert list(tables.table_10(alone)["lowest"]) == [""]


def test_kernels_of_the_paper_that_are_not_ours_have_rows(evidence: Evidence) -> None:
    table = tables.table_09(evidence).set_index(["split", "kernel"])
    row = table.loc[("paper only", "se")]
    assert np.isnan(row["RMSE (ms)"])
    assert (row["paper CPU: RMSE (ms)"], row["paper VPU: within 10 % (%)"]) == (0.45, 99.0)
    assert ("paper only", "conv") not in table.index
    assert table.loc[("frozen", "conv"), "rows"] == 15


def test_forests_are_judged_where_nothing_was_learnt_from(evidence: Evidence) -> None:
    table = tables.table_09(evidence).set_index(["split", "kernel"])
    assert np.isnan(table.loc[("cross-validation", "conv"), "forest: RMSPE (%)"])
    assert table.loc[("frozen", "conv"), "forest: RMSPE (%)"] > 0


def test_measuring_cost_leaves_baselines_and_the_frozen_set_out(evidence: Evidence) -> None:
    none, calibration = pd.DataFrame(), pd.DataFrame({"seconds": [20.0, 40.0]})
    assert tables.kernel_minutes(evidence.sampling, none) == pytest.approx(5.5)
    assert tables.kernel_minutes({"seconds": {"adaptive": 60}}, calibration) == pytest.approx(2.0)
    table = tables.table_12(evidence).set_index("part")
    assert (table.loc["random", "behind the predictors"], table.loc["random", "minutes"]) == ("no", 5.0)
    assert table.loc["calibration", "behind the predictors"] == "yes"
