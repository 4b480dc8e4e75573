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
from edgeplan.reporting.estimates import Estimate, estimate, figures_of_merit, geomean
from edgeplan.runtime.streaming.halves import BF16, F32, HALVES_TOLERANCE

_NEAR = 1.1
_TOLERANCE = 1e-4
_NOISE = 0.02  # the bound rests on medians of two phases
_KILLED_RATIO = 100.0

BARS = (
    Bar("memory.peak_over_budget_max", "peak over its budget, largest", high=1.0),
    Bar("memory.resnet152_reduction", "memory saved, ResNet-152", low=0.96, aim="0.975"),
    Bar("memory.vgg19_reduction", "memory saved, VGG-19", low=0.95, aim="0.985"),
    Bar("memory.phonelike_overhead", "latency gained over our own program with all weights in memory", high=0.03, aim="0.015"),
    Bar("memory.phonelike_stalls", "stalls there", high=0.01, aim="0.005"),
    Bar("memory.phonelike_over_stock", "the same over the original engine, slowed alike", high=0.04, aim="0.02"),
    Bar("memory.busy_overhead", "the same over our own program, a loop on the other core beside both", high=0.35, aim="0.15"),
    Bar("memory.points_within_10pct_of_bound", "share of budgets within 10 % of the bound", low=0.9, aim="1"),
    Bar("memory.points_below_bound", "share of budgets faster than the bound, for which it is none", high=0),
    Bar("memory.plan_gap_max", "plan over its bound, largest", high=0.02, aim="0.01"),
    Bar("memory.replan_ms_max", "ms to plan again, largest", high=20, aim="10"),
    Bar("memory.replan_ms_p95", "ms to choose a schedule for another budget, 95 % of changes", high=5, aim="2"),
    Bar("memory.chosen_over_fresh_max", "time by the chosen schedule over that by a fresh plan, largest", high=1.05),
    Bar("memory.refused_between_least_and_plan", "budgets refused that the model can run in", high=0),
    Bar("memory.switch_pause_ms_p95", "ms of a change of budget besides reading, 95 % of changes", high=60, aim="20"),
    Bar("memory.switch_pause_ms_max", "the same, largest", high=100, aim="30"),
    Bar("memory.layout_gap_max", "layout of activations over the proven least, largest", high=0.02, aim="0"),
    Bar("memory.cgroup_killed", "plans that the system killed when held to their budget", high=0),
    Bar("memory.resnet152_process_mib", "MiB of the whole process at ResNet-152's least", high=40, aim="28"),
    Bar("memory.total_in_cgroup", "of 12 total budgets, those that hold as limits from the start of the process on", low=12),
    Bar("memory.cgroup_latency_ratio_max", "latency held to the budget over free, largest", high=1.1, aim="1.03"),
    Bar("memory.cgroup_major_faults_max", "major faults there, most", high=0),
    Bar("memory.cgroup_failcnt_max", "failed allocations there, most", high=0),
    Bar("memory.speedup_vs_frugal_ort", "as fast as frugal ONNX Runtime in as much memory", low=2.0, aim="3"),
    Bar("memory.speedup_vs_best_frugal", "as fast as the best stock engine that lives in 45 MiB", low=4.0, aim="8"),
    Bar("memory.speedup_vs_mapped_own", "as fast as our own kernels on mapped weights there", low=1.8, aim="2.1"),
    Bar("memory.bf16_error", "outputs with weights in half their bytes beside ONNX Runtime's, largest", high=HALVES_TOLERANCE),
    Bar("memory.bf16_waits", "waits with weights in half their bytes over those with whole ones", high=0.6, aim="0.5"),
    Bar("memory.bf16_speedup", "as fast with weights in half their bytes", low=1.07, aim="1.15"),
    Bar("memory.runner_floor_mib", "MiB of the idle process", high=30, aim="25"),
    Bar("memory.bands_models", "models that run at their least peak in bands", low=2, aim="3"),
    Bar("memory.outputs_equal", "plans whose outputs are right", low=1.0),
)
#: What an engineer asks first; nobody has set a bar for it.
FIRST = (
    Bar("memory.resnet152_over_onnxruntime", "time of ResNet-152 at its least memory over ONNX Runtime's with all it wants"),
    Bar("memory.least_over_onnxruntime", "the same of all models, mean"),
    Bar("memory.least_over_best_stock", "the same over the fastest stock engine with all it wants, mean"),
    Bar("memory.resnet152_processor_time", "processor time gained at the least memory over that at half of ONNX Runtime's"),
    Bar("memory.vgg19_processor_time", "the same of VGG-19"),
)


def peak_over_budget_max(e: MemoryEvidence) -> float:
    """Max over all plans that ran of peak / budget, all pages counted."""
    return float((e.planned["peak"] / e.planned["budget"]).max())


def reduction(model: str) -> Callable[[MemoryEvidence], float]:
    """1 - least peak that runs / peak of ONNX Runtime by default, both over idle."""

    def found(e: MemoryEvidence) -> float:
        row = e.least[e.least["model"] == model].iloc[0]
        return float(1 - row["peak"] / row["stock_peak"])

    return found


def phonelike_overhead(e: MemoryEvidence) -> float | Estimate:
    """Median over turns of latency at the least peak / with all weights in memory - 1, both slowed alike.

    Turns count while computing took 3 +- 0.2 times as long as reading all weights. Rows of before hold the median alone.
    """
    if len(e.turns):
        f = e.phonelike
        return estimate(np.median, f["median_ms"] / f["resident_ms"] - 1)
    return float(e.slowed["median_ms"].iloc[0])


def phonelike_stalls(e: MemoryEvidence) -> float:
    """Time between steps there beyond that with all weights in memory, over the latency.

    What the first step waits for is left out.
    """
    if len(e.turns):
        f = e.phonelike
        return float((f["wait_ms"] / f["resident_ms"]).median())
    return float(e.slowed["wait_ms"].iloc[0])


def phonelike_over_stock(e: MemoryEvidence) -> float:
    """The same over the original engine with all that it wants, slowed alike: its time times the factor of computing."""
    if not len(e.phonelike):
        raise LookupError("no turn was slowed as much as it should be")
    return float(e.slowed.loc[~e.slowed["setting"].isin([OWN, "overhead"]), "median_ms"].iloc[0])


def busy_overhead(e: MemoryEvidence) -> Estimate:
    """Median over turns of latency at the least peak / with all weights in memory - 1, a loop on the other core beside both."""
    f = e.turns[e.turns["setting"] == "busy"]
    return estimate(np.median, f["median_ms"] / f["resident_ms"] - 1)


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


def points_below_bound(e: MemoryEvidence) -> float:
    """Share of these budgets with a latency below the bound by more than noise: steps took longer there than in the plan."""
    possible = _possible(e)
    return float((e.over(possible, "bound_ms") < 1 - _NOISE).mean())


def least_over(stock: str, model: str = "") -> Callable[[MemoryEvidence], float | Estimate]:
    """Latency at the least peak / that of a stock engine with all memory that it wants, of a model or the mean over all.

    Args:
        stock: column of `MemoryEvidence.least`.
        model: "" for the geometric mean.
    """

    def found(e: MemoryEvidence) -> float | Estimate:
        ratios = (e.least["median_ms"] / e.least[stock]).set_axis(e.least["model"]).dropna()
        return float(ratios[model]) if model else estimate(geomean, ratios)

    return found


def plan_gap_max(e: MemoryEvidence) -> float:
    """Max over plans of predicted / bound - 1."""
    return float((e.planned["predicted_ms"] / e.planned["plan_bound_ms"] - 1).max())


def replan_ms_max(e: MemoryEvidence) -> float:
    """Max over changes of the budget of the time to choose a schedule or to plan again, in the process that runs."""
    return float(max(e.switched["replan_ms"].max(), e.changed["replan_ms"].max()))


def switch_pause_ms_max(e: MemoryEvidence) -> float:
    """Max over changes of the budget in a running session of their cost (plan, pause, slower run) less bytes / bandwidth."""
    return float(e.switched["pause_ms"].max())


def replan_ms_p95(e: MemoryEvidence) -> float:
    """95th percentile over changes of the budget of the time from the call to the chosen schedule."""
    return float(e.changed["replan_ms"].quantile(0.95))


def chosen_over_fresh_max(e: MemoryEvidence) -> float:
    """Max over changes of the budget of the chosen schedule's predicted time / that of a plan made for the budget."""
    return float((e.changed["predicted_ms"] / e.changed["fresh_ms"]).max())


def refused_between_least_and_plan(e: MemoryEvidence) -> float:
    """Budgets from the least of the model up that no stored schedule fits."""
    return float(e.changed["failures"].sum()) if len(e.changed) else math.nan


def switch_pause_ms_p95(e: MemoryEvidence) -> float:
    """95th percentile over changes of the budget in a running session of their cost (see `switch_pause_ms_max`)."""
    return float(e.switched["pause_ms"].quantile(0.95))


def layout_gap_max(e: MemoryEvidence) -> float:
    """Max over models of the height of the layout of activations and scratch / the proven least height - 1."""
    own = e.layouts[e.layouts["setting"] == OWN]
    return float((own["peak"] / own["needed"] - 1).max())


def cgroup_killed(e: MemoryEvidence) -> float:
    """Plans that the system killed, or that failed, when it held them to idle and the budget."""
    return float(e.limited["killed"].sum()) if len(e.limited) else math.nan


def cgroup_latency_ratio_max(e: MemoryEvidence) -> float:
    """Max over plans of latency held to idle and the budget / latency without a limit, medians of turns of both.

    A plan that the system killed or that failed there counts as a hundred times as slow. Where no turns were measured, each
    is of one process.
    """
    turns = e.held_latency[e.held_latency["failures"].notna()]
    rows = turns.assign(killed=turns["failures"] > 0) if len(turns) else e.limited
    return float(rows["pause_ms"].where(rows["killed"] == 0, _KILLED_RATIO).max())


def cgroup_major_faults_max(e: MemoryEvidence) -> float:
    """Most major faults of a plan when held to its budget; one that was killed or failed had one at least."""
    return float(e.limited["major_faults"].fillna(0).clip(lower=e.limited["killed"]).max())


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


def resnet152_process_mib(e: MemoryEvidence) -> float:
    """The most that a whole process of ResNet-152 took at its least budget, all pages, in a group of its own; MiB."""
    f = e.contained
    own = f[(f["model"] == "resnet152") & (f["setting"] == "least")]
    return float(own["peak"].max()) / MIB


def cgroup_failcnt_max(e: MemoryEvidence) -> float:
    """Most failed allocations of a plan that was held to its budget; one that was killed had one at least."""
    return float(e.limited["failures"].max())


def speedup_vs_frugal_ort(e: MemoryEvidence) -> float:
    """Latency of frugal ONNX Runtime / ours, both held to idle and as much."""
    times = e.held.set_index("setting")["median_ms"]
    return float(times["onnxruntime-frugal"] / times[OWN])


def _held_times(e: MemoryEvidence) -> pd.Series[float]:
    """Latency by setting at `HELD_MIB` of ResNet-152, by whichever read-ahead was faster, of those that lived."""
    f = e.frugal[(e.frugal["budget"] == HELD_MIB * MIB) & (e.frugal["model"] == "resnet152")]
    return f.groupby("setting")["median_ms"].min().dropna()


def speedup_vs_best_frugal(e: MemoryEvidence) -> float:
    """Latency of the fastest stock engine that lives in idle and 45 MiB / ours there; infinite where none lives."""
    times = _held_times(e)
    stock = times.drop([OWN, MAPPED], errors="ignore")
    return float(stock.min() / times[OWN]) if len(stock) else math.inf


def speedup_vs_mapped_own(e: MemoryEvidence) -> float:
    """Latency of our own kernels on mapped weights / ours, both held to idle and 45 MiB."""
    times = _held_times(e)
    return float(times[MAPPED] / times[OWN])


def processor_time_ratio(model: str) -> Callable[[MemoryEvidence], float]:
    """Processor time of an inference at the least memory / at half of ONNX Runtime's - 1, which energy follows."""

    def found(e: MemoryEvidence) -> float:
        return float(e.processor_time["ratio"][model] - 1)

    return found


def _in_turns(e: MemoryEvidence, column: str) -> pd.DataFrame:
    """A column of the budgets at which both kinds of plan ran: weights in half their bytes beside whole ones."""
    return e.halved.pivot_table(column, ["model", "share"], "setting").reindex(columns=[F32, BF16]).dropna()


def bf16_waits(e: MemoryEvidence) -> float:
    """Time between steps with weights in half their bytes / with whole ones, each summed over the budgets."""
    waits = _in_turns(e, "wait_ms").sum()
    return float(waits[BF16] / waits[F32]) if waits[F32] else math.nan


def bf16_speedup(e: MemoryEvidence) -> Estimate:
    """Geometric mean over these budgets of latency with whole weights / with weights in half their bytes."""
    times = _in_turns(e, "median_ms")
    return estimate(geomean, times[F32] / times[BF16])


def bf16_error(e: MemoryEvidence) -> float:
    """Max over plans with weights in half their bytes of max|output - ONNX Runtime's| / max|ONNX Runtime's|."""
    return float(e.halved["error"].max())


def runner_floor_mib(e: MemoryEvidence) -> float:
    """Resident memory of `edgeplan run`, threads started, no plan opened; the largest seen.

    Where it was not measured (`workflow/scripts/process_peaks.py --keep`), that of the worker which runs the chapter's plans.
    """
    return float((e.floor if len(e.floor) else e.planned)["idle"].max() / MIB)


def bands_models(e: MemoryEvidence) -> float:
    """Models whose plan at the least peak has bands, but for those of which a cut without bands needs no more.

    Of cuts without bands those count that were profiled: of most models not the finest ones, so that this is no proof that
    bands are needed.
    """
    if e.least.empty:
        return math.nan
    without = e.cuts[e.cuts["bands"] == 0].groupby("model")["needed"].min()
    banded = e.least[e.least["bands"] > 0]
    return float((~(banded["model"].map(without).astype("float64") <= banded["peak"])).sum())


def outputs_equal(e: MemoryEvidence) -> float:
    """Share of plans whose outputs are, bit by bit, those with all weights in memory, and ONNX Runtime's within 1e-4.

    Plans of all numbers of threads count, those that crashed, and changes of the budget, whose outputs are held to each other.
    """
    looked_at = e.runs[e.runs["equal"].notna()]
    right = (looked_at["equal"] == 1) & ~(looked_at["error"] > _TOLERANCE)
    return float(right.mean())


_ALL: Mapping[str, Callable[[MemoryEvidence], float | Estimate]] = MappingProxyType(
    {
        "resnet152_over_onnxruntime": least_over("stock_ms", "resnet152"),
        "least_over_onnxruntime": least_over("stock_ms"),
        "least_over_best_stock": least_over("best_stock_ms"),
        "peak_over_budget_max": peak_over_budget_max,
        "resnet152_reduction": reduction("resnet152"),
        "vgg19_reduction": reduction("vgg19"),
        "phonelike_overhead": phonelike_overhead,
        "phonelike_stalls": phonelike_stalls,
        "phonelike_over_stock": phonelike_over_stock,
        "busy_overhead": busy_overhead,
        "points_within_10pct_of_bound": points_within_10pct_of_bound,
        "points_below_bound": points_below_bound,
        "plan_gap_max": plan_gap_max,
        "replan_ms_max": replan_ms_max,
        "replan_ms_p95": replan_ms_p95,
        "chosen_over_fresh_max": chosen_over_fresh_max,
        "refused_between_least_and_plan": refused_between_least_and_plan,
        "switch_pause_ms_p95": switch_pause_ms_p95,
        "switch_pause_ms_max": switch_pause_ms_max,
        "layout_gap_max": layout_gap_max,
        "cgroup_killed": cgroup_killed,
        "cgroup_latency_ratio_max": cgroup_latency_ratio_max,
        "total_in_cgroup": total_in_cgroup,
        "resnet152_process_mib": resnet152_process_mib,
        "cgroup_major_faults_max": cgroup_major_faults_max,
        "cgroup_failcnt_max": cgroup_failcnt_max,
        "speedup_vs_frugal_ort": speedup_vs_frugal_ort,
        "speedup_vs_best_frugal": speedup_vs_best_frugal,
        "speedup_vs_mapped_own": speedup_vs_mapped_own,
        "resnet152_processor_time": processor_time_ratio("resnet152"),
        "vgg19_processor_time": processor_time_ratio("vgg19"),
        "bf16_waits": bf16_waits,
        "bf16_speedup": bf16_speedup,
        "bf16_error": bf16_error,
        "runner_floor_mib": runner_floor_mib,
        "bands_models": bands_models,
        "outputs_equal": outputs_equal,
    }
)


def memory_metrics(e: MemoryEvidence) -> dict[str, float]:
    """Compute the figures of merit that were measured, by key."""
    return figures_of_merit(_ALL, e, "memory.")
