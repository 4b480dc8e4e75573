"""The grade of a machine, from models measured again."""

from __future__ import annotations

import numpy as np
import pytest

from edgeplan.chapters.prediction.evaluation.grade import APART_SECONDS, grade

MODELS = 40


def repeats(spread: float, outliers: float = 0.0, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Times and the same again, under noise of a spread, some of them disturbed."""
    rng = np.random.default_rng(seed)
    first = rng.uniform(1, 100, MODELS)
    again = first * np.exp(rng.normal(0, spread, MODELS))
    again[: int(outliers * MODELS)] *= 1.5
    return first, again


@pytest.mark.parametrize(
    ("spread", "outliers", "expected"),
    [(0.005, 0.0, "good"), (0.02, 0.0, "good"), (0.06, 0.0, "fair"), (0.2, 0.0, "poor"), (0.005, 0.2, "poor")],
)
@pytest.mark.parametrize("seed", range(5))
def test_injected_noise_gives_each_grade(spread: float, outliers: float, expected: str, seed: int) -> None:
    first, again = repeats(spread, outliers, seed)
    found = grade(first, again, np.full(MODELS, APART_SECONDS))
    assert found is not None
    assert found.name == expected
    assert found.models == MODELS
    assert f"are {expected}: {MODELS} models" in found.text


def test_repeats_near_in_time_and_missing_ones_say_nothing() -> None:
    first, again = repeats(0.01)
    gap = np.full(MODELS, APART_SECONDS)
    gap[: MODELS - 3] -= 1.0
    assert grade(first, again, gap) is None
    again[5:] = np.nan
    found = grade(first, again, np.full(MODELS, 1e4))
    assert found is not None
    assert found.models == 5
