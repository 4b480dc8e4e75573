"""A card of predictors for tests that need one to be there, and little in it."""

from __future__ import annotations

from typing import Any

from edgeplan.predictors.card import Card, Interval
from edgeplan.predictors.features import FEATURES, WORK_TERMS


def bare_card(**changes: Any) -> Card:
    """A card that knows no kernel, with changes."""
    fields: dict[str, Any] = {
        "device": "dev",
        "engine": "onednn",
        "engine_version": "1",
        "measured_at": "2026-01-01",
        "rows": 0,
        "features": FEATURES,
        "work_terms": WORK_TERMS,
        "call_us": 5.0,
        "plain_layouts": {},
        "states": ("",),
        "implementations": ("",),
        "regressors": (),
        "interval": Interval(nominal=0.9, common=0.0, single=0.0, quantile=1.0, subjects=0),
    }
    return Card(**(fields | changes))
