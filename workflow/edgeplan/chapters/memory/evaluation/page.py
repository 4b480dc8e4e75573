"""The chapter on memory: its headline figure and cards, findings, figures and tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from edgeplan.chapters.memory import paper
from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.evaluation.evidence import DEFAULT, HELD_MIB, MAPPED, OWN, MemoryEvidence
from edgeplan.chapters.memory.evaluation.tables import MEMORY_FIGURES, MEMORY_TABLES
from edgeplan.chapters.memory.paper import COMPUTE_OVER_READING
from edgeplan.reporting.bars import Bar, Graded, Repeats, graded
from edgeplan.reporting.chapter_report import ChapterReport
from edgeplan.reporting.metrics import Estimate, estimate, figures_of_merit, gap_max, geomean
from edgeplan.reporting.page import CardOf
from edgeplan.support.tensors import OUTPUT_TOLERANCE

_NEAR = 1.1

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
_ABOUT = (
    "Models run in less memory than their weights take: weights are read from the disk while steps run. Memory is the peak "
    "over the idle process, all pages counted. The paper (FlexNN, MobiCom 2024) measured phones, so shares compare, "
    "latencies do not."
)
_CARDS = (
    CardOf(
        "takes {} ONNX Runtime's time, ResNet-152 at its least memory",
        "memory.resnet152_over_onnxruntime",
        "times",
        paper=f"{1 + paper.OVERHEAD['resnet152']:.2f} of NCNN's",
        further=True,
    ),
    CardOf(
        "saves {} of ONNX Runtime's memory, ResNet-152",
        "memory.resnet152_reduction",
        paper=f"{100 * paper.REDUCTION['resnet152']:g} % of NCNN's",
        share=True,
        further=True,
    ),
    CardOf("takes {} ONNX Runtime's time at its least memory, mean", "memory.least_over_onnxruntime", "times"),
    CardOf("runs in {} of ONNX Runtime's memory at the least, mean", "memory.least_peak_over_onnxruntime", share=True),
    CardOf("peaks at {} of its budget at most", "memory.peak_over_budget_max", share=True),
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


def points_within_10pct_of_bound(e: MemoryEvidence) -> Estimate:
    """Share of budgets, the least ones and those not proven too small, with a latency of at most 1.1 times the bound.

    Latency is the median over turns. The bound rests on the times of steps in the phases before and after, with all
    weights in memory, of the same session.
    """
    possible = pd.concat([e.budgets[e.budgets["needed"].isna()], e.runs[e.runs["case"] == "least"]])
    return estimate(np.mean, e.over_bound(possible) <= _NEAR)


def least_over_onnxruntime(model: str = "") -> Callable[[MemoryEvidence], float | Estimate]:
    """Latency at the least peak / ONNX Runtime's with all memory that it wants, of a model or ("") the mean over all."""

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


def speedup_vs_best_frugal(e: MemoryEvidence) -> float:
    """Latency of the fastest stock engine that lives in idle and 45 MiB / ours there; infinite where none lives.

    Of ResNet-152, each by whichever read-ahead was faster.
    """
    f = e.frugal[(e.frugal["budget"] == HELD_MIB * MIB) & (e.frugal["model"] == "resnet152")]
    times = f.groupby("setting")["median_ms"].min().dropna()
    stock = times.drop([OWN, MAPPED], errors="ignore")
    return float(stock.min() / times[OWN]) if len(stock) else math.inf


def _outputs_equal(e: MemoryEvidence) -> float:
    """Share of plans whose outputs are, bit by bit, those with all weights in memory, and ONNX Runtime's within 1e-4.

    Plans of all numbers of threads count, and those that crashed.
    """
    looked_at = e.runs[e.runs["equal"].notna()]
    return float(((looked_at["equal"] == 1) & ~(looked_at["error"] > OUTPUT_TOLERANCE)).mean())


#: The figures of merit that were measured, by key.
memory_metrics = partial(
    figures_of_merit,
    {
        "memory.least_over_onnxruntime": least_over_onnxruntime(),
        "memory.least_peak_over_onnxruntime": least_peak_over_onnxruntime,
        "memory.resnet152_over_onnxruntime": least_over_onnxruntime("resnet152"),
        "memory.peak_over_budget_max": peak_over_budget_max,
        "memory.resnet152_reduction": resnet152_reduction,
        "memory.phonelike_overhead": phonelike_overhead,
        "memory.points_within_10pct_of_bound": points_within_10pct_of_bound,
        "memory.plan_gap_max": lambda e: gap_max(e.planned["predicted_ms"], e.planned["plan_bound_ms"]),
        "memory.cgroup_killed": cgroup_killed,
        "memory.total_in_cgroup": total_in_cgroup,
        "memory.speedup_vs_best_frugal": speedup_vs_best_frugal,
        "memory.outputs_equal": _outputs_equal,
    },
)


def memory_findings(evidence: MemoryEvidence, *_: object) -> tuple[str, ...]:
    """Tell what the least memory costs in time, what the system killed, what does not fit, and what could not be measured."""
    told = [text for finding in (_slower, _held, _killed, _below_bound, _not_slowed) if (text := finding(evidence))]
    frame = evidence.budgets
    named = frame["model"] + " at " + (100 * frame["share"]).map("{:g} %".format)
    lacking = named[frame["needed"].notna()].tolist()
    told += [f"Budgets below what the finest slices and bands need: {', '.join(lacking)}."] if lacking else []
    failed = frame["needed"].isna() & (frame["reason"] != "")
    told += (named[failed] + ": " + frame.loc[failed, "reason"] + ".").tolist()
    stock = evidence.stock[evidence.stock["median_ms"].isna()]
    if len(stock):
        why = "; ".join(stock["model"] + ": " + stock["reason"])
        told.append(f"{len(stock)} of {len(evidence.stock)} pairs of a model and a stock engine did not run: {why}.")
    return tuple(told)


def _slower(e: MemoryEvidence) -> str:
    """By how much models are slower at their least memory than a stock engine with all that it wants."""
    f = e.least.dropna(subset=["median_ms", "stock_ms"])
    if f.empty:
        return ""
    times = zip(f["model"], f["median_ms"], f["stock_ms"], strict=True)
    each = [f"{model} {own:.3g} against {theirs:.3g} ms ({own / theirs - 1:+.0%})" for model, own, theirs in times]
    return f"Times at the least memory beside {DEFAULT}'s with all that it wants: {', '.join(each)}."


def _held(e: MemoryEvidence) -> str:
    """Tell how long settings take under one limit, and which of them the system killed or were stopped."""
    f = e.held
    ran, dead = f[f["median_ms"].notna()], f[f["median_ms"].isna()]
    each = [f"{row['setting']} {row['median_ms']:.4g} ms ({row['major_faults']:.0f} major faults)" for _, row in ran.iterrows()]
    if not each:
        return ""
    where = ran.iloc[0]
    dead = dead[dead["reason"].str.startswith(("killed", "stopped"))]
    ended = (" " + dead["setting"] + " was " + dead["reason"] + ".").tolist()
    return f"Held to {where['budget'] / MIB:g} MiB over idle, {where['model']} takes {', '.join(each)}.{''.join(ended)}"


def _killed(e: MemoryEvidence) -> str:
    dead = e.limited[e.limited["killed"] == 1]
    each = ", ".join(f"{row['model']} at {row['budget'] / MIB:.2f} MiB" for _, row in dead.iterrows())
    return f"Held to its budget by the system, {len(dead)} of {len(e.limited)} plans failed: {each}." if each else ""


def _below_bound(e: MemoryEvidence) -> str:
    f = e.budgets[e.budgets["median_ms"].notna()]
    ratio = e.over_bound(f)
    if not (ratio < 1).any():
        return ""
    return (
        f"{(ratio < 1).sum()} of {len(f)} budgets take less than their bound, down to {ratio.min():.2f} of it: it rests on the "
        "times of steps with all weights in memory, which are slower there than in the plan. Of these the bound says nothing."
    )


def _not_slowed(e: MemoryEvidence) -> str:
    """Say why there are no figures of a phone where its ratio of computing to reading was not reached."""
    turns = e.turns[e.turns["setting"] == "slowed"]
    if turns.empty or len(e.phonelike):
        return ""
    return (
        f"Computing took {turns['ratio'].median():.1f} times as long as reading all weights, where phones compute for "
        f"{COMPUTE_OVER_READING:g} times as long: there are no figures of a phone."
    )


def memory_grade(evidence: MemoryEvidence) -> Graded | None:
    """The grade of the figures, by the latency with all weights in memory, which each budget's runs stood beside."""
    runs = evidence.budgets
    before = runs.groupby("model")["resident_ms"].shift()
    what = "latencies with all weights in memory and the same ones minutes before"
    return graded(evidence.environment, Repeats(runs["resident_ms"] / before, what, least=2))


MEMORY_REPORT = ChapterReport(
    id="memory",
    title="Memory",
    about=_ABOUT,
    headline="memory_figure_10",
    unfolded=("memory_frugal", "memory_beside"),
    cards=_CARDS,
    bars=lambda _: BARS,
    tables=MEMORY_TABLES,
    figures=MEMORY_FIGURES,
    metrics=memory_metrics,
    findings=memory_findings,
    grade=memory_grade,
    evidence=MemoryEvidence,
    frames={"runs": ("model", "case")},
)
#: The stage `memory_tables`.
write = MEMORY_REPORT.write
