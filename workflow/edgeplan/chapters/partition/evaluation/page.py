"""The chapter on partitions: its headline figure and cards, findings, figures and tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from edgeplan.chapters.partition import paper
from edgeplan.chapters.partition.evaluation import tables
from edgeplan.chapters.partition.evaluation.tables import OURS, PLAIN, SEARCH, PartitionEvidence, slower
from edgeplan.reporting.bars import Bar, Graded, Repeats, graded
from edgeplan.reporting.chapter_report import ChapterReport
from edgeplan.reporting.metrics import Estimate, estimate, figures_of_merit, geomean, share_right
from edgeplan.reporting.page import CardOf

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
_ABOUT = (
    "A model runs on two processors at once: each operator whole on one of them, or split over its output channels where that "
    "is faster. Speedups are over the faster single processor. The paper (LiPG, EPEW 2025) measured phones with GPUs, so "
    "shares compare, latencies do not."
)
_CARDS = (
    CardOf("runs {} as fast as the best other way", "partition.speedup_vs_best", "times", paper="over the GPU alone"),
    CardOf("runs {} as fast as on the better processor", "partition.speedup_vs_best_single_all", "times", paper="1.36"),
    CardOf(
        "has {} of the gain that a search finds",
        "partition.oracle_gain_share",
        paper=f"{100 * paper.POOLED_SHARE:g} %",
        share=True,
    ),
    CardOf("hands over in {} by polling", "partition.handshake_us", "us", paper=f"{paper.HANDSHAKE_US[1]:g} us"),
)


def oracle_gain_share(e: PartitionEvidence) -> Estimate:
    """`gain_share` of our splits, linear layers and convolutions together."""
    return estimate(tables.share_of_search, *tables.speedups_of(e.speedups, OURS))


def dispatch_features_gain(e: PartitionEvidence) -> Estimate:
    """Our `gain_share` less that of splits by predictors of the shape alone; below 0 dispatch features cost."""
    shares = tables.speedups_of(e.speedups, OURS, PLAIN)
    return estimate(
        lambda own, other, search: tables.share_of_search(own, search) - tables.share_of_search(other, search), *shares
    )


def _slower_than_best_single_models(e: PartitionEvidence) -> float:
    """Share of models over 1.02 times as slow as the faster single processor, however far their runs repeat, or not run."""
    return float(slower(e.beside, "single").mean())


def _failed_plans(e: PartitionEvidence) -> float:
    """Models that our plan did not run, or not in a process of its own."""
    return float((e.ours["reason"] != "").sum()) if len(e.ours) else math.nan


def speedup_vs(other: str) -> Callable[[PartitionEvidence], Estimate]:
    """Geometric mean over models of the time of another way (a column of `PartitionEvidence.beside`) / our plan's."""

    def found(e: PartitionEvidence) -> Estimate:
        times = e.beside.dropna(subset=["ours", other])
        return estimate(geomean, times[other] / times["ours"])

    return found


def _predicted_within_15pct(e: PartitionEvidence) -> Estimate:
    """Share of models, twelve at least, whose median time is within 15 % of the predicted makespan."""
    if len(e.planned) < _WANTED_MODELS:
        return Estimate(math.nan)
    return estimate(np.mean, (e.planned["median_ms"] / e.planned["predicted_ms"] - 1).abs() <= _WITHIN)


#: All figures that were measured, by key.
partition_metrics = partial(
    figures_of_merit,
    {
        "partition.speedup_vs_best": speedup_vs("best"),
        "partition.speedup_vs_best_single_all": speedup_vs("single"),
        "partition.slower_than_best_single_models": _slower_than_best_single_models,
        "partition.failed_plans": _failed_plans,
        "partition.oracle_gain_share": oracle_gain_share,
        "partition.handshake_us": lambda e: float(e.handshakes.set_index("synchronisation")["least_us"]["polling"]),
        "partition.plan_gap_max": lambda e: float(e.planned["plan_gap"].max()),
        "partition.predicted_within_15pct": _predicted_within_15pct,
        # 1e-5 of the largest magnitude, 1e-4 where Winograd runs; a plan that did not run has no right ones
        "partition.outputs_equal": lambda e: share_right(e.ours["error"], e.ours["tolerance"]),
    },
)


def _findings(evidence: PartitionEvidence, *_: object) -> tuple[str, ...]:
    """Beside what a plan is slower, what dispatch features bring, which plans were measured, and what was not, and why."""
    noted = evidence.handshakes[evidence.handshakes["note"] != ""]
    told = [text for text in (_beside(evidence), _dispatch(evidence), _planned_before(evidence)) if text]
    told += ("Handshakes by " + noted["synchronisation"] + ": " + noted["note"] + ".").tolist()
    cores = evidence.environment.get("cores", 0)
    if cores < 3:  # one of them stands for the GPU
        told.append(f"Columns of 2 and 3 CPU threads are left out: of {cores} cores one computes for the GPU.")
    lacking = evidence.models[(evidence.models["way"] == OURS) & evidence.models["median_ms"].isna()]
    told += (lacking["model"] + " does not run on the pair: " + lacking["reason"] + ".").tolist()
    return tuple(told)


def _beside(e: PartitionEvidence) -> str:
    """On how many models other ways are faster than our plan."""
    f = e.beside
    told = []
    for key, name in (("all_cores", "oneDNN on all cores"), ("stock", "the best stock engine on all cores")):
        known = f[f[key].notna()]
        if len(known):
            ratio = estimate(geomean, (known["ours"] / known[key]).dropna())
            times = f"the plan takes {ratio.value:.2f} times as long, 95 %: {ratio.low:.2f} to {ratio.high:.2f}"
            told.append(f"{name} is faster than our plan on {slower(f, key).sum()} of {len(known)} models ({times})")
    if len(lost := slower(f, "single")):
        told.append(f"the better of both processors alone is over 2 % faster on {lost.sum()} of {len(lost)}")
    unbound = "The threads of oneDNN on all cores are not bound to a core each, which costs it."
    return f"On {e.pair} {'; '.join(told)}. {unbound}" if told else ""


def _dispatch(e: PartitionEvidence) -> str:
    """Say what dispatch features add to the gain, LiPG's own idea."""
    if not {OURS, PLAIN, SEARCH} <= set(e.speedups.columns):
        return ""
    found, share = dispatch_features_gain(e), tables.gain_share(e.speedups, OURS)
    way = "add" if found.value > 0 else "cost"
    return (
        f"Dispatch features {way} {abs(found.value):.3f} of the search's gain on layers (95 %: {found.low:+.3f} to "
        f"{found.high:+.3f}): {share:.3f} with them, {share - found.value:.3f} by predictors of the shape alone."
    )


def _planned_before(e: PartitionEvidence) -> str:
    """Say how many of the measured plans the present predictors would not lead to; nothing where all are the same."""
    layers, models = e.planned_before
    if not layers.any() and not models.any():
        return ""
    protocols = e.environment.get("protocols", {})
    by = ", ".join(sorted({name for kind in ("fresh", "models") for name in protocols.get(kind, ())}))
    elsewhere, otherwise = (f"{int(found.sum())} of {len(found)}" for found in (layers, models))
    return (
        f"What was measured are the plans of that time{f' ({by})' if by else ''}: the present predictors split "
        f"{elsewhere} layers elsewhere, and plan {otherwise} models otherwise."
    )


def partition_grade(evidence: PartitionEvidence) -> Graded | None:
    """The grade of the figures: by models run again, and by layers that are the same from the samples to the models."""
    again = Repeats(evidence.models["repeat"], "medians of one half of a model's runs and of the other")
    drift = Repeats(evidence.models["slowdown"], "times of the same layers beside the models and beside the samples", least=2)
    return graded(evidence.environment, again, drift)


PARTITION_REPORT = ChapterReport(
    id="partition",
    title="Partition",
    about=_ABOUT,
    headline="partition_figure_02",
    unfolded=("partition_beside",),
    cards=_CARDS,
    bars=lambda _: BARS,
    tables=tables.PARTITION_TABLES,
    figures=tables.PARTITION_FIGURES,
    metrics=partition_metrics,
    findings=_findings,
    grade=partition_grade,
    evidence=PartitionEvidence,
    frames={
        "errors": ("side", "kind", "predictor"),
        "importance": ("feature", "gain"),
        "layers": ("kind", "name", "way", "us"),
        "models": ("model", "way", "median_ms"),
        "handshakes": ("synchronisation", "least_us"),
        "curves": ("figure", "outputs"),
    },
)
#: The stage `partition_tables`.
write = PARTITION_REPORT.write
