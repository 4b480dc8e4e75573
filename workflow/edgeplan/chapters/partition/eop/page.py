"""EOP's part of the report: cards, findings, figures and tables."""

from __future__ import annotations

from edgeplan.chapters.partition.eop.evidence import EopEvidence
from edgeplan.chapters.partition.eop.figures import EOP_FIGURES
from edgeplan.chapters.partition.eop.metrics import BARS, eop_metrics
from edgeplan.chapters.partition.eop.tables import EOP_TABLES
from edgeplan.chapters.partition.names import SLOWER
from edgeplan.reporting.chapter_report import ChapterReport
from edgeplan.reporting.grade import Graded, Repeats, graded
from edgeplan.reporting.page import CardOf

_ABOUT = (
    "Operators split over batch, rows and columns by EOP's patterns and ratios (VEE 2022), beside our plans of the same "
    "costs. The paper's times are sums of estimates; here every plan ran, and its outputs were compared."
)
_CARDS = (
    CardOf("runs {} as fast as the best of CPU, GPU, oneDNN on all cores", ("eop.speedup_vs_best",), "times"),
    CardOf("runs key operators in {} the time at their best ratio", ("eop.ratio_time_over_grid",), "times"),
    CardOf("runs in {} the time of EOP's plans", ("eop.ours_over_eop",), "times"),
)


def findings(evidence: EopEvidence) -> tuple[str, ...]:
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
        own = e.beside[(e.beside["figure"] == figure) & e.beside[other].notna()]
        margin = SLOWER if other == "single" else 1.0
        if len(own):
            told.append(text.format(int((~(own["ours"] <= margin * own[other])).sum()), len(own)))
    return f"On {e.pair} {'; '.join(told)}." if told else ""


def grade(evidence: EopEvidence) -> Graded | None:
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
    bars=BARS,
    tables=EOP_TABLES,
    figures=EOP_FIGURES,
    metrics=eop_metrics,
    findings=lambda evidence, *_: findings(evidence),
    grade=grade,
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
