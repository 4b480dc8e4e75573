"""EOP's figures of merit: functions of the measured rows, the formula of each in its docstring."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pandas as pd

from edgeplan.chapters.partition.eop.evidence import EopEvidence
from edgeplan.chapters.partition.eop.ways import BESIDE, CPU_WAY, EOP, GPU_WAY, OURS
from edgeplan.chapters.partition.names import ALL_CORES
from edgeplan.reporting.bars import Bar

_SLOWER = 1.02
BARS = (
    Bar("eop.ratio_time_over_grid", "key operators at EOP's ratio over their best ratio", high=1.05, aim="1.02"),
    Bar("eop.ours_over_eop", "our plans' time over EOP's", high=1.0, aim="0.9"),
    Bar("eop.slower_than_best_single_models", "models over 2 % slower than the better processor, ours", high=0, aim="0"),
    Bar("partition.branch_speedup", "Inception v3 side by side over in sequence", low=1.05, aim="1.15"),
    Bar("eop.plan_seconds_max", "s to plan a model, largest", high=60, aim="5"),
    Bar("eop.plan_gap_max", "plan over its bound, largest", high=0.05, aim="0.02"),
    Bar("eop.outputs_equal", "plans whose outputs are right", low=1.0),
)


def _geometric(values: pd.Series[float]) -> float:
    return float(np.exp(np.log(values.dropna()).mean()))


def pattern_share(e: EopEvidence) -> float:
    """Share of the patterns that the paper names (`paper.PATTERNS`) that are fitted here, too."""
    named = e.patterns[e.patterns["paper"] != ""]
    return float((named["pattern"] == named["paper"]).mean())


def ratio_time_over_grid(e: EopEvidence) -> float:
    """Geometric mean over key operators of their time at EOP's ratio / at the best that was swept, both on fresh runs."""
    return _geometric(e.tuned["tuned_us"] / e.tuned["grid_us"])


def ours_over_eop(e: EopEvidence) -> float:
    """Geometric mean over models of our plan's median time (side by side where it gains) / that of EOP as written."""
    return _geometric(e.end_to_end[BESIDE] / e.end_to_end[EOP])


def slower(way: str) -> Callable[[EopEvidence], float]:
    """Share of the models whose rounds repeat to 2 %, by this way and the better processor, that it slows by over 2 %."""

    def found(e: EopEvidence) -> float:
        times = e.end_to_end[[way, CPU_WAY, GPU_WAY]].dropna()
        repeats = e.own.pivot_table(index="model", columns="way", values="repeat", aggfunc="first").loc[times.index]
        of_best = repeats[CPU_WAY].where(times[CPU_WAY] <= times[GPU_WAY], repeats[GPU_WAY])
        steady = np.maximum(repeats[way], of_best) <= _SLOWER
        return float((times[way] > _SLOWER * times[[CPU_WAY, GPU_WAY]].min(axis=1))[steady].mean())

    return found


def branch_speedup(model: str) -> Callable[[EopEvidence], float]:
    """Median time of the best plan in sequence / of the plan side by side."""
    return lambda e: float((e.end_to_end[OURS] / e.end_to_end[BESIDE])[model])


def outputs_equal(e: EopEvidence) -> float:
    """Share of all plans on the pair whose outputs are ONNX Runtime's within the tolerance; one that failed has none."""
    planned = e.plans[e.plans["way"] != ALL_CORES]
    return float((planned["error"].le(planned["tolerance"]) & (planned["reason"] == "")).mean())


def _ours(e: EopEvidence) -> pd.DataFrame:
    return e.plans[e.plans["way"].isin([OURS, BESIDE]) & (e.plans["reason"] == "")]


_ALL: Mapping[str, Callable[[EopEvidence], float]] = MappingProxyType(
    {
        "eop.pattern_share": pattern_share,
        "eop.ratio_time_over_grid": ratio_time_over_grid,
        "eop.ours_over_eop": ours_over_eop,
        "eop.slower_than_best_single_models": slower(BESIDE),
        "eop.slower_than_best_single_models_as_written": slower(EOP),
        "partition.branch_speedup": branch_speedup("inception_v3"),
        "partition.branch_speedup_bert": branch_speedup("bert_base"),
        "eop.plan_seconds_max": lambda e: float(_ours(e)["plan_seconds"].max()),
        "eop.plan_gap_max": lambda e: float(_ours(e)["plan_gap"].max()),
        "eop.outputs_equal": outputs_equal,
    }
)


def eop_metrics(e: EopEvidence) -> dict[str, float]:
    """All figures that were measured, by key."""
    found = {}
    for name, function in _ALL.items():
        try:
            value = function(e)
        except (IndexError, KeyError, ZeroDivisionError):  # not measured
            continue
        if math.isfinite(value):
            found[name] = value
    return found
