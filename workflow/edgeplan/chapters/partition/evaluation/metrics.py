"""The figures of merit of the chapter on partitions: functions of the measured rows, the formula of each in its docstring."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.partition.evaluation.evidence import (
    EQUAL,
    FIXED,
    GPU,
    OURS,
    PLAIN,
    SEARCH,
    WORTH,
    PartitionEvidence,
)
from edgeplan.chapters.partition.names import SLOWER
from edgeplan.reporting.bars import Bar
from edgeplan.reporting.estimates import Estimate, estimate, figures_of_merit, geomean
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
    Bar("partition.gain_over_trivial", "that less the better of equal and fixed splits'", low=0.08, aim="0.15"),
    Bar("partition.oracle_speedup", "speedup that the search finds, mean", low=1.4, aim="1.6"),
    Bar("partition.slower_than_best_single_layers", "layers over 2 % slower than the better processor", high=0.02, aim="0"),
    Bar("partition.dispatch_features_gain", "share of that gain that dispatch features add", low=0, aim="0.1"),
    Bar("partition.mape_ratio_linear", "error with dispatch features over that without, linear", high=0.75, aim="0.5"),
    Bar("partition.mape_ratio_conv", "the same of convolutions", high=0.75, aim="0.5"),
    Bar("partition.gpu_mape_linear", "relative error on the GPU, linear", high=0.05, aim="0.03"),
    Bar("partition.gpu_mape_conv", "the same of convolutions", high=0.10, aim="0.07"),
    Bar("partition.polling_over_event", "polling over waiting for events, least handshake", high=0.2, aim="0.067"),
    Bar("partition.handshake_us", "us of a handshake by polling, least", high=5, aim="2"),
    Bar("partition.ratio_ms_per_op", "ms to choose a split", high=0.5, aim="0.2"),
    Bar("partition.plan_seconds_max", "s to plan a model, largest", high=60, aim="5"),
    Bar("partition.plan_gap_max", "plan over its bound, largest", high=0.05, aim="0.02"),
    Bar("partition.predicted_within_15pct", "share of models within 15 % of their prediction", low=0.85, aim="0.95"),
    Bar("partition.outputs_equal", "models whose outputs are right", low=1.0),
)
#: What stands beside the first figure; nobody has set a bar for it.
FURTHER = (
    Bar(
        "partition.slower_than_stock_models",
        "share of models on which the best stock engine on all cores is faster than our plan",
    ),
    Bar("partition.slower_than_all_cores_models", "share of models on which oneDNN on all cores is"),
    Bar("partition.speedup_vs_stock", "speedup over the best stock engine on all cores, mean"),
    Bar("partition.speedup_vs_all_cores", "speedup over oneDNN on all cores, mean"),
    Bar("partition.speedup_vs_best_single_all", "speedup over the better processor, all models, mean"),
)


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


def gain_over_trivial(e: PartitionEvidence) -> Estimate:
    """Our `gain_share` less the larger one of equal and of fixed splits."""
    better = max((EQUAL, FIXED), key=lambda way: gain_share(e.speedups, way))
    return _gain_over(e, better)


def dispatch_features_gain(e: PartitionEvidence) -> Estimate:
    """Our `gain_share` less that of splits by predictors of the shape alone; below 0 dispatch features cost."""
    return _gain_over(e, PLAIN)


def _gain_over(e: PartitionEvidence, way: str) -> Estimate:
    return estimate(lambda own, other, search: _share(own, search) - _share(other, search), *_both(e.speedups, OURS, way))


def oracle_speedup(e: PartitionEvidence) -> Estimate:
    """Mean over layers of the search's speedup, its pick on fresh runs."""
    return estimate(np.mean, e.speedups[SEARCH].dropna())


def slower_than_best_single_layers(e: PartitionEvidence) -> Estimate:
    """Share of layers on which our choice takes over 1.02 times as long as the faster single processor."""
    return estimate(np.mean, e.speedups[OURS].dropna() < 1 / SLOWER)


def slower_than_best_single_models(e: PartitionEvidence) -> float:
    """The same share of models: all of them, however far their runs repeat; a plan that did not run is slower."""
    known = e.beside[e.beside["single"].notna()]
    return float((~(known["ours"] <= SLOWER * known["single"])).mean())


def failed_plans(e: PartitionEvidence) -> float:
    """Models that our plan did not run, or not in a process of its own."""
    return float((e.ours["reason"] != "").sum()) if len(e.ours) else math.nan


def slower_than(other: str) -> Callable[[PartitionEvidence], Estimate]:
    """Share of models on which another way takes less time than our plan; a plan that did not run is slower.

    Args:
        other: column of `PartitionEvidence.beside`.
    """
    return lambda e: estimate(np.mean, ~(e.beside["ours"] <= e.beside[other])[e.beside[other].notna()])


def speedup_vs(other: str) -> Callable[[PartitionEvidence], Estimate]:
    """Geometric mean over models of the time of another way / our plan's.

    Args:
        other: column of `PartitionEvidence.beside`.
    """

    def found(e: PartitionEvidence) -> Estimate:
        times = e.beside.dropna(subset=["ours", other])
        return estimate(geomean, times[other] / times["ours"])

    return found


def _errors(e: PartitionEvidence, side: str, kind: str, *predictors: str) -> tuple[FloatArray, ...]:
    """Relative errors of predictors on held-out samples, position by position."""
    rows = e.tested[(e.tested["side"] == side) & (e.tested["kind"] == kind)]
    return tuple(rows.loc[rows["predictor"] == name, "error"].to_numpy(float) for name in predictors)


def mape(side: str, kind: str, predictor: str) -> Callable[[PartitionEvidence], Estimate]:
    """Mean relative error of a predictor on held-out samples."""
    return lambda e: estimate(np.mean, *_errors(e, side, kind, predictor))


def mape_ratio(kind: str) -> Callable[[PartitionEvidence], Estimate]:
    """Error with dispatch features and a model for each implementation over that of one model on shapes alone."""
    return lambda e: estimate(lambda ours, plain: ours.mean() / plain.mean(), *_errors(e, GPU, kind, "ours", "plain"))


def handshake(synchronisation: str) -> Callable[[PartitionEvidence], float]:
    """Least time of a step of nothing, us."""
    return lambda e: float(e.handshakes.set_index("synchronisation")["least_us"][synchronisation])


def polling_over_event(e: PartitionEvidence) -> float:
    """Least handshake by polling over that by waiting for events."""
    return handshake("polling")(e) / handshake("events")(e)


def ratio_ms_per_op(e: PartitionEvidence) -> float:
    """Mean over layers of the time to predict all splits and to choose one, the least of three each, on this machine."""
    return float(e.layers["ratio_ms"].mean())


def plan_seconds_max(e: PartitionEvidence) -> float:
    """Max over models of the time to predict all costs and to plan."""
    return float(e.planned["plan_seconds"].max())


def plan_gap_max(e: PartitionEvidence) -> float:
    """Max over models of predicted makespan / bound - 1."""
    return float(e.planned["plan_gap"].max())


def predicted_within_15pct(e: PartitionEvidence) -> Estimate:
    """Share of models, twelve at least, whose median time is within 15 % of the predicted makespan."""
    if len(e.planned) < _WANTED_MODELS:
        return Estimate(math.nan)
    return estimate(np.mean, (e.planned["median_ms"] / e.planned["predicted_ms"] - 1).abs() <= _WITHIN)


def outputs_equal(e: PartitionEvidence) -> float:
    """Share of plans whose outputs are ONNX Runtime's within 1e-5 of the largest magnitude, 1e-4 where Winograd runs.

    One that did not run has no right ones.
    """
    return float((e.ours["error"] <= e.ours["tolerance"]).mean())


def _named(*figures: Any) -> dict[str, Any]:
    return {figure.__name__: figure for figure in figures}


_ALL: Mapping[str, Callable[[PartitionEvidence], float | Estimate]] = MappingProxyType(
    {
        "speedup_vs_best": speedup_vs("best"),
        "speedup_vs_stock": speedup_vs("stock"),
        "speedup_vs_all_cores": speedup_vs("all_cores"),
        "speedup_vs_best_single_all": speedup_vs("single"),
        "slower_than_stock_models": slower_than("stock"),
        "slower_than_all_cores_models": slower_than("all_cores"),
        **_named(failed_plans, oracle_gain_share, gain_over_trivial, oracle_speedup, slower_than_best_single_layers),
        **_named(slower_than_best_single_models, dispatch_features_gain),
        "mape_ratio_linear": mape_ratio("linear"),
        "mape_ratio_conv": mape_ratio("conv"),
        "gpu_mape_linear": mape(GPU, "linear", "ours"),
        "gpu_mape_conv": mape(GPU, "conv", "ours"),
        **_named(polling_over_event),
        "handshake_us": handshake("polling"),
        **_named(ratio_ms_per_op, plan_seconds_max, plan_gap_max, predicted_within_15pct),
        **_named(outputs_equal),
    }
)


def partition_metrics(e: PartitionEvidence) -> dict[str, float]:
    """Return all figures that were measured, by key."""
    return figures_of_merit(_ALL, e, "partition.")
