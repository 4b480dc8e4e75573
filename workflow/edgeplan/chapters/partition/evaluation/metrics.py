"""The figures of merit of the chapter on partitions: functions of the measured rows, the formula of each in its docstring."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd

from edgeplan.chapters.partition.evaluation.evidence import CPU, EQUAL, FIXED, GPU, OURS, SEARCH, WORTH, PartitionEvidence
from edgeplan.reporting.bars import Bar

_SLOWER = 1.02
_WITHIN = 0.15
_WANTED_MODELS = 12
#: The models of the paper's Table 3 without branches.
CHAINS = ("resnet18", "resnet34", "vgg16")

BARS = (
    Bar("partition.oracle_gain_share", "share of the search's gain", low=0.88, aim="0.95"),
    Bar("partition.gain_over_trivial", "that less the better of equal and fixed splits'", low=0.08, aim="0.15"),
    Bar("partition.oracle_speedup", "speedup that the search finds, mean", low=1.4, aim="1.6"),
    Bar("partition.slower_than_best_single_layers", "layers over 2 % slower than the better processor", high=0.02, aim="0"),
    Bar("partition.slower_than_best_single_models", "models that are, where runs repeat to 2 %", high=0, aim="0"),
    Bar("partition.mape_ratio_linear", "error with dispatch features over that without, linear", high=0.75, aim="0.5"),
    Bar("partition.mape_ratio_conv", "the same of convolutions", high=0.75, aim="0.5"),
    Bar("partition.gpu_mape_linear", "relative error on the GPU, linear", high=0.05, aim="0.03"),
    Bar("partition.gpu_mape_conv", "the same of convolutions", high=0.10, aim="0.07"),
    Bar("partition.polling_over_event", "polling over waiting for events, least handshake", high=0.2, aim="0.067"),
    Bar("partition.handshake_us", "us of a handshake by polling, least", high=5, aim="2"),
    Bar("partition.ratio_ms_per_op", "ms to choose a split", high=2, aim="0.5"),
    Bar("partition.plan_seconds_max", "s to plan a model, largest", high=60, aim="5"),
    Bar("partition.plan_gap_max", "plan over its bound, largest", high=0.05, aim="0.02"),
    Bar("partition.predicted_within_15pct", "models within 15 % of their prediction", low=0.75, aim="0.9"),
    Bar("partition.speedup_vs_best_single", "speedup of ResNet-18, ResNet-34, VGG16, mean", low=1.25, aim="1.5"),
    Bar("partition.outputs_equal", "models whose outputs are right", low=1.0),
)


def gain_share(speedups: pd.DataFrame, way: str) -> float:
    """Sum over layers of (speedup - 1) / sum of (the search's - 1), both over the faster single processor."""
    own, searched = _both(speedups, way)
    return float((own - 1).sum() / (searched - 1).sum())


def mean_share(speedups: pd.DataFrame, way: str) -> float:
    """Mean over layers whose search gains at least 5 % of (speedup - 1) / (the search's - 1)."""
    own, searched = _both(speedups, way)
    worth = searched >= WORTH
    return float(((own[worth] - 1) / (searched[worth] - 1)).mean())


def _both(speedups: pd.DataFrame, way: str) -> tuple[pd.Series[float], pd.Series[float]]:
    """Of layers that have both: a way's speedups and the search's."""
    there = speedups[way].notna() & speedups[SEARCH].notna()
    return speedups.loc[there, way], speedups.loc[there, SEARCH]


def oracle_gain_share(e: PartitionEvidence) -> float:
    """`gain_share` of our splits, linear layers and convolutions together."""
    return gain_share(e.speedups, OURS)


def oracle_gain_share_mean(e: PartitionEvidence) -> float:
    """`mean_share` of our splits."""
    return mean_share(e.speedups, OURS)


def gain_over_trivial(e: PartitionEvidence) -> float:
    """Our `gain_share` less the larger one of equal and of fixed splits."""
    return oracle_gain_share(e) - max(gain_share(e.speedups, way) for way in (EQUAL, FIXED))


def oracle_speedup(e: PartitionEvidence) -> float:
    """Mean over layers of the search's speedup, its pick on fresh runs."""
    return float(e.speedups[SEARCH].mean())


def slower_than_best_single_layers(e: PartitionEvidence) -> float:
    """Share of layers on which our choice takes over 1.02 times as long as the faster single processor."""
    return float((e.speedups[OURS].dropna() < 1 / _SLOWER).mean())


def slower_than_best_single_models(e: PartitionEvidence) -> float:
    """The same share of models whose runs repeat to 2 %: medians of both halves, by our plan and the better processor."""
    times = e.end_to_end[[OURS, CPU, GPU]].dropna()
    repeats = e.models.pivot_table(index="model", columns="way", values="repeat", aggfunc="first").loc[times.index]
    of_best = repeats[CPU].where(times[CPU] <= times[GPU], repeats[GPU])
    steady = np.maximum(repeats[OURS], of_best) <= _SLOWER
    slower = times[OURS] > _SLOWER * times[[CPU, GPU]].min(axis=1)
    return float(slower[steady].mean())


def steady_models(e: PartitionEvidence) -> float:
    """Models whose runs repeat to 2 %, by our plan."""
    return float((e.planned["repeat"] <= _SLOWER).sum())


def mape(side: str, kind: str, predictor: str) -> Callable[[PartitionEvidence], float]:
    """Mean relative error of a predictor on held-out samples."""

    def found(e: PartitionEvidence) -> float:
        rows = e.tested
        chosen = (rows["side"] == side) & (rows["kind"] == kind) & (rows["predictor"] == predictor)
        return float(rows.loc[chosen, "error"].mean())

    return found


def mape_ratio(kind: str) -> Callable[[PartitionEvidence], float]:
    """Error with dispatch features and a model for each implementation over that of one model on shapes alone."""
    return lambda e: mape(GPU, kind, "ours")(e) / mape(GPU, kind, "plain")(e)


def handshake(synchronisation: str) -> Callable[[PartitionEvidence], float]:
    """Least time of a step of nothing, us."""

    def found(e: PartitionEvidence) -> float:
        rows = e.handshakes
        return float(rows.loc[rows["synchronisation"] == synchronisation, "least_us"].iloc[0])

    return found


def polling_over_event(e: PartitionEvidence) -> float:
    """Least handshake by polling over that by waiting for events."""
    return handshake("polling")(e) / handshake("events")(e)


def ratio_ms_per_op(e: PartitionEvidence) -> float:
    """Mean over layers of the time to predict all splits and to choose one."""
    return float(e.layers["ratio_ms"].mean())


def plan_seconds_max(e: PartitionEvidence) -> float:
    """Max over models of the time to predict all costs and to plan."""
    return float(e.planned["plan_seconds"].max())


def plan_gap_max(e: PartitionEvidence) -> float:
    """Max over models of predicted makespan / bound - 1."""
    return float(e.planned["plan_gap"].max())


def predicted_within_15pct(e: PartitionEvidence) -> float:
    """Share of models, twelve at least, whose median time is within 15 % of the predicted makespan."""
    return _within(e, e.planned["predicted_ms"])


def predicted_within_15pct_scaled(e: PartitionEvidence) -> float:
    """The same share, each prediction times what layers that are always the same took longer in the same minutes."""
    return _within(e, e.planned["predicted_ms"] * e.planned["slowdown"])


def _within(e: PartitionEvidence, expected_ms: pd.Series[float]) -> float:
    if len(e.planned) < _WANTED_MODELS:
        return math.nan
    return float(((e.planned["median_ms"] / expected_ms - 1).abs() <= _WITHIN).mean())


def speedup_vs_best_single(e: PartitionEvidence) -> float:
    """Geometric mean over ResNet-18, ResNet-34 and VGG16 of the better processor's time / our plan's."""
    times = e.end_to_end.loc[list(CHAINS)]
    return float(np.exp(np.log(times[[CPU, GPU]].min(axis=1) / times[OURS]).mean()))


def outputs_equal(e: PartitionEvidence) -> float:
    """Share of plans whose outputs are ONNX Runtime's within 1e-5 of the largest magnitude, 1e-4 where Winograd runs."""
    return float((e.planned["error"] <= e.planned["tolerance"]).mean())


_ALL: Mapping[str, Callable[[PartitionEvidence], float]] = MappingProxyType(
    {
        "oracle_gain_share": oracle_gain_share,
        "oracle_gain_share_mean": oracle_gain_share_mean,
        "gain_over_trivial": gain_over_trivial,
        "oracle_speedup": oracle_speedup,
        "slower_than_best_single_layers": slower_than_best_single_layers,
        "slower_than_best_single_models": slower_than_best_single_models,
        "steady_models": steady_models,
        "mape_ratio_linear": mape_ratio("linear"),
        "mape_ratio_conv": mape_ratio("conv"),
        "gpu_mape_linear": mape(GPU, "linear", "ours"),
        "gpu_mape_conv": mape(GPU, "conv", "ours"),
        "cpu_mape_linear": mape(CPU, "linear", "ours"),
        "cpu_mape_conv": mape(CPU, "conv", "ours"),
        "polling_over_event": polling_over_event,
        "handshake_us": handshake("polling"),
        "event_handshake_us": handshake("events"),
        "ratio_ms_per_op": ratio_ms_per_op,
        "plan_seconds_max": plan_seconds_max,
        "plan_gap_max": plan_gap_max,
        "predicted_within_15pct": predicted_within_15pct,
        "predicted_within_15pct_scaled": predicted_within_15pct_scaled,
        "speedup_vs_best_single": speedup_vs_best_single,
        "outputs_equal": outputs_equal,
    }
)


def partition_metrics(e: PartitionEvidence) -> dict[str, float]:
    """All figures that were measured, by key."""
    found = {}
    for name, function in _ALL.items():
        try:
            value = function(e)
        except (IndexError, KeyError, ZeroDivisionError):  # not measured
            continue
        if math.isfinite(value):
            found[f"partition.{name}"] = value
    return found
