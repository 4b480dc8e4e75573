"""The second chapter of the report: a fragment that the report of a device takes in, and a page of its own around it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence

import pandas as pd

from edgeplan.chapters.cold_start.evaluation import findings as words
from edgeplan.chapters.cold_start.evaluation.evidence import ColdEvidence
from edgeplan.chapters.cold_start.evaluation.figures import COLD_FIGURES, figure_captions
from edgeplan.chapters.cold_start.evaluation.metrics import BARS, METRICS, geomean
from edgeplan.chapters.cold_start.evaluation.tables import COLD_TABLES, REASON, table_captions
from edgeplan.report.pages import templates
from edgeplan.report.report import Line, Section, bar_lines, table_section
from edgeplan.reporting.table import cell_text


def headline(metrics: Mapping[str, float]) -> list[Line]:
    """The figures with a bar, each with its verdict; what was not measured is missed."""
    return bar_lines(BARS, metrics)


def findings(evidence: ColdEvidence, tables: Mapping[str, pd.DataFrame], metrics: Mapping[str, float]) -> list[str]:
    """What the medians rest on, what bounds the starts (from the table of bounds), and what the continuous mode gains."""
    told = [
        text
        for words_of in (words.counts, words.disturbed, words.evicted_plans, words.warm_plans, words.continuous)
        if (text := words_of(evidence))
    ]
    frame = tables.get("cold_bounds", pd.DataFrame())
    key = "cold.over_work_bound_cached"
    if "evicted_bounded_by" in frame.columns:
        by_disk = frame.loc[frame["evicted_bounded_by"] == "disk", "model"].tolist()
        text = f"With the page cache evicted, {len(by_disk)} of {len(frame)} models are bounded by the disk"
        told.append(f"{text}{': ' if by_disk else ''}{', '.join(by_disk)}; the others by the cores' work.")
        parts = frame[[c for c in frame.columns if c.endswith("_core_ms")]].sum()
        if parts.sum() > 0:
            shares = ", ".join(f"{str(c).removesuffix('_core_ms')} {100 * v / parts.sum():.0f} %" for c, v in parts.items())
            told.append(
                f"Where the cores' time goes in the optimal plans, over all models: {shares} (create is JIT compilation; start "
                "is before the first step and behind the last; a core idles while one core's work is waited for)."
            )
        told += [text for text in (_beyond_work(frame), _beyond_disk(tables)) if text]
        slowest = frame.dropna(subset=["cached_over_work"]).nlargest(1, "cached_over_work")
        if key in metrics and len(slowest):
            model, ratio = slowest["model"].iloc[0], slowest["cached_over_work"].iloc[0]
            told.append(f"Farthest from its work bound is {model}: {cell_text(float(ratio))} times.")
    if metrics.get(key, 1.0) < 1.0:
        told.append(
            f"Starts take {cell_text(metrics[key])} times their work bound, which none can: when the models were profiled "
            "the machine was slower than its references told. What rests on profiles (bounds, predictions) does not hold here."
        )
    told += [
        f"{COLD_TABLES[n].title}: not measured, {f[REASON].iloc[0]}." for n, f in tables.items() if list(f.columns) == [REASON]
    ]
    return told


def _beyond_work(frame: pd.DataFrame) -> str:
    """How much of the distance from the work bound no plan avoids, and what most of it is."""
    named = frame.loc[frame["beyond_work"] != "", "beyond_work"]
    if named.empty:
        return ""
    most = ", ".join(f"{what} on {count}" for what, count in named.value_counts().items())
    proven, work = (geomean(frame[f"cached_over_{bound}"].dropna()) for bound in ("proven", "work"))
    alone, slow = geomean(frame["proven_over_work"].dropna()), frame["slowness"].dropna()
    usual = [cell_text(geomean((frame[f"cached_over_{bound}"] * frame["slowness"]).dropna())) for bound in ("work", "proven")]
    return (
        f"With the page cache warm, starts take {cell_text(work)} times the work bound and {cell_text(proven)} times what is "
        f"proven for any schedule at the profiled costs, which is {cell_text(alone)} times the work bound. Both bounds are at "
        f"the machine's speed among the starts, which took work {cell_text(slow.min())} to {cell_text(slow.max())} times as "
        f"long as among the profiles; over bounds at the profiles' speed starts take {usual[0]} and {usual[1]} times. Beyond "
        f"the work bound most of a start is: {most}."
    )


def _beyond_disk(tables: Mapping[str, pd.DataFrame]) -> str:
    """The same with the page cache evicted."""
    frame = tables.get("cold_bounds_evicted", pd.DataFrame())
    if "evicted_over_planned_bound" not in frame.columns or frame["evicted_over_planned_bound"].isna().all():
        return ""
    known = frame.dropna(subset=["evicted_over_planned_bound"])
    proven, bound = (geomean(known[f"evicted_over_{name}"]) for name in ("planned_bound", "bound"))
    alone = cell_text(geomean(known["planned_bound_over_bound"]))
    return (
        f"With it evicted they take {cell_text(bound)} times the larger of the disk's and the cores' bound, and "
        f"{cell_text(proven)} times what is proven for any schedule at the profiled costs and the disk as it was probed before "
        f"planning, which is {alone} times the former: the disk's first bytes come late, and what needs the last weights can "
        "only follow them."
    )


def render_chapter(
    evidence: ColdEvidence,
    tables: Mapping[str, pd.DataFrame],
    figures: Mapping[str, bytes],
    metrics: Mapping[str, float],
    remarks: Sequence[str],
    measured_at: str,
) -> str:
    """The chapter as an HTML fragment.

    Args:
        evidence: the measurements, for what captions and findings say of them.
        tables: by id of `COLD_TABLES`.
        figures: PNG by id of `COLD_FIGURES`; what is absent is left out.
        metrics: of `cold_metrics`.
        remarks: findings written by people, shown before the computed ones.
        measured_at: when the measurements were made, as text.
    """
    captions, drawn_captions = table_captions(evidence), figure_captions(evidence)
    drawn = [
        Section(f"figure_{name}", p.title, drawn_captions[name], image=base64.b64encode(figures[name]).decode())
        for name, p in COLD_FIGURES.items()
        if name in figures
    ]
    return (
        templates()
        .get_template("cold_chapter.html.j2")
        .render(
            measured_at=measured_at,
            headline=headline(metrics),
            metrics=[(name, cell_text(metrics[name])) for name in METRICS if name in metrics],
            findings=[*remarks, *findings(evidence, tables, metrics)],
            tables=[
                table_section(name, t.title, captions[name], tables[name]) for name, t in COLD_TABLES.items() if name in tables
            ],
            figures=drawn,
        )
    )


def render_page(device: str, chapter: str) -> str:
    """A page with this chapter alone, for a device on which the first one was not built."""
    return templates().get_template("cold_page.html.j2").render(device=device, chapter=chapter)
