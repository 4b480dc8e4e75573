"""The grade of a machine, from models measured again."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from edgeplan.chapters.prediction.evaluation.page import later_repeats, machine_grade
from edgeplan.chapters.prediction.whole_models import APART_SECONDS

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
    graded = machine_grade(_models(first, again, np.full(MODELS, APART_SECONDS)), {})
    assert graded is not None
    assert graded.name == expected


def _models(first: np.ndarray, again: np.ndarray, gap: np.ndarray) -> pd.DataFrame:
    return pd.DataFrame({"normalised_ms": first, "repeat_ms": again, "repeat_gap_s": gap})


def test_repeats_near_in_time_and_missing_ones_say_nothing() -> None:
    first, again = repeats(0.01)
    gap = np.full(MODELS, APART_SECONDS)
    gap[: MODELS - 3] -= 1.0
    assert later_repeats(_models(first, again, gap)).spread() is None
    again[4:] = np.nan
    graded = machine_grade(_models(first, again, np.full(MODELS, 1e4)), {})
    assert graded is not None
    assert graded.name == "good"
