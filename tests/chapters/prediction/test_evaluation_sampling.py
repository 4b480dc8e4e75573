"""Tables of what was sampled, what it cost, and what predictors make of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from edgeplan.predictors.training_rows import trained_on
from evaluation_evidence import full_evidence

from edgeplan.chapters.prediction.evaluation import tables_fusion, tables_sampling
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.stages import training
from edgeplan.errors import FormatError
from edgeplan.reporting.kit import NotMeasuredError


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return full_evidence()


def test_conv_fusion_compares_equal_configurations(evidence: Evidence) -> None:
    table = tables_fusion.table_conv_fusion(evidence).set_index("kernel")
    assert table.loc["conv++bn++relu", "configurations"] == 2
    assert table.loc["conv++bn++relu", "over Conv, max (%)"] == pytest.approx(3.0)
    no_plain = evidence.conv_fusion[lambda f: f["type"] != "conv"]
    with pytest.raises(NotMeasuredError, match="no plain `conv`"):
        tables_fusion.table_conv_fusion(replace(evidence, conv_fusion=no_plain))


def test_sample_space_counts_every_dimension(evidence: Evidence) -> None:
    table = tables_sampling.table_05(evidence).set_index("dimension")
    assert table.loc["Cin", "ours"] == "4 - 8"
    # 1 size x 1 kernel x 1 stride x 5 input x 9 output channels.
    assert table.loc["configurations", "ours"].startswith("4.5e-08 billion (2 distinct")


def test_rows_of_other_samplers_and_modes_do_not_count(evidence: Evidence) -> None:
    table = tables_sampling.table_06(evidence).set_index("kernel")
    assert (table.loc["conv", "rows"], table.loc["conv", "configurations"]) == (2, 1)
    other = evidence.kernels.assign(mode=["in_situ", "isolated", "in_situ", "in_situ"])
    assert tables_sampling.table_06(replace(evidence, kernels=other)).set_index("kernel").loc["conv", "rows"] == 1


def test_rows_count_once_from_every_sampler_that_is_trained_on() -> None:
    table = pd.DataFrame(
        [
            ("a", "adaptive", "in_situ"),
            ("a", "prior", "in_situ"),  # a carrier that both share
            ("b", "prior", "in_situ"),
            ("c", "random", "in_situ"),
            ("d", "network", "in_situ"),
            ("e", "frozen", "in_situ"),
            ("f", "sweep", "in_situ"),
            ("g", "isolated", "isolated"),
            ("d", "frozen", "in_situ"),
            ("h", "further", "in_situ"),
        ],
        columns=["subject", "sampler", "mode"],
    )
    chosen = table[trained_on(table, "in_situ")]
    assert list(zip(chosen["subject"], chosen["sampler"], strict=True)) == [
        ("a", "adaptive"),
        ("b", "prior"),
        ("c", "random"),
        ("d", "network"),
        ("h", "further"),
    ]
    assert list(table[trained_on(table, "isolated")]["subject"]) == ["g"]


def test_networks_of_the_prior_count_as_seen(evidence: Evidence) -> None:
    kernels = evidence.kernels.assign(sampler=["network", "sweep", "frozen", "frozen"])
    table = tables_sampling.table_06(replace(evidence, kernels=kernels)).set_index("kernel")
    assert (table.loc["conv", "rows"], "fc" in table.index) == (1, False)


def test_whole_models_of_each_sampler_are_predicted_by_its_own_conv_predictor(evidence: Evidence) -> None:
    measured = evidence.models["measured_ms"]
    models = evidence.models.assign(
        predicted_ms=measured,
        adaptive_sampling_ms=measured * 1.2,
        random_sampling_ms=measured,
        prior_sampling_ms=measured * 1.01,
    )
    table = tables_sampling.table_10(replace(evidence, models=models)).set_index("sampler")
    assert list(table["models within 10 % (%)"]) == [0.0, 100.0, 100.0]
    assert list(table["AlexNets within 10 % (%)"]) == [0.0, 100.0, 100.0]


def test_samplers_are_compared_on_all_labels_and_on_resolved_ones_alone(evidence: Evidence) -> None:
    table = tables_sampling.table_10(evidence).set_index("sampler")
    assert list(table["conv RMSPE, labels >= 1 us (%)"]) == [8.0, 40.0, 12.0]
    assert list(table["lowest, labels >= 1 us"]) == ["yes", "no", "no"]
    assert list(table["conv RMSPE, all labels (%)"]) == [26.0, 44.0, 21.0]
    assert list(table["lowest, all labels"]) == ["no", "no", "yes"]
    alone = replace(evidence, samplers=evidence.samplers.iloc[:1])
    assert list(tables_sampling.table_10(alone)["lowest, all labels"]) == [""]


def test_samplers_are_held_against_the_adaptive_one_with_an_interval(evidence: Evidence) -> None:
    table = tables_sampling.table_10(evidence).set_index("sampler")
    ends = ["over adaptive, labels >= 1 us, from (points)", "to, labels >= 1 us (points)"]
    assert list(table.loc["prior", ends]) == [-1.0, 9.0]
    assert np.isnan(table.loc["adaptive", "over adaptive, all labels, from (points)"])


def test_training_tells_how_far_a_sampler_is_from_the_adaptive_one() -> None:
    adaptive = pd.DataFrame({"subject": list("aabbccdd"), "config": "{}", "measured_us": 2.0, "predicted_us": 2.2})
    adaptive.loc[0, ["measured_us", "predicted_us"]] = (0.5, 5.0)  # too short to be resolved
    worse = adaptive.assign(predicted_us=2.6)
    found = training._differences(worse, adaptive)
    assert found["rmspe_more_low"] == pytest.approx(20.0)
    assert found["rmspe_more_high"] == pytest.approx(20.0)
    assert found["rmspe_more_low_all"] < 0 < found["rmspe_more_high_all"]
    assert all(np.isnan(value) for value in training._differences(adaptive, None).values())
    with pytest.raises(FormatError, match="different labels"):
        training._differences(worse.assign(subject="e"), adaptive)


def test_training_judges_on_all_labels_and_on_resolved_ones_alone() -> None:
    rows = pd.DataFrame({"measured_us": [0.5, 2.0], "predicted_us": [1.0, 2.2]})
    found = training._judged(rows)
    assert (found["labels"], found["labels_all"]) == (1, 2)
    assert found["rmspe"] == pytest.approx(10.0)
    assert found["rmspe_all"] == pytest.approx(100 * np.sqrt((1 + 0.01) / 2))
    assert np.isnan(training._judged(rows[:1])["rmspe"])


def test_kernels_of_the_paper_that_are_not_ours_have_rows(evidence: Evidence) -> None:
    table = tables_sampling.table_09(evidence).set_index(["split", "kernel"])
    row = table.loc[("paper only", "se")]
    assert np.isnan(row["RMSE (ms)"])
    assert (row["paper CPU: RMSE (ms)"], row["paper VPU: within 10 % (%)"]) == (0.45, 99.0)
    assert ("paper only", "conv") not in table.index
    assert table.loc[("frozen", "conv"), "rows"] == 15


def test_measuring_cost_leaves_baselines_and_the_frozen_set_out(evidence: Evidence) -> None:
    none, calibration = pd.DataFrame(), pd.DataFrame({"seconds": [20.0, 40.0]})
    assert tables_sampling.kernel_minutes(evidence.sampling, none) == pytest.approx(16.0)
    assert tables_sampling.kernel_minutes({"seconds": {"adaptive": 60}}, calibration) == pytest.approx(2.0)
    beyond = {"seconds": {"adaptive": 60.0, "excess": 30.0}}
    assert tables_sampling.kernel_minutes(beyond, none) == pytest.approx(1.0)
    table = tables_sampling.table_12(replace(evidence, sampling=beyond)).set_index("part")
    assert (table.loc["excess", "behind the predictors"], table.loc["excess", "minutes"]) == ("no", 0.5)
    assert table.loc["calibration", "behind the predictors"] == "yes"
