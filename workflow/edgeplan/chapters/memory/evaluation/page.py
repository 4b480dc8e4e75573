"""The chapter on memory: its headline figure and cards, findings, figures and tables."""

from __future__ import annotations

from edgeplan.chapters.memory import paper
from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.evaluation.evidence import DEFAULT, MemoryEvidence
from edgeplan.chapters.memory.evaluation.figures import MEMORY_FIGURES
from edgeplan.chapters.memory.evaluation.metrics import BARS, memory_metrics
from edgeplan.chapters.memory.evaluation.tables import MEMORY_TABLES
from edgeplan.chapters.memory.paper import COMPUTE_OVER_READING
from edgeplan.reporting.chapter_report import ChapterReport
from edgeplan.reporting.grade import Graded, Repeats, graded
from edgeplan.reporting.page import CardOf

_ABOUT = (
    "Models run in less memory than their weights take: weights are read from the disk while steps run. Memory is the peak "
    "over the idle process, all pages counted. The paper (FlexNN, MobiCom 2024) measured phones, so shares compare, "
    "latencies do not."
)


_CARDS = (
    CardOf(
        "takes {} ONNX Runtime's time, ResNet-152 at its least memory",
        ("memory.resnet152_over_onnxruntime",),
        "times",
        paper=f"{1 + paper.OVERHEAD['resnet152']:.2f} of NCNN's",
        further=True,
    ),
    CardOf(
        "saves {} of ONNX Runtime's memory, ResNet-152",
        ("memory.resnet152_reduction",),
        paper=f"{100 * paper.REDUCTION['resnet152']:g} % of NCNN's",
        share=True,
        further=True,
    ),
    CardOf(
        "takes {} ONNX Runtime's time at its least memory, mean",
        ("memory.least_over_onnxruntime",),
        "times",
    ),
    CardOf("runs in {} of ONNX Runtime's memory at the least, mean", ("memory.least_peak_over_onnxruntime",), share=True),
    CardOf("peaks at {} of its budget at most", ("memory.peak_over_budget_max",), share=True),
)


def findings(evidence: MemoryEvidence) -> tuple[str, ...]:
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
    ratio = e.over(f, "bound_ms")
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


def grade(evidence: MemoryEvidence) -> Graded | None:
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
    bars=BARS,
    tables=MEMORY_TABLES,
    figures=MEMORY_FIGURES,
    metrics=memory_metrics,
    findings=lambda evidence, *_: findings(evidence),
    grade=grade,
    evidence=MemoryEvidence,
    frames={"runs": ("model", "case")},
)
#: The stage `memory_tables`.
write = MEMORY_REPORT.write
