"""Figures of plans as made, and of outputs: what needs no medians of runs. `cold_metrics` has the others."""

from __future__ import annotations

import math
from collections.abc import Callable

import pandas as pd

from edgeplan.chapters.cold_start.evaluation.evidence import EVICTED_PLAN, OPTIMAL, OWN, ColdEvidence
from edgeplan.support.tensors import OUTPUT_TOLERANCE

#: Planners that prove how far from the optimum a plan can be: for weights in memory, and for weights on the disk.
PROVING = (OPTIMAL, EVICTED_PLAN)


def plan_gap_max(e: ColdEvidence, *planners: str) -> float:
    """Largest makespan / proven lower bound - 1 over the plans of the planners that prove one.

    Plans from predicted costs count with the bound for these costs. With planners: over their plans from profiled costs.
    Heuristics prove nothing, and the ablation is not meant to come near the optimum: neither counts.
    """
    return _largest(_proven(e, planners), lambda p: p["makespan_ms"] / p["lower_bound_ms"] - 1)


def plan_seconds_max(e: ColdEvidence, *planners: str) -> float:
    """Longest planning time, in s, over the plans that `plan_gap_max` takes."""
    return _largest(_proven(e, planners), lambda p: p["planning_ms"] / 1e3)


def _proven(e: ColdEvidence, planners: tuple[str, ...]) -> pd.DataFrame:
    if planners:
        return e.plans[e.plans["planner"].isin(planners) & (e.plans["costs"] == "profiled")]
    return e.plans[e.plans["planner"].isin(PROVING)]


def _largest(frame: pd.DataFrame, value: Callable[[pd.DataFrame], pd.Series[float]]) -> float:
    return float(value(frame).max()) if len(frame) else math.nan


def outputs_equal(e: ColdEvidence) -> float:
    """Share of the checked programs (model x home layout x threads x k-th candidate in every step) that agree within 1e-4."""
    return float((e.checks["error"] <= OUTPUT_TOLERANCE).mean()) if len(e.checks) else math.nan


def plan_outputs_equal(e: ColdEvidence) -> float:
    """Share of the cold starts of our plans, cached weights and all, whose first outputs agree within 1e-4.

    Every start is compared, whether or not it counts.
    """
    compared = own_starts(e.runs)["output_error"]
    return float((compared <= OUTPUT_TOLERANCE).mean()) if len(compared) else math.nan


def own_starts(runs: pd.DataFrame) -> pd.DataFrame:
    """Starts of our plans whose outputs were compared."""
    return runs[runs["setting"].str.startswith(OWN) & runs["output_error"].notna()]
