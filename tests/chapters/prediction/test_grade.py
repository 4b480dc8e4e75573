"""The grade of a machine, from models measured again."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.metrics import metrics
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
    found = metrics(_evidence(first, again, np.full(MODELS, APART_SECONDS)))
    assert found["measuring.grade"] == expected


def _evidence(first: np.ndarray, again: np.ndarray, gap: np.ndarray) -> Evidence:
    return Evidence("cpu-test", models=pd.DataFrame({"measured_ms": first, "repeat_ms": again, "repeat_gap_s": gap}))


def test_repeats_near_in_time_and_missing_ones_say_nothing() -> None:
    first, again = repeats(0.01)
    gap = np.full(MODELS, APART_SECONDS)
    gap[: MODELS - 3] -= 1.0
    assert "measuring.grade" not in metrics(_evidence(first, again, gap))
    again[4:] = np.nan
    assert metrics(_evidence(first, again, np.full(MODELS, 1e4)))["measuring.grade"] == "good"
