"""The figures of merit of the chapter on memory: pure functions of the measured rows, the formula of each in its docstring."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.evaluation.evidence import HELD_MIB, MAPPED, OWN, MemoryEvidence
from edgeplan.reporting.bars import Bar
from edgeplan.reporting.estimates import Estimate, estimate, figures_of_merit, gap_max, geomean

_NEAR = 1.1
_TOLERANCE = 1e-4

BARS = (
    Bar("memory.peak_over_budget_max", "peak over its budget, largest", high=1.0),
    Bar("memory.total_in_cgroup", "of 12 total budgets, those that hold as limits from the start of the process on", low=12),
    Bar("memory.resnet152_reduction", "memory saved, ResNet-152", low=0.96, aim="0.975"),
    Bar("memory.phonelike_overhead", "latency gained over our own program with all weights in memory", high=0.03, aim="0.015"),
    Bar("memory.points_within_10pct_of_bound", "share of budgets within 10 % of the bound", low=0.9, aim="1"),
    Bar("memory.plan_gap_max", "plan over its bound, largest", high=0.02, aim="0.01"),
    Bar("memory.speedup_vs_best_frugal", "as fast as the best stock engine that lives in 45 MiB", low=4.0, aim="8"),
    Bar("memory.outputs_equal", "plans whose outputs are right", low=1.0),
)
#: What an engineer asks first; nobody has set a bar for it.
FIRST = (
    Bar("memory.least_over_onnxruntime", "time at the least memory over ONNX Runtime's with all it wants, all models, mean"),
    Bar("memory.least_peak_over_onnxruntime", "that memory over ONNX Runtime's, all models, mean"),
    Bar("memory.resnet152_over_onnxruntime", "the time of ResNet-152 alone"),
    Bar("memory.cgroup_killed", "plans that the system killed when held to their budget"),
)


def peak_over_budget_max(e: MemoryEvidence) -> float:
    """Max over all plans that ran of peak / budget, all pages counted."""
    return float((e.planned["peak"] / e.planned["budget"]).max())


def resnet152_reduction(e: MemoryEvidence) -> float:
    """1 - least peak that runs / peak of ONNX Runtime by default, both over idle."""
    row = e.least[e.least["model"] == "resnet152"].iloc[0]
    return float(1 - row["peak"] / row["stock_peak"])


def phonelike_overhead(e: MemoryEvidence) -> float | Estimate:
    """Median over turns of latency at the least peak / with all weights in memory - 1, both slowed alike.

    Turns count while computing took 3 +- 0.2 times as long as reading all weights. Rows of before hold the median alone.
    """
    if len(e.turns):
        f = e.phonelike
        return estimate(np.median, f["median_ms"] / f["resident_ms"] - 1)
    return float(e.slowed["median_ms"].iloc[0])


def _possible(e: MemoryEvidence) -> pd.DataFrame:
    """Budgets that are not proven too small."""
    return e.budgets[e.budgets["needed"].isna()]


def points_within_10pct_of_bound(e: MemoryEvidence) -> Estimate:
    """Share of budgets, the least ones and those not proven too small, with a latency of at most 1.1 times the bound.

    It is the median over turns.

    The bound rests on the times of steps in the phases before and after, with all weights in memory, of the same session.
    """
    possible = pd.concat([_possible(e), e.runs[e.runs["case"] == "least"]])
    return estimate(np.mean, e.over(possible, "bound_ms") <= _NEAR)


def least_over_onnxruntime(model: str = "") -> Callable[[MemoryEvidence], float | Estimate]:
    """Latency at the least peak / ONNX Runtime's with all memory that it wants, of a model or the mean over all.

    Args:
        model: "" for the geometric mean.
    """

    def found(e: MemoryEvidence) -> float | Estimate:
        ratios = (e.least["median_ms"] / e.least["stock_ms"]).set_axis(e.least["model"]).dropna()
        return float(ratios[model]) if model else estimate(geomean, ratios)

    return found


def least_peak_over_onnxruntime(e: MemoryEvidence) -> Estimate:
    """Geometric mean of the least peak that runs / the peak of ONNX Runtime by default, both over idle."""
    return estimate(geomean, (e.least["peak"] / e.least["stock_peak"]).dropna())


def cgroup_killed(e: MemoryEvidence) -> float:
    """Plans that the system killed, or that failed, when it held them to idle and the budget."""
    return float(e.limited["killed"].sum()) if len(e.limited) else math.nan


def total_in_cgroup(e: MemoryEvidence) -> float:
    """Plans for total budgets whose runs, each in a fresh group of that limit from its start on, all held.

    A run holds that lived, waited for no page once all of its code had run, and met its limit nowhere after it was idle. A plan
    that could not be made counts as one that does not hold.
    """
    f = e.contained
    if f["failures"].isna().all():  # no groups to be had, or not measured
        return math.nan
    held = (f["failures"] == 0) & (f["major_faults"] == 0) & (f["peak"] <= f["budget"])
    return float(held.groupby([f["model"], f["setting"]]).all().sum())


def _held_times(e: MemoryEvidence) -> pd.Series[float]:
    """Latency by setting at `HELD_MIB` of ResNet-152, by whichever read-ahead was faster, of those that lived."""
    f = e.frugal[(e.frugal["budget"] == HELD_MIB * MIB) & (e.frugal["model"] == "resnet152")]
    return f.groupby("setting")["median_ms"].min().dropna()


def speedup_vs_best_frugal(e: MemoryEvidence) -> float:
    """Latency of the fastest stock engine that lives in idle and 45 MiB / ours there; infinite where none lives."""
    times = _held_times(e)
    stock = times.drop([OWN, MAPPED], errors="ignore")
    return float(stock.min() / times[OWN]) if len(stock) else math.inf


def outputs_equal(e: MemoryEvidence) -> float:
    """Share of plans whose outputs are, bit by bit, those with all weights in memory, and ONNX Runtime's within 1e-4.

    Plans of all numbers of threads count, and those that crashed.
    """
    looked_at = e.runs[e.runs["equal"].notna()]
    right = (looked_at["equal"] == 1) & ~(looked_at["error"] > _TOLERANCE)
    return float(right.mean())


_ALL: Mapping[str, Callable[[MemoryEvidence], float | Estimate]] = MappingProxyType(
    {
        "least_over_onnxruntime": least_over_onnxruntime(),
        "least_peak_over_onnxruntime": least_peak_over_onnxruntime,
        "resnet152_over_onnxruntime": least_over_onnxruntime("resnet152"),
        "peak_over_budget_max": peak_over_budget_max,
        "resnet152_reduction": resnet152_reduction,
        "phonelike_overhead": phonelike_overhead,
        "points_within_10pct_of_bound": points_within_10pct_of_bound,
        "plan_gap_max": lambda e: gap_max(e.planned["predicted_ms"], e.planned["plan_bound_ms"]),
        "cgroup_killed": cgroup_killed,
        "total_in_cgroup": total_in_cgroup,
        "speedup_vs_best_frugal": speedup_vs_best_frugal,
        "outputs_equal": outputs_equal,
    }
)


def memory_metrics(e: MemoryEvidence) -> dict[str, float]:
    """Compute the figures of merit that were measured, by key."""
    return figures_of_merit(_ALL, e, "memory.")
