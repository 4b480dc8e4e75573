"""The chapter on predictions, from what the evaluation wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.figures import FIGURES
from edgeplan.chapters.prediction.evaluation.grade import APART_SECONDS
from edgeplan.chapters.prediction.evaluation.metrics import SAMPLERS, bars, sampling_bars
from edgeplan.chapters.prediction.evaluation.table_registry import TABLES
from edgeplan.chapters.prediction.evaluation.tables import FINDINGS, NOTES, read_tables
from edgeplan.chapters.prediction.evaluation.tables_baselines import baseline_verdicts
from edgeplan.errors import FormatError
from edgeplan.reporting.bars import MISS, PASS
from edgeplan.reporting.environment import environment_rows
from edgeplan.reporting.grade import Graded, Repeats, graded
from edgeplan.reporting.kit import page_pictures, page_tables
from edgeplan.reporting.page import (
    CardOf,
    ChapterPage,
    Line,
    PageCard,
    bar_lines,
    machine_of,
    make_cards,
    metric_texts,
    number,
    rows_of,
    table,
)
from edgeplan.support.frames import read_document, read_parquet

_AGAIN = "run the evaluation stage again"
_SHARES = ("prediction.within", "prediction.plain_sum", "prediction.left_out", "fusion.", "interval.coverage")
_ABOUT = (
    "The latency of whole models, predicted as the sum of their kernels, none of which ran as part of these models. The paper "
    "(nn-Meter, MobiSys 2021) measured a phone's CPU and GPU and a vision processor, so errors compare, latencies do not."
)
_TRANSFER = "Predictors of one device predict models on another, beside the predictors that were built for it (Table 11)."
#: The figure that opens the chapter, and the table that is unfolded at first.
_OPENS_WITH = "figure_09"
_UNFOLDED = "table_repeat"
#: The table that belongs to a stage of its own, and to a page of its own.
TRANSFERRED = "table_11"
_CARDS = (
    CardOf(
        "models within 10 %",
        ("prediction.within_10pct",),
        share=True,
        paper=f"{paper.OVERALL_WITHIN_10PCT['CPU']:g} % (CPU), {paper.OVERALL_WITHIN_10PCT['VPU']:g} % (VPU)",
    ),
    CardOf("the same models measured twice, within 10 %", ("prediction.repeat_within_10pct",), share=True, paper="not printed"),
    CardOf("fusion rules: precision / recall", ("fusion.precision", "fusion.recall"), share=True, paper="not printed"),
    CardOf(
        "kernels measured for",
        ("measuring.kernel_minutes",),
        "min",
        paper=f"{paper.TABLE_12['CPU'] / paper.MINUTES_PER_DAY:g} days (CPU)",
    ),
)


def machine_grade(models: pd.DataFrame, environment: Mapping[str, Any]) -> Graded | None:
    """The grade of the figures, by models measured again: minutes later, where the rows have some that were."""
    ratios, gap = models["repeat_ms"] / models["measured_ms"], models["repeat_gap_s"]
    later = ratios.where(gap >= APART_SECONDS)
    if later.notna().sum() >= 4:  # as many as a grade rests on
        return graded(environment, Repeats(later, "models and the same ones minutes later"))
    seconds = gap[ratios.notna()].median()
    return graded(environment, Repeats(ratios, f"models and the same ones {seconds:.0f} s later"))


def headline(device: str, metrics: Mapping[str, Any], tables: Mapping[str, pd.DataFrame]) -> list[Line]:
    """The figures that have a bar, each with its verdict; one without a value fails."""
    lines = bar_lines(bars(device), metrics, shares=_SHARES)
    lines += _sampling_lines(metrics)
    if "measuring.grade" in metrics:
        told = str(metrics["measuring.grade"])
        lines.append(Line("how steady the machine was", told, "good", "", PASS if told == "good" else MISS))
    if "table_baselines" in tables:
        lines += _baseline_lines(tables["table_baselines"])
    return lines


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


def cards(device: str, metrics: Mapping[str, Any]) -> list[PageCard]:
    """The figures that open the chapter."""
    made = make_cards(_CARDS, bars(device), metrics)
    for _, (ours, *others) in sampling_bars(metrics)[:1]:
        told = ", ".join(f"{name} {100 * v:.3g} %" for name, v in zip(SAMPLERS[1:], others, strict=True))
        adaptive, uniform = (paper.TABLE_10[name]["CPU"][1] for name in ("adaptive", "random"))
        published = f"{adaptive:.0f} % within 10 %, random {uniform:.0f} %"
        verdict = PASS if ours < min(others) else MISS
        made.insert(3, PageCard("conv error, adaptive sampling", f"{100 * ours:.3g} %", verdict, told, "30 % lower", published))
    return made


def prediction_chapter(
    device: str,
    tables: Mapping[str, pd.DataFrame],
    figures: Mapping[str, bytes],
    metrics: Mapping[str, Any],
    environment: Mapping[str, Any],
    findings: Sequence[str],
    measured_at: str,
    notes: Mapping[str, str] = MappingProxyType({}),
    models: pd.DataFrame | None = None,
) -> ChapterPage:
    """The chapter of a device.

    Args:
        device: name of the device.
        tables: frames by id of `TABLES`; what is absent is left out.
        figures: SVG by id of `FIGURES`; what is absent is left out.
        metrics: flat figures (`summary.metrics`).
        environment: the captured environment, may be empty.
        findings: where it misses and why, one paragraph each (`analysis.findings`).
        measured_at: when the measurements were made, as text.
        notes: what the captions of tables add from the data, by id.
        models: measured_ms, repeat_ms and repeat_gap_s of the evaluated models, of which the grade is.
    """
    found = None if models is None else machine_grade(models, environment)
    return ChapterPage(
        id="prediction",
        title="Latency prediction",
        about=_ABOUT,
        measured_at=measured_at,
        headline=_OPENS_WITH if _OPENS_WITH in figures else "",
        cards=tuple(cards(device, metrics)),
        lines=tuple(headline(device, metrics, tables)),
        metrics=metric_texts(metrics),
        told="Where it misses and why",
        findings=tuple(findings),
        pictures=page_pictures(FIGURES, figures, {}),
        tables=page_tables(TABLES, tables, notes, _UNFOLDED),
        environment=tuple(environment_rows(environment).itertuples(index=False, name=None)),
        machine=machine_of(environment),
        rows=rows_of(environment),
        grade=found.name if found else "",
        graded=found.why if found else "",
        absent=tuple(t.title for n, t in TABLES.items() if n not in {*tables, TRANSFERRED})
        + tuple(p.title for n, p in FIGURES.items() if n not in figures),
    )


def read_prediction_chapter(
    device: str,
    *,
    tables: Path,
    figures: Path,
    metrics: Path,
    environment: Path,
    models: Path,
) -> ChapterPage:
    """Gather the chapter from what the evaluation wrote.

    Args:
        device: name of the device.
        tables: folder of `write_tables`, with notes and findings beside them.
        figures: folder of `write_figures`.
        metrics: figures of merit of the chapter.
        environment: environment.json.
        models: table of the evaluated models.

    Raises:
        FormatError: metrics, environment or findings cannot be read.
    """
    frames, measured_at = read_tables(tables)
    return prediction_chapter(
        device,
        frames,
        {name: path.read_bytes() for name in FIGURES if (path := figures / f"{name}.svg").is_file()},
        read_document(metrics),
        read_document(environment),
        _findings(tables / FINDINGS),
        measured_at,
        read_document(tables / NOTES),
        read_parquet(models, "measured_ms", "repeat_ms", "repeat_gap_s"),
    )


def transfer_page(about: str, measured_at: str, frame: pd.DataFrame) -> ChapterPage:
    """The page of Table 11.

    Args:
        about: what is held against what.
        measured_at: when both devices were measured, as text.
        frame: the table.
    """
    shown = table(TRANSFERRED, TABLES[TRANSFERRED].title, about, frame, unfolded=True)
    return ChapterPage("transfer", "Predictors of another device", _TRANSFER, measured_at, tables=(shown,))


def _findings(path: Path) -> list[str]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot read {path.name}: {error}", where=str(path), next_step=_AGAIN) from error
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise FormatError(f"{path.name} is no list of texts", where=str(path), next_step=_AGAIN)
    return value
