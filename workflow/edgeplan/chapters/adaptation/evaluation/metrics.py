"""Computes the figures of merit of the chapter: pure functions of the ladder, each with its formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import pandas as pd

from edgeplan.chapters.adaptation.evaluation.evidence import RUNG, LadderEvidence
from edgeplan.chapters.adaptation.kept import UNSEEN_MODEL, VARIANT
from edgeplan.chapters.adaptation.ladder import ADAPTED, POOLED, SCRATCH
from edgeplan.reporting.bars import Bar
from edgeplan.reporting.estimates import Estimate, estimate, figures_of_merit

BARS = (
    Bar("adapt.within_10pct_60s", "models within 10 % from 60 s, an old device of the engine, least pair", low=0.9, aim="0.95"),
    Bar("adapt.within_10pct_15s", "the same from 15 s", low=0.8, aim="0.90"),
    Bar("scratch.within_10pct_60s", "models within 10 % from 60 s, from scratch, least device", low=0.75, aim="0.90"),
    Bar("adapt.coverage_90_60s", "share of models inside intervals of 90 %, 60 s, all pairs", low=0.85, high=0.97),
    Bar("adapt.rungs_worse", "rungs at which an adapted predictor is worse than one from scratch", high=0),
)


def _rungs(e: LadderEvidence, method: str, budget_s: float, use: str = VARIANT) -> pd.DataFrame:
    """Return the rungs of a method and a budget; of adapted ones those with an old device of the engine."""
    f = e.rungs
    return f[(f["method"] == method) & (f["budget_s"] == budget_s) & (f["use"] == use) & (f["source"] != POOLED)]


def _least(e: LadderEvidence, method: str, budget_s: float, use: str = VARIANT) -> Estimate:
    """Return the share within 10 % of the pair (or device) with the least one; its interval is over models."""
    worst = _rungs(e, method, budget_s, use).sort_values("within_10pct").iloc[0]
    rows = e.hits[(e.hits[RUNG] == worst[RUNG]).all(axis=1)]
    return estimate(lambda values: float(values.mean()), rows.groupby("model_id")["within_10pct"].mean())


def rungs_worse(e: LadderEvidence) -> float:
    """Count adapted rungs where the lower end of the 95 % interval of (from scratch less adapted) lies above 0, over models."""
    count = 0
    for _, rung in e.rungs[e.rungs["method"] == ADAPTED].iterrows():
        values = e.differences(rung)
        count += len(values) > 0 and estimate(lambda v: float(v.mean()), values).low > 0
    return float(count)


_FIGURES: Mapping[str, Callable[[LadderEvidence], float | Estimate]] = MappingProxyType(
    {
        "adapt.within_10pct_60s": lambda e: _least(e, ADAPTED, 60),
        "adapt.within_10pct_15s": lambda e: _least(e, ADAPTED, 15),
        "adapt.within_5pct_60s": lambda e: float(_rungs(e, ADAPTED, 60)["within_5pct"].min()),
        "adapt.unseen_within_10pct_60s": lambda e: _least(e, ADAPTED, 60, UNSEEN_MODEL),
        "scratch.within_10pct_60s": lambda e: _least(e, SCRATCH, 60),
        "adapt.coverage_90_60s": lambda e: float(_rungs(e, ADAPTED, 60)["inside"].mean()),
        "adapt.coverage_90_60s_least": lambda e: float(_rungs(e, ADAPTED, 60)["inside"].min()),
        "adapt.pairs": lambda e: float(len(_rungs(e, ADAPTED, 60))),
        "adapt.rungs_worse": rungs_worse,
    }
)


def ladder_metrics(e: LadderEvidence) -> dict[str, float]:
    """Return every figure of merit that the ladder has."""
    return figures_of_merit(_FIGURES, e)
