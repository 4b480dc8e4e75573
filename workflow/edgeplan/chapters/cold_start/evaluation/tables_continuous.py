"""Tabulates continuous inference (section 3.5, Figure 14): first inferences of a process, with its mode and without."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd

from edgeplan.chapters.cold_start import paper
from edgeplan.chapters.cold_start.evaluation.evidence import CACHED, CONTINUOUS, OPTIMAL, OWN, ColdEvidence
from edgeplan.chapters.cold_start.evaluation.tables_stages import focus, good, title
from edgeplan.reporting.kit import NotMeasuredError


def inference(i: int) -> str:
    """Return the column of the i-th inference, the first being 1."""
    return f"inference_{i}_ms"


def shown_models(e: ColdEvidence) -> tuple[str, ...]:
    """Return the models that the paper shows."""
    return tuple(dict.fromkeys((focus(e, "googlenet"), focus(e, "resnet50"))))


def _series(e: ColdEvidence) -> pd.DataFrame:
    """Return medians of every inference of a process and of their sum, page cache warm, all cores.

    Returns:
        model, setting, inference_<i>_ms, sum_ms, runs; of our own the optimal plan and the one with the mode.
    """
    runs = good(e)
    runs = runs[(runs["state"] == CACHED) & (runs["threads"] == e.threads) & runs["plan"].isin(["", OPTIMAL, "continuous"])]
    rows = []
    for (model, setting), part in runs.groupby(["model", "setting"], sort=False):
        series = [[cold, *json.loads(warm)] for cold, warm in zip(part["cold_ms"], part["warm_ms"], strict=True)]
        times = np.array([s[: min(map(len, series))] for s in series])
        each = {inference(i + 1): v for i, v in enumerate(np.median(times, axis=0).tolist())}
        total = float(np.median(times.sum(axis=1)))
        rows.append({"model": model, "setting": setting} | each | {"sum_ms": total, "runs": len(part)})
    frame = pd.DataFrame(rows)
    if inference(2) not in frame.columns:
        raise NotMeasuredError("processes made no second inference: cold_start.warm_runs is 0")
    return frame


def mode_over_without(e: ColdEvidence) -> pd.DataFrame:
    """Divide times with the mode by those of the same plan without it, each inference and their sum, by model."""
    frame = _series(e)
    with_it, without = (
        frame[frame["setting"] == name].set_index("model").drop(columns="setting") for name in (CONTINUOUS, OWN)
    )
    models = [m for m in e.names if m in with_it.index and m in without.index]
    if not models:
        raise NotMeasuredError("no model was run with the mode for continuous inference and without it")
    ratios = with_it.loc[models] / without.loc[models]
    return ratios.drop(columns="runs").dropna(axis="columns", how="all")


def figure_14(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate the first inferences of a process: the mode beside the same plan without it; stock engines for some models."""
    frame = _series(e)
    rank = {name: i for i, name in enumerate((CONTINUOUS, OWN))}
    kept = frame[frame["setting"].isin(rank) | frame["model"].isin(shown_models(e))]
    order = {model: i for i, model in enumerate(e.names)}
    kept = kept.assign(place=kept["model"].map(order), own=kept["setting"].map(rank).fillna(len(rank)))
    kept = kept.sort_values(["place", "own", "setting"], ignore_index=True).drop(columns=["place", "own"])
    try:
        over = mode_over_without(e)["sum_ms"]
    except NotMeasuredError:
        over = pd.Series(dtype="float64")
    kept["sum_over_without"] = kept["model"].map(over).where(kept["setting"] == CONTINUOUS)
    ncnn = frame[frame["setting"] == "ncnn"].set_index("model")
    for i in paper.FIGURE14_OVER_NCNN:
        if inference(i) in kept.columns:
            over_ncnn = kept[inference(i)] / kept["model"].map(ncnn[inference(i)])
            kept[f"over_ncnn_{i}"] = over_ncnn.where(kept["setting"] == CONTINUOUS)
    told = "; ".join(f"inference {i}: {ratio}x ncnn's" for i, ratio in paper.FIGURE14_OVER_NCNN.items())
    last = ["sum_ms", "sum_over_without", "runs"]
    return kept.assign(setting=kept["setting"].map(title), paper=told)[
        [*(c for c in kept.columns if c not in last), *last, "paper"]
    ]
