"""Computes the figures of the cold-start chapter: pure functions of the measured frames, each with its formula.

In all of them c(m, s) is the cold latency of model m with setting s: the median over the repeats, at the thread count with
the least such median (each engine at its best thread count up to ours); w(m, s, t) the warm latency with t threads: the
median over the repeats of the least warm run of a process. Runs with a reason and the runs of the background load (its 0 %
included) do not count. "Own" is our plan from profiled costs for the state of the page cache (`plan_for`), B the set of stock
settings, G the geometric mean over the models that have all that a figure needs.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from edgeplan.chapters.cold_start.evaluation.evidence import (
    CACHED,
    EVICTED,
    EVICTED_PLAN,
    FIXED,
    FOLLOWED,
    OPTIMAL,
    OWN,
    ColdEvidence,
)
from edgeplan.reporting import metrics
from edgeplan.reporting.bars import Bar
from edgeplan.reporting.metrics import Estimate, estimate, figures_of_merit, gap_max, share_right
from edgeplan.support.tensors import OUTPUT_TOLERANCE

#: How near a prediction has to be to what was measured, as a share.
_NEAR = 0.15
#: A start that met another state of the page cache than it was to meet.
RECLAIMED = "in the page cache, not as in state"
#: Parts of reasons for which a run does not count, and which are no fault of what was started.
NO_FAULT = (RECLAIMED, "left out: ", "no plan: ")
_KEYS = ["model", "setting", "plan", "state", "threads"]
#: The plan with the kernels that are fastest warm.
WARM_PLAN = "warm"
#: What the figures have to reach. A start that takes less than its bound shows that the bound is none.
BARS = (
    Bar("cold.speedup_vs_best_stock_cached", "speed-up over the best stock setting, page cache warm", low=1.3, aim=">= 2"),
    Bar(
        "cold.speedup_vs_best_stock_evicted", "speed-up over the best stock setting, page cache evicted", low=1.05, aim=">= 1.3"
    ),
    Bar("cold.failed_starts", "starts of our plans that failed", high=0),
    Bar("cold.over_work_bound_cached", "cold over the work bound, page cache warm", low=1, high=1.3, aim="<= 1.1"),
    Bar("runtime.warm_vs_best_stock", "warm latency of the plan `warm` over the best stock engine's", high=1.15, aim="<= 1"),
    Bar("cold.plan_gap_max", "largest gap of an optimal plan to its proven bound, either state", high=0.01, aim="<= 0.002"),
    Bar("cold.predicted_within_15pct", "share of makespans (weights in memory) predicted within 15 %", low=0.7, aim=">= 0.95"),
    Bar("runtime.outputs_equal", "share of kernel choices with outputs equal to ONNX Runtime's", low=1),
)


def known_geomean(values: pd.Series[float]) -> float:
    """Return the geometric mean; NaN for no values."""
    found = values.dropna()
    return float(np.exp(np.log(found).mean())) if len(found) else math.nan


def over_models(ratios: pd.Series[float]) -> Estimate:
    """Return G, the geometric mean, of ratios by model, with its interval."""
    return estimate(metrics.geomean, ratios.dropna())


def failed(runs: pd.DataFrame) -> pd.DataFrame:
    """Return starts that failed: could not be prepared, crashed, took too long, or gave wrong outputs.

    What was not tried, and starts that met the page cache in another state, are none.
    """
    no_fault = runs["reason"].str.contains("|".join(map(re.escape, NO_FAULT)))
    return runs[(runs["reason"] != "") & ~no_fault]


def counted(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that count, without those of the background load."""
    return runs[(runs["reason"] == "") & (runs["load_core"] == "")]


def medians(runs: pd.DataFrame) -> pd.DataFrame:
    """Return one row a model, setting, plan, state and thread count: medians of cold, least warm and slowness; `repeats`."""
    return (
        counted(runs)
        .groupby(_KEYS, as_index=False)
        .agg(
            cold_ms=("cold_ms", "median"),
            warm_ms=("warm_min_ms", "median"),
            slowness=("slowness", "median"),
            stock=("stock", "first"),
            repeats=("repeat", "nunique"),
        )
    )


def best_threads(runs: pd.DataFrame) -> pd.DataFrame:
    """Return `medians` at the thread count with the least cold median of each model, setting, plan and state."""
    ordered = medians(runs).sort_values("cold_ms", kind="stable")
    return ordered.drop_duplicates(_KEYS[:-1]).sort_values(_KEYS, ignore_index=True)


def own(found: pd.DataFrame) -> pd.DataFrame:
    """Select the medians of our own runtime, one a model, plan, state and thread count (see `FOLLOWED`)."""
    return found[found["setting"] == np.where(found["plan"].isin(FOLLOWED), FIXED, OWN)].sort_values(_KEYS, ignore_index=True)


def plan_for(runs: pd.DataFrame, state: str) -> str:
    """Return our plan that is compared with stock engines in a state of the page cache: plans are made for one."""
    good = runs[(runs["reason"] == "") & (runs["state"] == EVICTED)]
    return EVICTED_PLAN if state == EVICTED and (good["plan"] == EVICTED_PLAN).any() else OPTIMAL


def compared_medians(found: pd.DataFrame, runs: pd.DataFrame) -> pd.DataFrame:
    """Select the medians of stock engines, and of our plans the one for each row's state."""
    plans = found["state"].map({state: plan_for(runs, state) for state in (CACHED, EVICTED)})
    return found[(found["plan"] == "") | (found["plan"] == plans)]


def own_cold(runs: pd.DataFrame, state: str, plan: str = "") -> pd.DataFrame:
    """Return the row of `medians` with c(m, own), by model; of the plan for that state unless another is named."""
    found = own(medians(runs))
    return _least(found[(found["plan"] == (plan or plan_for(runs, state))) & (found["state"] == state)], "cold_ms")


def stock_cold(runs: pd.DataFrame, state: str, setting: str = "") -> pd.DataFrame:
    """Return the row of `medians` with c(m, setting), by model; without a setting the best stock one's, min over s in B."""
    found = medians(runs)
    chosen = found[found["stock"] & (found["state"] == state) & ((found["setting"] == setting) if setting else True)]
    return _least(chosen, "cold_ms")


def stock_warm_ms(runs: pd.DataFrame, threads: int) -> pd.Series[float]:
    """Return the least w(m, s, threads) over s in B, by model, page cache warm."""
    found = medians(runs)
    return _least(found[found["stock"] & (found["threads"] == threads) & (found["state"] == CACHED)], "warm_ms")["warm_ms"]


def own_warm(runs: pd.DataFrame, threads: int) -> pd.DataFrame:
    """Return the row of `medians` with w(m, own, threads), by model, page cache warm, of the plan for warm running.

    A plan for cold starts may hold slower kernels. `warm` chooses those that are fastest warm; where it was not run there is no
    figure of the runtime's warm speed.
    """
    found = own(medians(runs))
    return _least(found[(found["plan"] == WARM_PLAN) & (found["state"] == CACHED) & (found["threads"] == threads)], "warm_ms")


def _least(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """Return the row with the least value of each model."""
    ordered = frame.dropna(subset=[column]).sort_values(column, kind="stable")
    return ordered.drop_duplicates("model").set_index("model").sort_index()


def spread_of(runs: pd.DataFrame, chosen: pd.DataFrame) -> pd.Series[str]:
    """Return by model the least and largest cold latency of the runs behind rows of `medians`, "18.6 to 22.6" (ms)."""
    both = counted(runs).merge(chosen.reset_index()[_KEYS], on=_KEYS).groupby("model")["cold_ms"]
    return both.agg(lambda times: f"{times.min():.4g} to {times.max():.4g}").reindex(chosen.index)


def fewest_runs(*parts: pd.DataFrame) -> pd.Series[float]:
    """Return by model how many counted runs the medians rest on, the least over rows of `medians` indexed by model."""
    return pd.concat([part["repeats"] for part in parts], axis=1).min(axis=1)


def speedup_vs_best_stock(state: str) -> Callable[[ColdEvidence], Estimate]:
    """Return G of min over s in B of c(m, s) / c(m, own), in a state of the page cache."""
    return lambda e: over_models(stock_cold(e.runs, state)["cold_ms"] / own_cold(e.runs, state)["cold_ms"])


def slowness(runs: pd.DataFrame, state: str) -> pd.Series[float]:
    """Return by model the factor by which work took longer than it was profiled to, the median over the compared runs."""
    good = counted(runs)
    return compared_medians(good[good["state"] == state], runs).groupby("model")["slowness"].median()


def slowed_work_bound_ms(e: ColdEvidence, state: str) -> pd.Series[float]:
    """Return W(m), at the speed that the machine had during the runs in a state of the page cache.

    W(m) = slowness x the sum over the steps of the least (preparation + execution) core-time of any candidate, divided by the
    cores; the least over the home layouts (`planning.profile.work_bound_ms`).
    """
    return (e.work_bound_ms * slowness(e.runs, state)).dropna()


def over_work_bound_cached(e: ColdEvidence) -> Estimate:
    """Return G of c(m, own) / W(m), page cache warm."""
    return over_models(own_cold(e.runs, CACHED)["cold_ms"] / slowed_work_bound_ms(e, CACHED))


def evicted_bound_ms(e: ColdEvidence) -> pd.Series[float]:
    """Return max(R(m), W(m)) by model, R(m) = fewest bytes any candidates read / bandwidth of the disk among its runs."""
    both = pd.concat([e.read_bound_ms, slowed_work_bound_ms(e, EVICTED)], axis=1, join="inner")
    return both.max(axis=1)


def over_warm_cached(e: ColdEvidence) -> Estimate:
    """Return G of c(m, own) / own warm (`own_warm`) at all cores, page cache warm."""
    return over_models(own_cold(e.runs, CACHED)["cold_ms"] / own_warm(e.runs, e.threads)["warm_ms"])


def warm_vs_best_stock(e: ColdEvidence) -> Estimate:
    """Return G of own warm / min over s in B of w(m, s, t), t = all cores on both sides; own warm is of plan `warm`.

    It tells how fast the runtime is with kernels for warm running.
    """
    return over_models(own_warm(e.runs, e.threads)["warm_ms"] / stock_warm_ms(e.runs, e.threads))


def predicted_and_measured(e: ColdEvidence) -> pd.DataFrame:
    """Hold the makespan of every executed plan against its starts.

    Predicted is the makespan times the slowness of the machine during the runs; of a plan that reads from the disk the
    makespan, since the references say nothing of disks. Measured is the median cold latency in the state of the page cache that
    the plan is for, without what a process sets up before it opens a plan. It holds what a makespan leaves out: reading the
    plan, opening files.

    Returns:
        columns of plans and of `medians`, with predicted_ms and near (|predicted / measured - 1| <= 0.15).
    """
    planned = e.plans.assign(state=np.where(e.plans["plan"] == EVICTED_PLAN, EVICTED, CACHED))
    runs = counted(e.runs)
    setup_ms = runs["stages_ms"].map(lambda text: json.loads(text).get("setup", 0.0)).astype(float)
    mine = own(medians(runs.assign(cold_ms=runs["cold_ms"] - setup_ms)))
    both = planned.merge(mine, on=["model", "plan", "threads", "state"])
    predicted_ms = both["makespan_ms"] * both["slowness"].where(both["state"] == CACHED, 1.0)
    return both.assign(predicted_ms=predicted_ms, near=(1 / (both["cold_ms"] / predicted_ms) - 1).abs() <= _NEAR)


def predicted_within_15pct(e: ColdEvidence) -> Estimate:
    """Return the share of executed plans with |predicted / measured - 1| <= 0.15, over models, planners and thread counts.

    Plans from predicted costs are left out: theirs is the error of the predictors. So are those for an evicted page cache: the
    error of these is mostly the disk's.
    """
    found = predicted_and_measured(e)
    return estimate(np.mean, found["near"][(found["costs"] == "profiled") & (found["state"] == CACHED)])


def _failed_starts(e: ColdEvidence) -> float:
    """Count the starts of our plans that failed, under a background load or not."""
    mine = e.runs[e.runs["setting"].str.startswith(OWN)]
    return float(len(failed(mine))) if len(mine) else math.nan


def largest_plan_gap(e: ColdEvidence) -> float:
    """Find the largest makespan / proven lower bound - 1, of plans for weights in memory and on the disk.

    Plans from predicted costs count with the bound for these costs. Heuristics prove nothing, and the ablation is not meant to
    come near the optimum: neither counts.
    """
    proven = e.plans[e.plans["planner"].isin((OPTIMAL, EVICTED_PLAN))]
    return gap_max(proven["makespan_ms"], proven["lower_bound_ms"])


def outputs_equal(e: ColdEvidence) -> float:
    """Return the share of checked programs (model x layout x threads x k-th candidate in every step) equal within 1e-4."""
    return share_right(e.checks["error"], OUTPUT_TOLERANCE)


#: The figures of the chapter by their key in metrics.json; a missing one is absent.
cold_metrics = partial(
    figures_of_merit,
    {
        "cold.failed_starts": _failed_starts,
        "cold.speedup_vs_best_stock_cached": speedup_vs_best_stock(CACHED),
        "cold.speedup_vs_best_stock_evicted": speedup_vs_best_stock(EVICTED),
        "cold.over_work_bound_cached": over_work_bound_cached,
        "cold.over_warm_cached": over_warm_cached,
        "runtime.warm_vs_best_stock": warm_vs_best_stock,
        "cold.plan_gap_max": largest_plan_gap,
        "cold.predicted_within_15pct": predicted_within_15pct,
        "runtime.outputs_equal": outputs_equal,
    },
)
