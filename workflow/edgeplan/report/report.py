"""report.html: one self-contained page with the headline figures, the findings, every table and every figure."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas as pd

from edgeplan.chapters.prediction.evaluation.figures import FIGURES
from edgeplan.chapters.prediction.evaluation.metrics import bars, sampling_bars
from edgeplan.chapters.prediction.evaluation.table_registry import TABLES
from edgeplan.chapters.prediction.evaluation.tables import NOTES, captioned, read_tables
from edgeplan.chapters.prediction.evaluation.tables_baselines import baseline_verdicts
from edgeplan.chapters.prediction.evaluation.tables_sampling import environment_rows
from edgeplan.errors import FormatError
from edgeplan.report.pages import templates
from edgeplan.reporting.bars import Bar
from edgeplan.reporting.table import cell_text
from edgeplan.support.files import write_json, write_text
from edgeplan.support.frames import read_document

_AGAIN = "run the evaluation stage again"
_PASS, _MISS = "pass", "miss"
_SHARES = ("prediction.within", "prediction.plain_sum", "prediction.left_out", "fusion.", "interval.coverage")


@dataclass(frozen=True, slots=True)
class Line:
    """One headline figure: what, its value, its bar and aim as text, and `pass` or `miss`."""

    title: str
    value: str
    bar: str
    aim: str
    verdict: str


def headline(device: str, metrics: Mapping[str, float], tables: Mapping[str, pd.DataFrame]) -> list[Line]:
    """The figures that have a bar, each with its verdict; figures that were not measured are left out."""
    lines = bar_lines([bar for bar in bars(device) if bar.key in metrics], metrics, shares=_SHARES)
    lines += _sampling_lines(metrics)
    if "measuring.grade" in metrics:
        told = str(metrics["measuring.grade"])
        lines.append(Line("how steady the machine was", told, "good", "", _PASS if told == "good" else _MISS))
    if "table_baselines" in tables:
        lines += _baseline_lines(tables["table_baselines"])
    return lines


def bar_lines(held: Iterable[Bar], metrics: Mapping[str, float], *, shares: tuple[str, ...] = ()) -> list[Line]:
    """A line for each bar; what was not measured is missed.

    Args:
        held: the bars.
        metrics: figures by key.
        shares: how the keys begin whose figures are shown in percent.
    """
    lines = []
    for bar in held:
        number = partial(_number, share=bar.key.startswith(shares))
        value = metrics.get(bar.key)
        verdict = _PASS if value is not None and bar.reached(value) else _MISS
        told = "not measured" if value is None else number(value)
        lines.append(Line(bar.title, told, bar.limits(number), bar.aim, verdict))
    return lines


def _number(value: float, *, share: bool) -> str:
    return f"{cell_text(100 * float(value))} %" if share else cell_text(float(value))


def _sampling_lines(metrics: Mapping[str, float]) -> list[Line]:
    lines = []
    for title, (ours, *others) in sampling_bars(metrics):
        values = ", ".join(_number(v, share=True) for v in (ours, *others))
        lines.append(Line(title, values, "adaptive lowest", "30 % lower", _PASS if ours < min(others) else _MISS))
    return lines


def _baseline_lines(table: pd.DataFrame) -> list[Line]:
    lines = []
    for baseline, higher, lower in baseline_verdicts(table).itertuples(index=False, name=None):
        told = "; ".join(
            f"{what}: {where}" for what, where in (("more within 10 %", higher), ("RMSPE not higher", lower)) if where
        )
        verdict = _MISS if told else _PASS
        lines.append(Line(f"{baseline} beaten on every family", told or "on all", "on all", "", verdict))
    return lines


@dataclass(frozen=True, slots=True)
class Section:
    """A table or a figure of the page; `rows` holds a table's cells as text, `image` a figure as base64."""

    id: str
    title: str
    caption: str
    columns: Sequence[str] = ()
    numeric: Sequence[bool] = ()
    rows: Sequence[Sequence[str]] = ()
    image: str = ""


def table_section(name: str, title: str, caption: str, frame: pd.DataFrame) -> Section:
    """A table with its cells as text."""
    numeric = [bool(pd.api.types.is_numeric_dtype(frame[c])) for c in frame.columns]
    rows = [[cell_text(v) for v in row] for row in frame.itertuples(index=False, name=None)]
    return Section(name, title, caption, [str(c) for c in frame.columns], numeric, rows)


def render(
    device: str,
    tables: Mapping[str, pd.DataFrame],
    figures: Mapping[str, bytes],
    metrics: Mapping[str, float],
    environment: Mapping[str, Any],
    findings: Sequence[str],
    measured_at: str,
    chapters: Sequence[str] = (),
    notes: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The report as HTML.

    Args:
        device: name of the device.
        tables: frames by id of `TABLES`; what is absent is left out.
        figures: PNG by id of `FIGURES`; what is absent is left out.
        metrics: flat figures (`summary.metrics`).
        environment: the captured environment, may be empty.
        findings: where it misses and why, one paragraph each (`analysis.findings`).
        measured_at: when the measurements were made, as text.
        chapters: further chapters, as HTML fragments of this package.
        notes: what the captions of tables add from the data, by id.
    """
    shown = [table_section(name, t.title, captioned(t, notes), tables[name]) for name, t in TABLES.items() if name in tables]
    drawn = [
        Section(name, p.title, p.caption, image=base64.b64encode(figures[name]).decode())
        for name, p in FIGURES.items()
        if name in figures
    ]
    page = templates().get_template("report.html.j2")
    return page.render(
        device=device,
        measured_at=measured_at,
        headline=headline(device, metrics, tables),
        metrics=[(name, v if isinstance(v, str) else cell_text(float(v))) for name, v in sorted(metrics.items())],
        findings=findings,
        environment=environment_rows(environment).to_numpy().tolist(),
        tables=shown,
        figures=drawn,
        chapters=chapters,
        absent=[t.title for name, t in TABLES.items() if name not in tables]
        + [p.title for name, p in FIGURES.items() if name not in figures],
    )


def write_report(
    device: str,
    *,
    tables: Path,
    figures: Path,
    metrics: Path,
    environment: Path,
    findings: Path,
    report: Path,
    more: Mapping[str, pd.DataFrame] = MappingProxyType({}),
    remarks: Sequence[str] = (),
    chapters: Sequence[str] = (),
) -> None:
    """Gather what the evaluation wrote and write the page atomically.

    Args:
        device: name of the device.
        tables: folder of `write_tables`.
        figures: folder of `write_figures`.
        metrics: metrics.json.
        environment: environment.json.
        findings: list of texts written by `write_findings`.
        report: the page.
        more: tables that live elsewhere, by id (`table_11` belongs to a stage of its own).
        remarks: findings written by people, shown before the computed ones.
        chapters: further chapters, as HTML fragments of this package.

    Raises:
        FormatError: metrics, environment or findings cannot be read.
    """
    frames, measured_at = read_tables(tables)
    pictures = {name: path.read_bytes() for name in FIGURES if (path := figures / f"{name}.png").is_file()}
    page = render(
        device,
        {**frames, **more},
        pictures,
        read_document(metrics),
        read_document(environment),
        [*remarks, *_findings(findings)],
        measured_at,
        chapters,
        read_document(tables / NOTES),
    )
    write_text(report, page)


def write_findings(findings: Sequence[str], path: Path) -> None:
    """Write findings for `write_report`, atomically."""
    write_json(path, list(findings))


def _findings(path: Path) -> list[str]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot read {path.name}: {error}", where=str(path), next_step=_AGAIN) from error
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise FormatError(f"{path.name} is no list of texts", where=str(path), next_step=_AGAIN)
    return value
