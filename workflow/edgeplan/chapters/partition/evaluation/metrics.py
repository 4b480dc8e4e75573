"""The figures of merit of the chapter on partitions: functions of the measured rows, the formula of each in its docstring."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd

from edgeplan.chapters.partition.evaluation.evidence import (
    OURS,
    PLAIN,
    SEARCH,
    WORTH,
    PartitionEvidence,
)
from edgeplan.chapters.partition.names import SLOWER
from edgeplan.reporting.bars import Bar
from edgeplan.reporting.estimates import Estimate, estimate, figures_of_merit, geomean, share_right
from edgeplan.reporting.metrics import FloatArray

_WITHIN = 0.15
_WANTED_MODELS = 12

BARS = (
    Bar(
        "partition.speedup_vs_best",
        "speedup over the best of CPU, GPU, oneDNN and stock engines on all cores, mean",
        low=1.0,
        aim="1.2",
    ),
    Bar(
        "partition.slower_than_best_single_models",
        "share of models over 2 % slower than the better processor, or not run",
        high=0,
        aim="0",
    ),
    Bar("partition.failed_plans", "plans that did not run", high=0),
    Bar("partition.oracle_gain_share", "share of the search's gain", low=0.88, aim="0.95"),
    Bar("partition.handshake_us", "us of a handshake by polling, least", high=5, aim="2"),
    Bar("partition.plan_gap_max", "plan over its bound, largest", high=0.05, aim="0.02"),
    Bar("partition.predicted_within_15pct", "share of models within 15 % of their prediction", low=0.85, aim="0.95"),
    Bar("partition.outputs_equal", "models whose outputs are right", low=1.0),
)
#: What stands beside the first figure; nobody has set a bar for it.
FURTHER = (Bar("partition.speedup_vs_best_single_all", "speedup over the better processor, all models, mean"),)


def gain_share(speedups: pd.DataFrame, way: str) -> float:
    """Sum over layers of (speedup - 1) / sum of (the search's - 1), both over the faster single processor."""
    return _share(*_both(speedups, way))


def _share(own: FloatArray, searched: FloatArray) -> float:
    return float((own - 1).sum() / (searched - 1).sum())


def mean_share(speedups: pd.DataFrame, way: str) -> float:
    """Mean over layers whose search gains at least 5 % of (speedup - 1) / (the search's - 1)."""
    own, searched = _both(speedups, way)
    worth = searched >= WORTH
    return float(((own[worth] - 1) / (searched[worth] - 1)).mean())


def _both(speedups: pd.DataFrame, *ways: str) -> tuple[FloatArray, ...]:
    """Return the speedups of ways, the search's last, of layers that have all."""
    found = speedups[[*ways, SEARCH]].dropna()
    return tuple(found[way].to_numpy(float) for way in (*ways, SEARCH))


def oracle_gain_share(e: PartitionEvidence) -> Estimate:
    """`gain_share` of our splits, linear layers and convolutions together."""
    return estimate(_share, *_both(e.speedups, OURS))


def dispatch_features_gain(e: PartitionEvidence) -> Estimate:
    """Our `gain_share` less that of splits by predictors of the shape alone; below 0 dispatch features cost."""
    shares = _both(e.speedups, OURS, PLAIN)
    return estimate(lambda own, other, search: _share(own, search) - _share(other, search), *shares)


def slower_than_best_single_models(e: PartitionEvidence) -> float:
    """Share of models over 1.02 times as slow as the faster single processor, however far their runs repeat, or not run."""
    known = e.beside[e.beside["single"].notna()]
    return float((~(known["ours"] <= SLOWER * known["single"])).mean())


def failed_plans(e: PartitionEvidence) -> float:
    """Models that our plan did not run, or not in a process of its own."""
    return float((e.ours["reason"] != "").sum()) if len(e.ours) else math.nan


def speedup_vs(other: str) -> Callable[[PartitionEvidence], Estimate]:
    """Geometric mean over models of the time of another way / our plan's.

    Args:
        other: column of `PartitionEvidence.beside`.
    """

    def found(e: PartitionEvidence) -> Estimate:
        times = e.beside.dropna(subset=["ours", other])
        return estimate(geomean, times[other] / times["ours"])

    return found


def predicted_within_15pct(e: PartitionEvidence) -> Estimate:
    """Share of models, twelve at least, whose median time is within 15 % of the predicted makespan."""
    if len(e.planned) < _WANTED_MODELS:
        return Estimate(math.nan)
    return estimate(np.mean, (e.planned["median_ms"] / e.planned["predicted_ms"] - 1).abs() <= _WITHIN)


_ALL: Mapping[str, Callable[[PartitionEvidence], float | Estimate]] = MappingProxyType(
    {
        "speedup_vs_best": speedup_vs("best"),
        "speedup_vs_best_single_all": speedup_vs("single"),
        "slower_than_best_single_models": slower_than_best_single_models,
        "failed_plans": failed_plans,
        "oracle_gain_share": oracle_gain_share,
        "handshake_us": lambda e: float(e.handshakes.set_index("synchronisation")["least_us"]["polling"]),
        "plan_gap_max": lambda e: float(e.planned["plan_gap"].max()),
        "predicted_within_15pct": predicted_within_15pct,
        # 1e-5 of the largest magnitude, 1e-4 where Winograd runs; a plan that did not run has no right ones
        "outputs_equal": lambda e: share_right(e.ours["error"], e.ours["tolerance"]),
    }
)


def partition_metrics(e: PartitionEvidence) -> dict[str, float]:
    """Return all figures that were measured, by key."""
    return figures_of_merit(_ALL, e, "partition.")
