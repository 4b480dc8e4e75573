"""The interval of a difference in RMSPE."""

import numpy as np
import pytest

from edgeplan.reporting.uncertainty import rmspe_difference

TRUTH = np.full(40, 10.0)


def _predicted(rng: np.random.Generator, spread: float) -> np.ndarray:
    return TRUTH * (1 + rng.normal(0.0, spread, TRUTH.size))


def test_a_clear_difference_is_clear_and_has_its_sign() -> None:
    rng = np.random.default_rng(3)
    good, bad = _predicted(rng, 0.02), _predicted(rng, 0.10)
    found = rmspe_difference(TRUTH, good, bad, np.arange(40))
    assert 4 < found.low < found.high < 12
    other = rmspe_difference(TRUTH, bad, good, np.arange(40))
    assert (other.low, other.high) == pytest.approx((-found.high, -found.low))


def test_predictors_of_one_accuracy_are_not_told_apart() -> None:
    rng = np.random.default_rng(4)
    found = rmspe_difference(TRUTH, _predicted(rng, 0.05), _predicted(rng, 0.05), np.arange(40))
    assert found.low < 0 < found.high


def test_rows_of_one_group_are_resampled_together() -> None:
    """Rows that say the same thing four times say no more than it once."""
    rng = np.random.default_rng(5)
    ours, theirs = (np.repeat(_predicted(rng, spread)[:10], 4) for spread in (0.05, 0.06))
    width = {
        kind: found.high - found.low
        for kind, groups in (("alone", np.arange(40)), ("together", np.repeat(np.arange(10), 4)))
        for found in [rmspe_difference(TRUTH, ours, theirs, groups)]
    }
    assert width["together"] > 1.5 * width["alone"]


def test_one_group_says_nothing() -> None:
    found = rmspe_difference(TRUTH, TRUTH, TRUTH * 1.1, np.zeros(40))
    assert np.isnan(found.low)
    assert np.isnan(found.high)


def test_the_interval_is_that_of_resampling_by_hand() -> None:
    rng = np.random.default_rng(8)
    ours, theirs = _predicted(rng, 0.05), _predicted(rng, 0.07)
    drawn = rng.integers(0, TRUTH.size, (20000, TRUTH.size))
    points = [100 * np.sqrt(((p / TRUTH - 1)[drawn] ** 2).mean(axis=1)) for p in (ours, theirs)]
    low, high = np.quantile(points[1] - points[0], (0.025, 0.975))
    found = rmspe_difference(TRUTH, ours, theirs, np.arange(40))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.15)
