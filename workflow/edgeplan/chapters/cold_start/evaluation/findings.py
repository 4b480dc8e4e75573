"""Writes sentences of captions and findings that follow from the measurements."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from edgeplan.chapters.cold_start.evaluation import metrics
from edgeplan.chapters.cold_start.evaluation.evidence import (
    CACHED,
    EVICTED,
    OWN,
    ColdEvidence,
)
from edgeplan.chapters.cold_start.evaluation.tables_continuous import inference, mode_over_without
from edgeplan.measurement.process.interference import LIMIT
from edgeplan.reporting.kit import NotMeasuredError
from edgeplan.reporting.table import cell_text

_CELL = ["model", "setting", "plan", "threads", "state"]


def listed(names: Iterable[object]) -> str:
    """Join names as a sentence has them: a, b and c."""
    *first, last = map(str, names)
    return f"{', '.join(first)} and {last}" if first else last


def beside(e: ColdEvidence) -> str:
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


_CALLED = {CACHED: "warm", EVICTED: "evicted"}


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


def continuous(e: ColdEvidence) -> str:
    """Tell what the mode for continuous inference gains or costs, one inference after another."""
    try:
        ratios = mode_over_without(e)
    except NotMeasuredError:
        return ""
    number = sum(name != "sum_ms" for name in ratios.columns)
    pays = metrics.geomean(ratios["sum_ms"]) < 1
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
    return f"{cell_text(metrics.geomean(ratios))} (slower on {slower} of {known} models)"
