"""Factors of kinds of which a model's own family knows nothing."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pandas as pd
import pytest
from bare_card import bare_card
from edgeplan.predictors.kernel_tables import KernelTables
from edgeplan.predictors.predictions import BatchPrediction
from edgeplan.predictors.predictor import DevicePredictor

from edgeplan.chapters.prediction.stages.evaluation import family_left_out_ms

COUNT = 40
BY_KIND = np.random.default_rng(2).uniform(1.0, 10.0, (2, COUNT)) * np.array([[3.0], [1.0]])
CALL_MS = 0.005
WHOLE_MS = 1000.0  # a model of more has a kernel that the predictor does not know


class Known(DevicePredictor):
    """Predicts the latencies it was given, by kind; its kinds come in the order of the models it is asked for."""

    def predict_many(self, models: KernelTables, *, allow_partial: bool = False) -> BatchPrediction:
        times = cast("Any", models)
        whole = times.sum(axis=0) + CALL_MS
        count, kinds = np.where(whole > WHOLE_MS, 0.5, 1.0), ("conv", "fc")
        if allow_partial:
            times, kinds = np.vstack([times[::-1], np.zeros(len(whole))]), ("fc", "conv", "pool")
        return BatchPrediction(("m",) * len(whole), whole, whole, whole, count, count, times, kinds)


class Factored(DevicePredictor):
    """Known once its own factors are left away; asked with them it fails."""

    def without_factors(self) -> DevicePredictor:
        return Known(self.card, {})


def test_a_family_is_predicted_by_what_the_others_showed() -> None:
    predictor = Factored(bare_card(call_us=1e3 * CALL_MS), {})
    families = pd.Series(["a", "b"] * (COUNT // 2))
    conv, fc = (families.map(dict(zip("ab", pair, strict=True))).to_numpy() for pair in ((1.2, 0.9), (0.9, 1.1)))
    measured_ms = BY_KIND[0] * conv + BY_KIND[1] * fc + CALL_MS
    calibrating = pd.DataFrame({"family": families, "measured_ms": measured_ms})
    seen = BY_KIND.copy()
    seen[:, 20:] = 2 * WHOLE_MS  # not whole: nothing follows from what they take
    found = family_left_out_ms(predictor, cast("Any", BY_KIND), families, cast("Any", seen), calibrating)
    conv, fc = (families.map(dict(zip("ab", pair, strict=True))).to_numpy() for pair in ((0.9, 1.2), (1.1, 0.9)))
    assert found == pytest.approx(BY_KIND[0] * conv + BY_KIND[1] * fc + CALL_MS, rel=0.01)


def test_without_another_family_kernels_count_as_they_are() -> None:
    predictor = Factored(bare_card(call_us=1e3 * CALL_MS), {})
    calibrating = pd.DataFrame({"family": ["a"] * COUNT, "measured_ms": BY_KIND.sum(axis=0) * 2})
    found = family_left_out_ms(predictor, cast("Any", BY_KIND), pd.Series(["a"] * COUNT), cast("Any", BY_KIND), calibrating)
    assert found == pytest.approx(BY_KIND.sum(axis=0) + CALL_MS)
