"""Builds the chapter's page on cold starts: its headline figure and cards, findings, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from edgeplan.chapters.cold_start import paper
from edgeplan.chapters.cold_start.evaluation.evidence import FRAMES, ColdEvidence
from edgeplan.chapters.cold_start.evaluation.figures import COLD_FIGURES
from edgeplan.chapters.cold_start.evaluation.findings import beside, continuous, counts, disturbed
from edgeplan.chapters.cold_start.evaluation.metrics import BARS, cold_metrics, counted
from edgeplan.chapters.cold_start.evaluation.tables import COLD_TABLES
from edgeplan.reporting.chapter_report import ChapterReport
from edgeplan.reporting.grade import Graded, Repeats, graded
from edgeplan.reporting.kit import REASON
from edgeplan.reporting.page import CardOf
from edgeplan.reporting.table import cell_text

_ABOUT = (
    "From opening the model to the first output, in a fresh process, imports excluded. The paper (NNV12, MobiSys 2023) "
    "measured phones, so ratios compare, latencies do not."
)


#: Mean speed-ups over ncnn, by phone.
_NCNN = [by_baseline["ncnn"].mean for by_baseline in paper.TABLE5.values()]
_CARDS = (
    CardOf(
        "starts {} as fast as the best stock setting, cache warm",
        ("cold.speedup_vs_best_stock_cached",),
        "times",
        paper="evicted only",
    ),
    CardOf(
        "starts {} as fast as the best stock setting, cache evicted",
        ("cold.speedup_vs_best_stock_evicted",),
        "times",
        paper=f"{min(_NCNN):g} to {max(_NCNN):g} over ncnn, by phone",
        further=True,
    ),
    CardOf("takes {} the work that no plan avoids", ("cold.over_work_bound_cached",), "times", paper="not printed"),
    CardOf(
        "starts in {} the time of its own warm run",
        ("cold.over_warm_cached",),
        "times",
        paper=f"{paper.COLD_OVER_WARM:g}",
        further=True,
    ),
)


def grade(evidence: ColdEvidence) -> Graded | None:
    """Return the grade of the figures, by what the same start took in turn, again and again."""
    runs = counted(evidence.runs).sort_values("repeat")
    before = runs.groupby(["model", "setting", "plan", "state", "threads"])["cold_ms"].shift()
    return graded(evidence.environment, Repeats(runs["cold_ms"] / before, "starts and the same ones before"))


def findings(evidence: ColdEvidence, tables: Mapping[str, pd.DataFrame], metrics: Mapping[str, float]) -> list[str]:
    """Sentences tell what the medians rest on, and what the continuous mode gains."""
    told = [text for finding in (beside, counts, disturbed, continuous) if (text := finding(evidence))]
    key = "cold.over_work_bound_cached"
    if metrics.get(key, 1.0) < 1.0:
        told.append(
            f"Starts take {cell_text(metrics[key])} times their work bound, which none can: when the models were profiled "
            "the machine was slower than its references told. What rests on profiles (bounds, predictions) does not hold here."
        )
    told += [
        f"{COLD_TABLES[n].title}: not measured, {f[REASON].iloc[0]}." for n, f in tables.items() if list(f.columns) == [REASON]
    ]
    return told


COLD_REPORT = ChapterReport(
    id="cold-start",
    title="Cold start",
    about=_ABOUT,
    headline="cold_figure_08",
    unfolded=("cold_beside",),
    cards=_CARDS,
    bars=BARS,
    tables=COLD_TABLES,
    figures=COLD_FIGURES,
    metrics=cold_metrics,
    findings=findings,
    grade=grade,
    evidence=ColdEvidence,
    frames=FRAMES,
    documents=("notes", "environment"),
)
#: The stage `cold_tables`.
write = COLD_REPORT.write
