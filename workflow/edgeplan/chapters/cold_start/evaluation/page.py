"""Builds the chapter's page on cold starts: its headline figure and cards, findings, figures and tables."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from edgeplan.chapters.cold_start import paper
from edgeplan.chapters.cold_start.evaluation.evidence import FRAMES, ColdEvidence
from edgeplan.chapters.cold_start.evaluation.figures import COLD_FIGURES
from edgeplan.chapters.cold_start.evaluation.findings import beside, continuous, counts, disturbed
from edgeplan.chapters.cold_start.evaluation.metrics import BARS, cold_metrics, counted, geomean
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


def _published(baseline: str) -> str:
    means = [by_baseline[baseline].mean for by_baseline in paper.TABLE5.values()]
    return f"{min(means):g} to {max(means):g} over {baseline}, by phone"


_CARDS = (
    CardOf(
        "as fast as the best stock setting, page cache warm", ("cold.speedup_vs_best_stock_cached",), "times", "evicted only"
    ),
    CardOf(
        "as fast as the best stock setting, page cache evicted",
        ("cold.speedup_vs_best_stock_evicted",),
        "times",
        _published("ncnn"),
    ),
    CardOf("as fast as ONNX Runtime as shipped", ("cold.speedup_vs_ort_default",), "times", _published("TFLite")),
    CardOf("cold start over the work no plan avoids", ("cold.over_work_bound_cached",), "times", "not printed"),
    CardOf("cold start over own warm run", ("cold.over_warm_cached",), "times", f"{paper.COLD_OVER_WARM:g}"),
)


def grade(evidence: ColdEvidence) -> Graded | None:
    """Return the grade of the figures, by what the same start took in turn, again and again."""
    runs = counted(evidence.runs).sort_values("repeat")
    before = runs.groupby(["model", "setting", "plan", "state", "threads"])["cold_ms"].shift()
    return graded(evidence.environment, Repeats(runs["cold_ms"] / before, "starts and the same ones before"))


def findings(evidence: ColdEvidence, tables: Mapping[str, pd.DataFrame], metrics: Mapping[str, float]) -> list[str]:
    """Sentences tell what the medians rest on, what bounds the starts, and what the continuous mode gains."""
    told = [text for finding in (beside, counts, disturbed, continuous) if (text := finding(evidence))]
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
    """Return the sentence on the bound where the page cache is evicted; "" without a proven one."""
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
    told="What bounds it",
)
#: The stage `cold_tables`.
write = COLD_REPORT.write
