"""EOP's part of the report: cards, findings, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from edgeplan.chapters.partition.eop.evidence import EopEvidence
from edgeplan.chapters.partition.eop.figures import EOP_FIGURES
from edgeplan.chapters.partition.eop.metrics import BARS
from edgeplan.chapters.partition.eop.tables import EOP_TABLES
from edgeplan.reporting import kit
from edgeplan.reporting.environment import environment_rows
from edgeplan.reporting.kit import page_pictures, page_tables
from edgeplan.reporting.page import CardOf, ChapterPage, bar_lines, machine_of, make_cards, metric_texts, rows_of

_ABOUT = (
    "Operators split over batch, rows and columns by EOP's patterns and ratios (VEE 2022), beside plans of the same costs with "
    "their bound, some of which run different operators side by side. The paper's times are sums of estimates; here every "
    "plan ran, and its outputs were compared."
)
_CARDS = (
    CardOf("key operators at EOP's ratio over their best one", ("eop.ratio_time_over_grid",), "times"),
    CardOf("our plans' time over EOP's", ("eop.ours_over_eop",), "times"),
    CardOf("Inception v3 side by side over in sequence", ("partition.branch_speedup",), "times"),
    CardOf("of the paper's patterns found here", ("eop.pattern_share",), share=True),
)


def findings(evidence: EopEvidence) -> tuple[str, ...]:
    """What did not run, and why; models for which one processor is the right plan."""
    lost = evidence.plans[evidence.plans["reason"] != ""].drop_duplicates(["model", "reason"])
    told = (lost["model"] + " (" + lost["way"] + "): " + lost["reason"] + ".").tolist()
    return tuple(told)


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
    notes = kit.notes(EOP_TABLES, evidence, tables)
    return ChapterPage(
        id="eop",
        title="EOP",
        about=_ABOUT,
        measured_at=measured_at,
        headline="eop_reduction" if "eop_reduction" in figures else "",
        cards=tuple(make_cards(_CARDS, BARS, metrics)),
        lines=tuple(bar_lines(BARS, metrics)),
        metrics=metric_texts(metrics),
        findings=findings(evidence),
        pictures=page_pictures(EOP_FIGURES, figures, {}),
        tables=page_tables(EOP_TABLES, tables, notes, "eop_figure_08", "eop_table_05"),
        environment=tuple(environment_rows(evidence.environment).itertuples(index=False, name=None)),
        machine=machine_of(evidence.environment),
        rows=rows_of(evidence.environment),
    )
