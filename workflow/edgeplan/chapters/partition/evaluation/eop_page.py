"""EOP's part of the report: cards, findings, figures and tables."""

from __future__ import annotations

import math
from functools import partial

import pandas as pd

from edgeplan.chapters.partition.eop.ways import EOP, OURS, RECURRENT_FIGURE
from edgeplan.chapters.partition.evaluation.eop_tables import EOP_FIGURES, EOP_TABLES, EopEvidence
from edgeplan.chapters.partition.evaluation.tables import slower
from edgeplan.chapters.partition.settings import ALL_CORES
from edgeplan.reporting.bars import Bar, Graded, Repeats, graded
from edgeplan.reporting.chapter_report import ChapterReport
from edgeplan.reporting.metrics import Estimate, estimate, figures_of_merit, geomean, share_right
from edgeplan.reporting.page import CardOf

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
_ABOUT = (
    "Operators split over batch, rows and columns by EOP's patterns and ratios (VEE 2022), beside our plans of the same "
    "costs. The paper's times are sums of estimates; here every plan ran, and its outputs were compared."
)
_CARDS = (
    CardOf("runs {} as fast as the best of CPU, GPU, oneDNN on all cores", "eop.speedup_vs_best", "times"),
    CardOf("runs key operators in {} the time at their best ratio", "eop.ratio_time_over_grid", "times"),
    CardOf("runs in {} the time of EOP's plans", "eop.ours_over_eop", "times"),
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


def _slower_than_best_single_models(e: EopEvidence) -> float:
    """Share of the models that our plan slows by over 2 %, or does not run; of all, however far their rounds repeat."""
    return float(_slower(e, "").mean())


def _failed_plans(e: EopEvidence) -> float:
    """Plans of all models and settings that did not run, one processor alone and EOP's among them."""
    return float((e.plans["reason"] != "").sum()) if len(e.plans) else math.nan


def _outputs_equal(e: EopEvidence) -> float:
    """Share of all plans on the pair whose outputs are ONNX Runtime's within the tolerance; one that failed has none."""
    planned = e.plans[e.plans["way"] != ALL_CORES]
    return share_right(planned["error"].where(planned["reason"] == ""), planned["tolerance"])


def recurrent_slower_unchecked(e: EopEvidence) -> float:
    """Number of recurrent variants of Figure 9 that our plan slows by over 2 %, or does not run, by medians.

    Checked plans of the same models are `eop.recurrent_slower`, of the stage `partition_checked`.
    """
    own = _slower(e, RECURRENT_FIGURE)
    return float(own.sum()) if len(own) else math.nan


def _slower(e: EopEvidence, figure: str, other: str = "single") -> pd.Series[bool]:
    return slower(e.beside[e.beside["figure"] == figure], other)


#: All figures that were measured, by key.
eop_metrics = partial(
    figures_of_merit,
    {
        "eop.speedup_vs_best": speedup_vs_best,
        "eop.failed_plans": _failed_plans,
        "eop.ratio_time_over_grid": ratio_time_over_grid,
        "eop.ours_over_eop": ours_over_eop,
        "eop.slower_than_best_single_models": _slower_than_best_single_models,
        "eop.recurrent_slower_unchecked": recurrent_slower_unchecked,
        "eop.outputs_equal": _outputs_equal,
    },
)


def _findings(evidence: EopEvidence, *_: object) -> tuple[str, ...]:
    """Beside what our plans are slower; what did not run, and why."""
    told = [text] if (text := _beside(evidence)) else []
    lost = evidence.plans[evidence.plans["reason"] != ""].drop_duplicates(["model", "reason"])
    told += (lost["model"] + " (" + lost["way"] + "): " + lost["reason"] + ".").tolist()
    return tuple(told)


def _beside(e: EopEvidence) -> str:
    told = []
    for other, figure, text in (
        ("all_cores", "", "oneDNN on all cores takes less time than our plan on {} of {} models"),
        ("single", "", "the better processor alone is over 2 % faster on {} of {}"),
        ("single", "figure_09", "and on {} of {} variants of recurrent layers (Figure 9)"),
    ):
        if len(own := _slower(e, figure, other)):
            told.append(text.format(own.sum(), len(own)))
    return f"On {e.pair} {'; '.join(told)}." if told else ""


def eop_grade(evidence: EopEvidence) -> Graded | None:
    """The grade of the figures, by rounds of the same plan; one round alone repeats nothing."""
    repeat = evidence.plans["repeat"]
    return graded(evidence.environment, Repeats(repeat[repeat > 1], "slowest and fastest rounds of a plan"))


EOP_REPORT = ChapterReport(
    id="eop",
    title="EOP",
    about=_ABOUT,
    headline="eop_reduction",
    unfolded=("eop_figure_08", "eop_table_05"),
    cards=_CARDS,
    bars=lambda _: BARS,
    tables=EOP_TABLES,
    figures=EOP_FIGURES,
    metrics=eop_metrics,
    findings=_findings,
    grade=eop_grade,
    evidence=EopEvidence,
    frames={
        "sampled": ("operator", "dimension", "size", "side", "us"),
        "sweeps": ("model", "step", "dimension"),
        "plans": ("model", "way", "median_ms", "subgraphs"),
        "key": ("model", "tuned_us", "grid_us"),
    },
)
#: The stage `partition_eop_tables`.
write = EOP_REPORT.write
