"""Builds the chapter's page on predictions: headline figure, cards, figures against bars, findings, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.figures import FIGURES
from edgeplan.chapters.prediction.evaluation.metrics import SAMPLERS, bars, later_repeats, metrics, sampling_bars
from edgeplan.chapters.prediction.evaluation.table_registry import TABLES
from edgeplan.chapters.prediction.evaluation.tables_baselines import baseline_verdicts
from edgeplan.reporting.bars import MISS, PASS
from edgeplan.reporting.chapter_report import ChapterReport
from edgeplan.reporting.grade import Graded, Repeats, graded
from edgeplan.reporting.page import CardOf, ChapterPage, Line, PageCard, number, table

_SHARES = ("prediction.within", "prediction.plain_sum", "prediction.left_out", "fusion.", "interval.coverage")
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
        "models within 10 %",
        ("prediction.within_10pct",),
        share=True,
        paper=", ".join(f"{_overall(device):g} % ({device})" for device in ("CPU", "VPU")),
    ),
    CardOf("the same models measured twice, within 10 %", ("prediction.repeat_within_10pct",), share=True, paper="not printed"),
    CardOf("fusion rules: precision / recall", ("fusion.precision", "fusion.recall"), share=True, paper="not printed"),
    CardOf(
        "kernels measured for",
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
    ratios = models["repeat_ms"] / models["measured_ms"]
    seconds = models["repeat_gap_s"][ratios.notna()].median()
    return graded(environment, Repeats(ratios, f"models and the same ones {seconds:.0f} s later"))


def completed(page: ChapterPage, _: Evidence, tables: Mapping[str, pd.DataFrame], metrics: Mapping[str, Any]) -> ChapterPage:
    """Return the page with comparisons that are no figure against a bar: of samplers, baselines, the machine with itself."""
    told = str(metrics.get("measuring.grade", ""))
    steady = [Line("how steady the machine was", told, "good", "", PASS if told == "good" else MISS)] if told else []
    beaten = _baseline_lines(tables["table_baselines"]) if "family" in tables["table_baselines"] else []
    return replace(
        page,
        lines=(*page.lines, *_sampling_lines(metrics), *steady, *beaten),
        cards=(*page.cards[:3], *_sampling_card(metrics), *page.cards[3:]),
    )


def _sampling_lines(metrics: Mapping[str, Any]) -> list[Line]:
    lines = []
    for title, (ours, *others) in sampling_bars(metrics):
        values = ", ".join(number(v, share=True) for v in (ours, *others))
        lines.append(Line(title, values, "adaptive lowest", "30 % lower", PASS if ours < min(others) else MISS))
    return lines


def _baseline_lines(frame: pd.DataFrame) -> list[Line]:
    lines = []
    for baseline, higher, lower in baseline_verdicts(frame).itertuples(index=False, name=None):
        told = "; ".join(
            f"{what}: {where}" for what, where in (("more within 10 %", higher), ("RMSPE not higher", lower)) if where
        )
        verdict = MISS if told else PASS
        lines.append(Line(f"{baseline} beaten on every family", told or "on all", "on all", "", verdict))
    return lines


def _sampling_card(metrics: Mapping[str, Any]) -> list[PageCard]:
    for _, (ours, *others) in sampling_bars(metrics)[:1]:
        told = ", ".join(f"{name} {100 * v:.3g} %" for name, v in zip(SAMPLERS[1:], others, strict=True))
        printed = paper.printed("table_10", "sampler")["paper CPU: conv within 10 % (%)"]
        adaptive, uniform = (printed[name] for name in ("adaptive", "random"))
        published = f"{adaptive:.0f} % within 10 %, random {uniform:.0f} %"
        verdict = PASS if ours < min(others) else MISS
        return [PageCard("conv error, adaptive sampling", f"{100 * ours:.3g} %", verdict, told, "30 % lower", published)]
    return []


def prediction_report(device: str) -> ChapterReport[Evidence]:
    """Return the report of a device, whose bars may be its own."""
    return ChapterReport(
        id="prediction",
        title="Latency prediction",
        about=_ABOUT,
        headline="figure_09",
        unfolded=("table_repeat",),
        cards=_CARDS,
        bars=bars(device),
        shares=_SHARES,
        tables={name: spec for name, spec in TABLES.items() if name != TRANSFERRED},
        figures=FIGURES,
        metrics=metrics,
        findings=lambda evidence, *_: (evidence.speed_told,) if evidence.speed_told else (),
        grade=lambda evidence: machine_grade(evidence.models, evidence.environment),
        completed=completed,
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
