"""Tables and findings of the baselines beside our predictions."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from evaluation_evidence import full_evidence

from edgeplan.chapters.prediction.evaluation import tables_baselines
from edgeplan.chapters.prediction.evaluation.evidence import Evidence


@pytest.fixture(scope="module")
def evidence() -> Evidence:
    return full_evidence()


@pytest.fixture(scope="module")
def led(evidence: Evidence) -> Evidence:
    """Operator sums clearly ahead on VGGs, not told apart on ResNets (one model better, one worse), behind elsewhere."""
    models = evidence.models
    truth, ours, family = models["measured_ms"], models["predicted_ms"], models["family"]
    number = models.groupby("family").cumcount()
    off = (1.2 - 0.01 * number).where(number % 2 == 0, 0.8)  # never by much the same
    changed = models.assign(
        predicted_ms=ours.where(~family.isin(["vgg", "resnet"]), truth * off),
        operator_sum_ms=(truth * off * 1.6)
        .where(family != "vgg", truth * (1 + (off - 1) / 4))
        .where(family != "resnet", truth * off.where(number > 0, 1.1).where(number != 1, 0.75)),
    )
    return replace(evidence, models=changed)


def test_baseline_verdicts_name_the_families_that_are_lost(evidence: Evidence) -> None:
    assert evidence.models is not None
    swapped = evidence.models.assign(operator_sum_ms=evidence.models["predicted_ms"])
    vgg = swapped["family"] == "vgg"
    swapped.loc[~vgg, "operator_sum_ms"] *= 2
    table = tables_baselines.baselines(replace(evidence, models=swapped))
    verdict = tables_baselines.baseline_verdicts(table).set_index("baseline")
    assert verdict.loc["operator sum", "higher_within"] == ""
    assert verdict.loc["operator sum", "not_worse_rmspe"] == "vgg"


def test_differences_to_baselines_tell_a_clear_lead_from_others(led: Evidence) -> None:
    table = tables_baselines.table_baseline_differences(led)
    assert len(table) == 3 * 13
    rows = table[table["baseline"] == "operator sum"].set_index("family")
    assert rows.loc["VGGs", "ahead"] == "baseline"
    assert rows.loc["VGGs", "to (points)"] < 0
    assert rows.loc["VGGs", "p"] < 0.05
    assert rows.loc["ResNets", "ahead"] == "not told apart"
    assert rows.loc["ResNets", "difference, 95 % from (points)"] < 0 < rows.loc["ResNets", "to (points)"]
    assert rows.loc["AlexNets", "ahead"] == "ours"
    assert rows.loc["AlexNets", "baseline longer than ours, median (%)"] > 0


def test_a_family_of_one_model_tells_nothing_apart(evidence: Evidence) -> None:
    single = evidence.models.groupby("family", sort=False).head(1).reset_index(drop=True)
    table = tables_baselines.table_baseline_differences(replace(evidence, models=single))
    assert set(table["ahead"]) == {"not told apart"}
    assert table["p"].isna().all()


def test_one_family_alone_has_no_regressions_to_beat(evidence: Evidence) -> None:
    models = evidence.models
    table = tables_baselines.baseline_differences(replace(evidence, models=models[models["family"] == "vgg"]))
    assert list(table["baseline"]) == ["operator sum"]
    assert isinstance(table, pd.DataFrame)
