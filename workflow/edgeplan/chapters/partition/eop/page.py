"""EOP's part of the report: cards, findings, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from edgeplan.chapters.partition.eop.evidence import EopEvidence
from edgeplan.chapters.partition.eop.figures import EOP_FIGURES
from edgeplan.chapters.partition.eop.metrics import BARS
from edgeplan.chapters.partition.eop.tables import EOP_TABLES
from edgeplan.chapters.partition.names import SLOWER
from edgeplan.reporting.grade import Graded, Repeats, graded
from edgeplan.reporting.kit import PageOf
from edgeplan.reporting.page import CardOf, ChapterPage

_ABOUT = (
    "Operators split over batch, rows and columns by EOP's patterns and ratios (VEE 2022), beside plans of the same costs with "
    "their bound, some of which run different operators side by side. The paper's times are sums of estimates; here every "
    "plan ran, and its outputs were compared."
)
_CARDS = (
    CardOf("speedup over the best of CPU, GPU, oneDNN on all cores", ("eop.speedup_vs_best",), "times"),
    CardOf("key operators at EOP's ratio over their best one", ("eop.ratio_time_over_grid",), "times"),
    CardOf("our plans' time over EOP's", ("eop.ours_over_eop",), "times"),
    CardOf("Inception v3 side by side over in sequence", ("partition.branch_speedup",), "times"),
    CardOf("of the paper's patterns found here", ("eop.pattern_share",), share=True),
)

_PAGE = PageOf("eop", "EOP", _ABOUT, "eop_reduction", _CARDS, BARS, EOP_TABLES, EOP_FIGURES, ("eop_figure_08", "eop_table_05"))


def findings(evidence: EopEvidence) -> tuple[str, ...]:
    """Beside what our plans are slower; what did not run, and why."""
    told = [text for text in (_beside(evidence),) if text]
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


def eop_chapter(
    evidence: EopEvidence,
    tables: Mapping[str, pd.DataFrame],
    figures: Mapping[str, bytes],
    metrics: Mapping[str, float],
    measured_at: str,
) -> ChapterPage:
    """The chapter of a pair.

    Args:
        evidence: the measurements.
        tables: by id of `EOP_TABLES`.
        figures: SVG by id of `EOP_FIGURES`; what is absent is left out.
        metrics: of `eop_metrics`.
        measured_at: when the measurements were made, as text.
    """
    return _PAGE.page(evidence, tables, figures, metrics, measured_at, findings(evidence), grade(evidence))
