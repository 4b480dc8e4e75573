"""EOP's figures of merit: functions of the measured rows, the formula of each in its docstring."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType

import pandas as pd

from edgeplan.chapters.partition.eop.evidence import EopEvidence
from edgeplan.chapters.partition.eop.variants import RECURRENT_FIGURE
from edgeplan.chapters.partition.eop.ways import EOP, OURS
from edgeplan.chapters.partition.names import ALL_CORES, SLOWER
from edgeplan.reporting.bars import Bar
from edgeplan.reporting.estimates import Estimate, estimate, figures_of_merit, geomean, share_right

BARS = (
    Bar("eop.speedup_vs_best", "speedup over the best of CPU, GPU, oneDNN on all cores, mean", low=1.0, aim="1.2"),
    Bar(
        "eop.slower_than_best_single_models", "share of models over 2 % slower than the better processor, ours", high=0, aim="0"
    ),
    Bar("eop.recurrent_slower_unchecked", "recurrent variants of Figure 9, of 28, that are", high=2, aim="0"),
    Bar("eop.failed_plans", "plans that did not run", high=0),
    Bar("eop.ratio_time_over_grid", "key operators at EOP's ratio over their best ratio", high=1.05, aim="1.02"),
    Bar("eop.ours_over_eop", "our plans' time over EOP's", high=1.0, aim="0.9"),
    Bar("eop.outputs_equal", "plans whose outputs are right", low=1.0),
)


def ratio_time_over_grid(e: EopEvidence) -> Estimate:
    """Geometric mean over key operators of their time at EOP's ratio / at the best that was swept, both on fresh runs."""
    return estimate(geomean, (e.tuned["tuned_us"] / e.tuned["grid_us"]).dropna())


def ours_over_eop(e: EopEvidence) -> Estimate:
    """Geometric mean over models of our plan's median time / that of EOP as written."""
    return estimate(geomean, (e.end_to_end[OURS] / e.end_to_end[EOP]).dropna())


def speedup_vs_best(e: EopEvidence) -> Estimate:
    """Geometric mean over the models of the best time of CPU, GPU and oneDNN on all cores / our plan's."""
    return estimate(geomean, (e.beside["best"] / e.beside["ours"])[e.beside["figure"] == ""].dropna())


def slower_than_best_single_models(e: EopEvidence) -> float:
    """Share of the models that our plan slows by over 2 %, or does not run; of all, however far their rounds repeat."""
    return float(_slower(e, "").mean())


def failed_plans(e: EopEvidence) -> float:
    """Plans of all models and settings that did not run, one processor alone and EOP's among them."""
    return float((e.plans["reason"] != "").sum()) if len(e.plans) else math.nan


def outputs_equal(e: EopEvidence) -> float:
    """Share of all plans on the pair whose outputs are ONNX Runtime's within the tolerance; one that failed has none."""
    planned = e.plans[e.plans["way"] != ALL_CORES]
    return share_right(planned["error"].where(planned["reason"] == ""), planned["tolerance"])


def recurrent_slower_unchecked(e: EopEvidence) -> float:
    """Number of recurrent variants of Figure 9 that our plan slows by over 2 %, or does not run, by medians.

    Checked plans of the same models are `eop.recurrent_slower`, of the stage `partition_checked`.
    """
    slower = _slower(e, RECURRENT_FIGURE)
    return float(slower.sum()) if len(slower) else math.nan


def _slower(e: EopEvidence, figure: str) -> pd.Series[bool]:
    own = e.beside[(e.beside["figure"] == figure) & e.beside["single"].notna()]
    return ~(own["ours"] <= SLOWER * own["single"])


_ALL: Mapping[str, Callable[[EopEvidence], float | Estimate]] = MappingProxyType(
    {
        "eop.speedup_vs_best": speedup_vs_best,
        "eop.failed_plans": failed_plans,
        "eop.ratio_time_over_grid": ratio_time_over_grid,
        "eop.ours_over_eop": ours_over_eop,
        "eop.slower_than_best_single_models": slower_than_best_single_models,
        "eop.recurrent_slower_unchecked": recurrent_slower_unchecked,
        "eop.outputs_equal": outputs_equal,
    }
)


def eop_metrics(e: EopEvidence) -> dict[str, float]:
    """Return all figures that were measured, by key."""
    return figures_of_merit(_ALL, e)
