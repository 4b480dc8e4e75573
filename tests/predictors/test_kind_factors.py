"""Factors of kernel kinds, fitted on whole models."""

from __future__ import annotations

import numpy as np
import pytest
from edgeplan.predictors.kind_factors import cross_fitted_ms, fit_factors

CALL_MS = 0.05


def _models(count: int = 60) -> np.ndarray:
    """Latency by kind: much of it the first's, some the second's, next to none the third's (3, count)."""
    rng = np.random.default_rng(3)
    return rng.uniform(0.2, 1.0, (3, count)) * np.array([[10.0], [3.0], [0.01]])


def test_kinds_that_are_off_are_found() -> None:
    predicted = _models()
    measured = np.array([1.05, 0.9, 1.0]) @ predicted + CALL_MS
    found = fit_factors(predicted, CALL_MS, measured)
    np.testing.assert_allclose(found[:2], [1.05, 0.9], atol=2e-3)


def test_a_kind_of_little_time_stays_where_it_is() -> None:
    predicted = _models()
    noise = np.random.default_rng(4).normal(1.0, 0.02, predicted.shape[1])
    found = fit_factors(predicted, CALL_MS, (np.array([1.0, 1.0, 3.0]) @ predicted + CALL_MS) * noise)
    assert found[2] == pytest.approx(1.0, abs=0.02)
    np.testing.assert_allclose(found[:2], 1.0, atol=0.03)


def test_a_few_models_far_off_decide_nothing() -> None:
    predicted = _models()
    measured = 1.04 * predicted.sum(axis=0) + CALL_MS
    measured *= np.random.default_rng(5).normal(1.0, 0.01, len(measured))
    measured[:4] *= 1.6
    np.testing.assert_allclose(fit_factors(predicted, CALL_MS, measured)[:2], 1.04, atol=0.02)


def test_models_of_which_none_is_known_leave_all_as_it_was() -> None:
    assert fit_factors(np.zeros((2, 0)), 0.0, np.zeros(0)).tolist() == [1.0, 1.0]
    one = np.array([[2.0], [1.0]])
    assert cross_fitted_ms(one, CALL_MS, np.array([9.0])).tolist() == [3.0 + CALL_MS]


def test_a_model_is_predicted_by_factors_of_others() -> None:
    """The first is 1.5 times as slow as all others: its own prediction does not know of it."""
    predicted = _models(12)
    measured = predicted.sum(axis=0) + CALL_MS
    changed = measured.copy()
    changed[0] *= 1.5
    plain, after = (cross_fitted_ms(predicted, CALL_MS, m) for m in (measured, changed))
    assert after[0] == pytest.approx(plain[0])
    np.testing.assert_allclose(plain, measured, rtol=1e-6)
