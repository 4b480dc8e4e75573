"""Builds the chapter's page on cold starts: its headline figure and cards, findings, figures and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from edgeplan.chapters.cold_start import paper
from edgeplan.chapters.cold_start.evaluation import metrics
from edgeplan.chapters.cold_start.evaluation.evidence import CACHED, EVICTED, FRAMES, OWN, ColdEvidence
from edgeplan.chapters.cold_start.evaluation.figures import COLD_FIGURES
from edgeplan.chapters.cold_start.evaluation.metrics import BARS, cold_metrics, counted
from edgeplan.chapters.cold_start.evaluation.tables import COLD_TABLES, inference, mode_over_without
from edgeplan.measurement.process.interference import LIMIT
from edgeplan.reporting.bars import Graded, Repeats, graded
from edgeplan.reporting.chapter_report import REASON, ChapterReport, NotMeasuredError
from edgeplan.reporting.page import CardOf, cell_text

_CELL = ["model", "setting", "plan", "threads", "state"]
_CALLED = {CACHED: "warm", EVICTED: "evicted"}
_ABOUT = (
    "From opening the model to the first output, in a fresh process, imports excluded. The paper (NNV12, MobiSys 2023) "
    "measured phones, so ratios compare, latencies do not."
)
#: Mean speed-ups over ncnn, by phone.
_NCNN = [mean for _, _, mean in (by_baseline["ncnn"] for by_baseline in paper.TABLE5.values())]
_CARDS = (
    CardOf(
        "starts {} as fast as the best stock setting, cache warm",
        "cold.speedup_vs_best_stock_cached",
        "times",
        paper="evicted only",
    ),
    CardOf(
        "starts {} as fast as the best stock setting, cache evicted",
        "cold.speedup_vs_best_stock_evicted",
        "times",
        paper=f"{min(_NCNN):g} to {max(_NCNN):g} over ncnn, by phone",
        further=True,
    ),
    CardOf("takes {} the work that no plan avoids", "cold.over_work_bound_cached", "times", paper="not printed"),
    CardOf(
        "starts in {} the time of its own warm run",
        "cold.over_warm_cached",
        "times",
        paper=f"{paper.COLD_OVER_WARM:g}",
        further=True,
    ),
)


def listed(names: Iterable[object]) -> str:
    """Join names as a sentence has them: a, b and c."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last


def beside_stock(e: ColdEvidence) -> str:
    """Compare our starts with the best stock setting of each model, and tell what failed of them."""
    told = []
    for state in (CACHED, EVICTED):
        stock, own = metrics.stock_cold(e.runs, state)["cold_ms"], metrics.own_cold(e.runs, state)["cold_ms"]
        ratios = (stock / own).dropna()
        if len(ratios):
            mean, slower = metrics.over_models(ratios), ratios[ratios < 1].index
            text = f"{mean.value:.2f} (95 %: {mean.low:.2f} to {mean.high:.2f}) with the page cache {_CALLED[state]}"
            told.append(
                f"{text}, {f'slower on {listed(slower)}' if len(slower) else f'slower on none of {len(ratios)} models'}"
            )
    if not told:
        return ""
    mine = e.runs[e.runs["setting"].str.startswith(OWN)]
    lost = f" {len(metrics.failed(mine))} of {len(mine)} starts of our plans failed."
    return f"Speed-up over the stock setting that is best for a model: {'; '.join(told)}.{lost}"


def counts(e: ColdEvidence) -> str:
    """Tell on how many runs the medians rest, and why others do not count."""
    runs = e.runs[(e.runs["load_core"] == "") & (e.runs["repeat"] >= 0)]
    if runs.empty:
        return ""
    counted = (runs["reason"] == "").groupby([runs[name] for name in _CELL]).sum()
    cells = counted.value_counts().sort_index(ascending=False)
    (most, first), *others = cells.items()
    text = (
        f"{len(counted)} cells (model, setting, plan, threads, page cache) were measured without load: {first} rest on {most} "
    )
    text += ", ".join(["counted runs", *(f"{number} on {n}" for n, number in others)])
    left_out = runs[runs["reason"] != ""]
    if len(left_out):
        reclaimed = left_out["reason"].str.contains(metrics.RECLAIMED, regex=False) & (left_out["state"] == CACHED)
        text += f". {len(left_out)} of {len(runs)} runs do not count, {reclaimed.sum()} of them since the kernel had reclaimed "
        text += "pages of their files"
    return f"{text}. `runs` in a table is that number, the least where a row merges several medians."


def disturbed(e: ColdEvidence) -> str:
    """Count the runs that count and did not have their processors to themselves."""
    runs = e.runs[(e.runs["load_core"] == "") & (e.runs["reason"] == "") & (e.runs["repeat"] >= 0)]
    if runs.empty:
        return ""
    found = runs["interference"] > LIMIT
    by_threads = found.groupby(runs["threads"]).mean()
    shares = listed(f"{100 * share:.1f} % on {n} thread{'s' if n != 1 else ''}" for n, share in by_threads.items())
    return (
        f"Of the runs that count, {found.sum()} of {len(runs)} ({shares}) were disturbed in every attempt: beside them a load "
        f"on all their processors at once took more than {LIMIT:g} times its usual time. They are the least disturbed."
    )


def _continuous(e: ColdEvidence) -> str:
    """Tell what the mode for continuous inference gains or costs, one inference after another."""
    try:
        ratios = mode_over_without(e)
    except NotMeasuredError:
        return ""
    number = sum(name != "sum_ms" for name in ratios.columns)
    pays = metrics.known_geomean(ratios["sum_ms"]) < 1
    parts = [f"all {number} together {_times(ratios['sum_ms'])}"]
    parts += [f"inference {i} {_times(ratios[inference(i)])}" for i in range(1, min(number, 2) + 1)]
    if number > 2:  # beyond the two that the paper tells of
        later = ratios[[inference(i) for i in range(3, number + 1)]].prod(axis=1) ** (1 / (number - 2))
        parts.append(f"each later one {_times(later)}")
    return (
        f"The mode for continuous inference {'pays' if pays else 'costs more than it gains'} when {number} inferences follow "
        f"each other at once. Its times over those of the same plan without it (geometric means): {', '.join(parts)}."
    )


def _times(ratios: pd.Series[float]) -> str:
    """Return ratios of times in words."""
    slower, known = int((ratios > 1).sum()), int(ratios.notna().sum())
    return f"{cell_text(metrics.known_geomean(ratios))} (slower on {slower} of {known} models)"


def cold_grade(evidence: ColdEvidence) -> Graded | None:
    """Return the grade of the figures, by what the same start took in turn, again and again."""
    runs = counted(evidence.runs).sort_values("repeat")
    before = runs.groupby(["model", "setting", "plan", "state", "threads"])["cold_ms"].shift()
    return graded(evidence.environment, Repeats(runs["cold_ms"] / before, "starts and the same ones before"))


def cold_findings(evidence: ColdEvidence, tables: Mapping[str, pd.DataFrame], metrics: Mapping[str, float]) -> list[str]:
    """Sentences tell what the medians rest on, and what the continuous mode gains."""
    told = [text for finding in (beside_stock, counts, disturbed, _continuous) if (text := finding(evidence))]
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
    bars=lambda _: BARS,
    tables=COLD_TABLES,
    figures=COLD_FIGURES,
    metrics=cold_metrics,
    findings=cold_findings,
    grade=cold_grade,
    evidence=ColdEvidence,
    frames=FRAMES,
    documents=("notes", "environment"),
)
#: The stage `cold_tables`.
write = COLD_REPORT.write
