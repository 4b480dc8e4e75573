"""Builds the chapter's page on predictions: headline figure, cards, figures against bars, findings, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.figures import FIGURES
from edgeplan.chapters.prediction.evaluation.metrics import bars, later_repeats, metrics
from edgeplan.chapters.prediction.evaluation.table_registry import TABLES
from edgeplan.reporting.chapter_report import ChapterReport
from edgeplan.reporting.grade import Graded, Repeats, graded
from edgeplan.reporting.page import CardOf, ChapterPage, table

_SHARES = ("prediction.within", "fusion.", "interval.coverage")
_ABOUT = (
    "The latency of whole models, predicted as the sum of their kernels, none of which ran as part of these models. The paper "
    "(nn-Meter, MobiSys 2021) measured a phone's CPU and GPU and a vision processor, so errors compare, latencies do not."
)
_TRANSFER = "Predictors of one device predict models on another, beside the predictors that were built for it (Table 11)."
#: The table that belongs to a stage of its own, and to a page of its own.
TRANSFERRED = "table_11"


def _overall(device: str) -> float:
    """Return the share of all models that the paper predicts within 10 % on a device."""
    return float(paper.printed("table_08", "family")[f"paper {device}: within 10 % (%)"]["all"])


_CARDS = (
    CardOf(
        "predicts {} of the models within 10 %",
        ("prediction.within_10pct",),
        share=True,
        paper=", ".join(f"{_overall(device):g} % ({device})" for device in ("CPU", "VPU")),
    ),
    CardOf(
        "measured twice, {} of the same models are within 10 %",
        ("prediction.repeat_within_10pct",),
        share=True,
        paper="not printed",
        further=True,
    ),
    CardOf("has {} of the measurements in its 90 % intervals", ("interval.coverage_90",), share=True, paper="not printed"),
    CardOf(
        "needs {} of measuring kernels",
        ("measuring.kernel_minutes",),
        "min",
        paper=f"{paper.printed('table_12')['minutes'][0] / paper.MINUTES_PER_DAY:g} days (CPU)",
    ),
)


def machine_grade(models: pd.DataFrame, environment: Mapping[str, Any]) -> Graded | None:
    """Grade the figures by models measured again: minutes later, where the rows have some that were."""
    later = later_repeats(models)
    if later.spread() is not None:
        return graded(environment, later)
    ratios = models["repeat_ms"] / models["normalised_ms"]
    seconds = models["repeat_gap_s"][ratios.notna()].median()
    return graded(environment, Repeats(ratios, f"models and the same ones {seconds:.0f} s later"))


def prediction_report(device: str) -> ChapterReport[Evidence]:
    """Return the report of a device, whose bars may be its own."""
    return ChapterReport(
        id="prediction",
        title="Latency prediction",
        about=_ABOUT,
        headline="figure_09",
        unfolded=("table_08",),
        cards=_CARDS,
        bars=bars(device),
        shares=_SHARES,
        tables={name: spec for name, spec in TABLES.items() if name != TRANSFERRED},
        figures=FIGURES,
        metrics=metrics,
        findings=lambda evidence, *_: (evidence.speed_told,) if evidence.speed_told else (),
        grade=lambda evidence: machine_grade(evidence.models, evidence.environment),
    )


def transfer_page(about: str, measured_at: str, frame: pd.DataFrame) -> ChapterPage:
    """Return the page of Table 11.

    Args:
        about: what is held against what.
        measured_at: when both devices were measured, as text.
        frame: the table.
    """
    shown = table(TRANSFERRED, TABLES[TRANSFERRED].title, about, frame, unfolded=True)
    return ChapterPage("transfer", "Predictors of another device", _TRANSFER, measured_at, tables=(shown,))
