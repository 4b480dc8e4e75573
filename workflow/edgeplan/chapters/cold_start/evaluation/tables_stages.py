"""Tabulates one start's stages and cold starts by the number of cores."""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
import pandas as pd

from edgeplan.chapters.cold_start import paper
from edgeplan.chapters.cold_start.evaluation import metrics
from edgeplan.chapters.cold_start.evaluation.evidence import CACHED, CONTINUOUS, EVICTED, OPTIMAL, OWN, ColdEvidence
from edgeplan.engines.registry import SETTINGS
from edgeplan.reporting.chapter_report import NotMeasuredError

STATES = (CACHED, EVICTED)
#: Stages of a run that are parts of it, in their order; others that an engine tells are shown behind them.
STAGES = ("read", "transform", "create", "execute")
_ALLOCATION, _RUNS = "memory allocation", "runs"


def title(setting: str) -> str:
    """Return a setting's name in the tables."""
    return SETTINGS[setting].title if setting in SETTINGS else setting


def good(e: ColdEvidence) -> pd.DataFrame:
    """Return the runs that count, without those of the background load."""
    return metrics.counted(e.runs)


def focus(e: ColdEvidence, wanted: str) -> str:
    """Return the model the paper shows, or, where it was not measured, the one with most FLOPs of those that were."""
    measured = set(good(e)["model"])
    if wanted in measured:
        return wanted
    known = e.models[e.models["model"].isin(measured)]
    if known.empty:
        raise NotMeasuredError("no model was run")
    return str(known.sort_values("macs")["model"].iloc[-1])


def stage_medians(e: ColdEvidence, model: str, setting: str, plan: str, threads: int, state: str) -> Mapping[str, float]:
    """Return each stage's median (ms) over the repeats: what the engine tells, memory allocation as first touch, total, warm.

    Our own runs are those that `metrics.own` takes. The last entry, `runs`, is their number.
    """
    runs = good(e)
    key = {"model": model, "plan": plan, "threads": threads, "state": state}
    if setting == OWN:
        mine = metrics.own(metrics.medians(e.runs))
        setting = next(iter(_where(mine, key)["setting"]), OWN)
    runs = _where(runs, key | {"setting": setting})
    if runs.empty:
        raise NotMeasuredError(f"no run of {title(setting)} {plan} on {model}, {threads} threads, page cache {state}")
    told = pd.DataFrame([json.loads(text) for text in runs["stages_ms"]]).median().to_dict()
    stages = {str(k): float(v) for k, v in told.items() if k != "makespan"}
    ordered = {name: stages.pop(name) for name in STAGES if name in stages}
    return {
        _ALLOCATION: float(runs["first_touch_ms"].median()),
        **ordered,
        **stages,
        "total cold": float(runs["cold_ms"].median()),
        "warm": float(runs["warm_min_ms"].median()),
        _RUNS: len(runs),
    }


def _where(frame: pd.DataFrame, key: Mapping[str, object]) -> pd.DataFrame:
    for column, value in key.items():
        frame = frame[frame[column] == value]
    return frame


def table_01(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate stages of one cold start: as stock engines do it, as planned, and what stock engines tell."""
    model = focus(e, "resnet50")
    columns: dict[str, Mapping[str, float]] = {}
    for state in STATES:
        for plan in ("warm", metrics.plan_for(e.runs, state)):
            columns[f"{plan} plan, {state}, ms"] = maybe_stages(e, model, OWN, plan, state)
        columns[f"{title('onnxruntime')}, {state}, ms"] = maybe_stages(e, model, "onnxruntime", "", state)
    if not any(columns.values()):
        raise NotMeasuredError(f"{model} was not run to its end by any engine")
    names = dict.fromkeys(name for part in columns.values() for name in part)
    last = ("total cold", "warm")
    order = [_ALLOCATION, *STAGES, *(n for n in names if n not in {_ALLOCATION, *STAGES, *last, _RUNS}), *last]
    rows = [
        {
            "stage": f"{name} (part of the others)" if name == _ALLOCATION else name,
            **{c: part.get(name, np.nan) for c, part in columns.items()},
            "paper_pixel5_ms": paper.TABLE1_PIXEL5_MS.get(name, np.nan),
        }
        for name in order
        if name in names
    ]
    return pd.DataFrame(rows).assign(model=model, runs=int(min(part[_RUNS] for part in columns.values() if part)))


def maybe_stages(e: ColdEvidence, model: str, setting: str, plan: str, state: str) -> Mapping[str, float]:
    """Return `stage_medians` on all cores; nothing where there is no such run."""
    try:
        return stage_medians(e, model, setting, plan, e.threads, state)
    except NotMeasuredError:
        return {}


def figure_06(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate stages of a cold start by the number of cores: the plan of a stock engine (a sequence), and the optimal one."""
    model = focus(e, "resnet50")
    rows = []
    for plan in ("warm", OPTIMAL):
        for threads in sorted(set(e.runs["threads"])):
            try:
                stages = dict(stage_medians(e, model, OWN, plan, int(threads), CACHED))
            except NotMeasuredError:
                continue
            runs = stages.pop(_RUNS)
            times = {f"{name}_ms": v for name, v in stages.items()}
            rows.append({"model": model, "plan": plan, "cores": threads} | times | {"runs": int(runs)})
    if not rows:
        raise NotMeasuredError(f"{model} was not run by the runtime")
    frame = pd.DataFrame(rows)
    told = "; ".join(f"{stage} {gain}x" for stage, gain in paper.FIGURE6_BIG_OVER_LITTLE.items())
    return frame.assign(paper_big_over_little_core=told)


def figure_09(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate cold latency by the number of cores: every engine, and our plan on one big and one little core (by waiting)."""
    models = list(dict.fromkeys((focus(e, "googlenet"), focus(e, "resnet50"))))
    found = metrics.medians(e.runs)
    found = found[found["model"].isin(models)]
    uneven = metrics.own(found)
    uneven = uneven[uneven["plan"].str.startswith("asymmetric")]
    level = metrics.beside(found, e.runs)
    frame = pd.concat(
        [
            level.assign(setting=level["setting"].map(title), cores=level["threads"].astype(str)),
            uneven.assign(setting=uneven["setting"].map(title) + ", " + uneven["plan"], cores="1+1, by waiting"),
        ]
    )
    if frame.empty:
        raise NotMeasuredError("no run counts")
    told = "; ".join(f"{device}: {cores}" for device, cores in paper.FIGURE9_BEST_CORES.items())
    shown = frame.rename(columns={"state": "page_cache", "repeats": "runs"}).assign(paper_best_cores_of_stock=told)
    columns = ["model", "setting", "page_cache", "cores", "cold_ms", "runs", "paper_best_cores_of_stock"]
    return shown[columns].sort_values(["model", "page_cache", "setting", "cores"])


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
