"""Registers the cold-start chapter's tables. No table is left out: one that could not be measured says why."""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.cold_start import paper
from edgeplan.chapters.cold_start.evaluation import metrics
from edgeplan.chapters.cold_start.evaluation.evidence import (
    ABLATION,
    CACHED,
    CONTINUOUS,
    EVICTED,
    OPTIMAL,
    OWN,
    TABLE2_CONV,
    ColdEvidence,
)
from edgeplan.engines.registry import SETTINGS
from edgeplan.planning.profile import BIG, Candidate
from edgeplan.reporting.chapter_report import NotMeasuredError, TableSpec, registry
from edgeplan.zoo.cold_start_models import TABLE4

STATES = (CACHED, EVICTED)
#: Stages of a run that are parts of it, in their order; others that an engine tells are shown behind them.
STAGES = ("read", "transform", "create", "execute")
_ALLOCATION, _RUNS = "memory allocation", "runs"
#: Stock settings in the order of the registry.
STOCK = tuple(name for name, found in SETTINGS.items() if found.stock)
#: Plan -> its name in Figure 13; "" is the pipelined one for the state of the page cache.
_ABLATION = {name: name for name in ABLATION} | {"": "K+C+P"}
_MB = 1e6
_PRINTED = ("parameters_m", "model_mb", "flops_g", "storage_mb")


def title(setting: str) -> str:
    """Return a setting's name in the tables."""
    return SETTINGS[setting].title if setting in SETTINGS else setting


def focus(e: ColdEvidence, wanted: str) -> str:
    """Return the model the paper shows, or, where it was not measured, the one with most FLOPs of those that were."""
    measured = set(metrics.counted(e.runs)["model"])
    if wanted in measured:
        return wanted
    known = e.models[e.models["model"].isin(measured)]
    if known.empty:
        raise NotMeasuredError("no model was run")
    return str(known.sort_values("macs")["model"].iloc[-1])


def stage_medians(e: ColdEvidence, model: str, setting: str, plan: str, threads: int, state: str) -> Mapping[str, float]:
    """Return each stage's median (ms) over the repeats: what the engine tells, memory allocation as first touch, total, warm.

    Our own runs are those that `metrics.own` takes. `runs` is their number. Nothing where there is no such run.
    """
    key = {"model": model, "plan": plan, "threads": threads, "state": state}
    if setting == OWN:
        setting = next(iter(_where(metrics.own(metrics.medians(e.runs)), key)["setting"]), OWN)
    runs = _where(metrics.counted(e.runs), key | {"setting": setting})
    if runs.empty:
        return {}
    told = pd.DataFrame([json.loads(text) for text in runs["stages_ms"]]).median().to_dict()
    stages = {str(k): float(v) for k, v in told.items() if k != "makespan"}
    ordered = {name: stages.pop(name) for name in STAGES if name in stages}
    last = {"total cold": float(runs["cold_ms"].median()), "warm": float(runs["warm_min_ms"].median()), _RUNS: len(runs)}
    return {_ALLOCATION: float(runs["first_touch_ms"].median()), **ordered, **stages, **last}


def _where(frame: pd.DataFrame, key: Mapping[str, object]) -> pd.DataFrame:
    for column, value in key.items():
        frame = frame[frame[column] == value]
    return frame


def _table_01(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate stages of one cold start: as stock engines do it, as planned, and what stock engines tell."""
    model = focus(e, "resnet50")
    columns: dict[str, Mapping[str, float]] = {}
    for state in STATES:
        for plan in ("warm", metrics.plan_for(e.runs, state)):
            columns[f"{plan} plan, {state}, ms"] = stage_medians(e, model, OWN, plan, e.threads, state)
        columns[f"{title('onnxruntime')}, {state}, ms"] = stage_medians(e, model, "onnxruntime", "", e.threads, state)
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


def figure_06(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate stages of a cold start by the number of cores: the plan of a stock engine (a sequence), and the optimal one."""
    model = focus(e, "resnet50")
    rows = []
    for plan, threads in product(("warm", OPTIMAL), sorted(set(e.runs["threads"]))):
        if stages := dict(stage_medians(e, model, OWN, plan, int(threads), CACHED)):
            runs = int(stages.pop(_RUNS))
            times = {f"{name}_ms": v for name, v in stages.items()}
            rows.append({"model": model, "plan": plan, "cores": threads} | times | {"runs": runs})
    if not rows:
        raise NotMeasuredError(f"{model} was not run by the runtime")
    frame = pd.DataFrame(rows)
    told = "; ".join(f"{stage} {gain}x" for stage, gain in paper.FIGURE6_BIG_OVER_LITTLE.items())
    return frame.assign(paper_big_over_little_core=told)


def figure_09(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate cold latency by the number of cores: every engine, and our plan on one big and one little core (by waiting)."""
    found = metrics.medians(e.runs)
    found = found[found["model"].isin(shown_models(e))]
    uneven = metrics.own(found)
    uneven = uneven[uneven["plan"].str.startswith("asymmetric")]
    level = metrics.compared_medians(found, e.runs)
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
    runs = metrics.counted(e.runs)
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


def figure_02(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate cold and warm latency of every setting and model, each at its best thread count."""
    best = metrics.compared_medians(metrics.best_threads(e.runs), e.runs)
    if best.empty:
        raise NotMeasuredError("no run counts")
    names = best["setting"].map(title)
    frame = best.assign(setting=names, cold_over_warm=best["cold_ms"] / best["warm_ms"], runs=best["repeats"])
    return frame[["model", "setting", "state", "threads", "cold_ms", "warm_ms", "cold_over_warm", "runs"]]


def figure_02_summary(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate cold over warm latency by setting: least, largest, geometric mean."""
    frame = figure_02(e)
    frame = frame[frame["state"] == EVICTED] if (frame["state"] == EVICTED).any() else frame
    how = {"models": "size", "least": "min", "largest": "max", "geomean": metrics.known_geomean}
    over: dict[str, Any] = {name: ("cold_over_warm", statistic) for name, statistic in how.items()}
    found: pd.DataFrame = frame.groupby("setting", sort=False).agg(**over, runs=("runs", "min")).reset_index()
    low, high = paper.FIGURE2_COLD_OVER_WARM
    return found.assign(paper=np.where(found["setting"] == OWN, f"{paper.COLD_OVER_WARM} (mean)", f"{low} to {high}"))


def beside(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate our start against each model's best stock setting, in both page cache states; the mean over models first."""
    parts = []
    mine = metrics.failed(e.runs[e.runs["setting"].str.startswith(OWN)])
    for state in STATES:
        stock, own = metrics.stock_cold(e.runs, state), metrics.own_cold(e.runs, state)
        ratio = (stock["cold_ms"] / own["cold_ms"]).dropna().reindex([name for name in e.names if name in own.index]).dropna()
        if ratio.empty:
            continue
        lost = mine[mine["state"] == state].groupby("model").size()
        mean, runs = metrics.over_models(ratio), metrics.fewest_runs(stock, own)[ratio.index]
        first: dict[str, Any] = {"model": f"all {len(ratio)} models, mean", "speedup": mean.value}
        first |= {"low": mean.low, "high": mean.high, "runs": runs.min(), "failed_starts": lost.sum()}
        rest = pd.DataFrame(
            {
                "model": ratio.index,
                "speedup": ratio,
                "best_stock": stock["setting"][ratio.index].map(title),
                "best_stock_ms": stock["cold_ms"][ratio.index],
                "own_ms": own["cold_ms"][ratio.index],
                "own_runs": metrics.spread_of(e.runs, own)[ratio.index],
                "runs": runs,
                "failed_starts": lost.reindex(ratio.index, fill_value=0),
            }
        )
        parts.append(pd.concat([pd.DataFrame([first]), rest], ignore_index=True).assign(page_cache=state))
    if not parts:
        raise NotMeasuredError("no model was run both by a stock engine and by the runtime")
    columns = ("page_cache", "model", "speedup", "low", "high", "best_stock", "best_stock_ms", "own_ms", "own_runs", "runs")
    found = pd.concat(parts, ignore_index=True)[[*columns, "failed_starts"]]
    return found.fillna({"best_stock": "", "own_runs": ""})


def _table_05(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate the speed-up over every stock setting: least, largest, geometric mean over the models it runs."""
    rows = []
    names = [s for s in STOCK if s in set(e.runs["setting"])]
    for state in STATES:
        own = metrics.own_cold(e.runs, state)
        for setting in [*names, ""]:
            stock = metrics.stock_cold(e.runs, state, setting)
            ratio = (stock["cold_ms"] / own["cold_ms"]).dropna()
            rows.append(
                {
                    "baseline": title(setting) if setting else "best stock setting of each model",
                    "page_cache": state,
                    "models": len(ratio),
                    "least": ratio.min(),
                    "largest": ratio.max(),
                    "geomean": metrics.known_geomean(ratio),
                    "runs": metrics.fewest_runs(stock, own).reindex(ratio.index).min(),
                    "paper_min_max_avg": _paper_speedups(setting) if state == EVICTED else "",
                    "without": _reasons(e, setting),
                }
            )
    if not any(row["models"] for row in rows):
        raise NotMeasuredError("no model was run both by a stock engine and by the runtime")
    return pd.DataFrame(rows)


def _paper_speedups(setting: str) -> str:
    name = {"ncnn": "ncnn", "litert": "TFLite"}.get(setting)
    if name is None:
        return ""
    told = ((device, *row[name]) for device, row in paper.TABLE5.items())
    return "; ".join(f"{device} {least} to {largest} ({mean})" for device, least, largest, mean in told)


def _reasons(e: ColdEvidence, setting: str) -> str:
    """Tell why a setting has no figure for some models, one reason each."""
    if not setting:
        return ""
    mine = e.runs[e.runs["setting"] == setting]
    counted = set(mine.loc[mine["reason"] == "", "model"])
    failed = mine[(mine["reason"] != "") & ~mine["model"].isin(counted)].drop_duplicates("model")
    grouped = failed.groupby("reason", sort=False)["model"]
    return "; ".join(f"{', '.join(models)}: {reason}" for reason, models in grouped)


def figure_08(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate the cold latency of every model and setting beside ours and the bounds (ms)."""
    parts: list[pd.DataFrame] = []
    bounds = {CACHED: metrics.slowed_work_bound_ms(e, CACHED), EVICTED: metrics.evicted_bound_ms(e)}
    every = metrics.compared_medians(metrics.best_threads(e.runs), e.runs)
    for state, bound in bounds.items():
        best = every[every["state"] == state]
        wide = best.pivot_table(index="model", columns="setting", values="cold_ms")
        wide = wide.reindex([m for m in e.names if m in wide.index], columns=[s for s in (*STOCK, OWN) if s in wide.columns])
        fastest, ours = metrics.stock_cold(e.runs, state), metrics.own_cold(e.runs, state)
        least, stock = bound.reindex(wide.index), fastest["cold_ms"].reindex(wide.index)
        own = wide.get(OWN, pd.Series(np.nan, wide.index))
        spreads = {name: metrics.spread_of(e.runs, rows) for name, rows in (("best_stock", fastest), ("own", ours))}
        found = {
            "model": wide.index,
            "page_cache": state,
            **wide.add_suffix("_ms"),
            "bound_ms": least,
            "best_stock_over_own": stock / own,
            "best_stock_over_bound": stock / least,
            "own_over_bound": own / least,
            **{f"{name}_runs": spread.reindex(wide.index).fillna("") for name, spread in spreads.items()},
            "runs": best.groupby("model")["repeats"].min().reindex(wide.index),
        }
        if len(wide):
            parts.append(pd.DataFrame(found))
    if not parts:
        raise NotMeasuredError("no run counts")
    return pd.concat(parts, ignore_index=True)


def figure_11(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate cold latency under a background load on one core, with and without work stealing, over that without load.

    The runs under a load of 0 % are alike whichever core the load was to be on: they are one baseline.
    """
    runs = e.runs[(e.runs["reason"] == "") & (e.runs["load_core"] != "")]
    if runs.empty:
        raise NotMeasuredError(e.notes.get("load", "no run under a background load"))
    places = {"executing": "first core", "preparing": "second core" if e.threads == 2 else "last core"}
    runs = runs.assign(load_core=runs["load_core"].replace(places).where(runs["load_percent"] > 0, ""))
    keys, load = ["model", "setting", "plan"], ["load_core", "load_percent"]
    frame = runs.groupby([*keys, *load], as_index=False).agg(cold_ms=("cold_ms", "median"), runs=("cold_ms", "size"))
    idle = frame.loc[frame["load_percent"] == 0, [*keys, "cold_ms"]].rename(columns={"cold_ms": "idle_ms"})
    frame = frame.merge(idle, on=keys, how="left")
    stock = f"{paper.FIGURE11_STOCK} (ncnn)"
    told = f"up to {paper.FIGURE11_WITHOUT_STEALING} without stealing, {paper.FIGURE11_WITH_STEALING:g} with (2 little cores)"
    frame = frame.assign(
        setting=frame["setting"].map(title),
        slow_down=frame["cold_ms"] / frame["idle_ms"],
        paper_slow_down=np.where(frame["setting"].str.startswith(OWN), told, stock),
    )
    return frame[[*keys, *load, "cold_ms", "slow_down", "runs", "paper_slow_down"]]


def figure_13(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate the techniques added one after the other (ms)."""
    found: list[pd.DataFrame] = []
    for state in STATES:
        wide = e.runs[e.runs["threads"] == e.threads]
        parts = {f"{name}_ms": metrics.own_cold(wide, state, plan) for plan, name in _ABLATION.items()}
        stock = metrics.stock_cold(e.runs, state, "onnxruntime")
        times = pd.DataFrame({name: part["cold_ms"] for name, part in parts.items()}).reindex(list(e.names)).dropna(how="all")
        first = {"model": times.index, "page_cache": state, "onnxruntime_ms": stock["cold_ms"].reindex(times.index)}
        runs = metrics.fewest_runs(stock, *parts.values()).reindex(times.index)
        if len(times):
            found.append(pd.DataFrame({**first, **times, "runs": runs}))
    if not found:
        raise NotMeasuredError("no plan of the ablation was executed")
    printed: dict[str, Any] = {"model": "paper: resnet50, Jetson TX2", "page_cache": EVICTED}
    printed |= {f"{k}_ms": v for k, v in paper.FIGURE13_TX2_MS.items()}
    return pd.concat([*found, pd.DataFrame([printed])], ignore_index=True)


def _table_02(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate kernel alternatives of one convolution, 3x3, stride 1, 64 to 192 channels: what each stage takes (ms).

    Rows that differ in nothing but the home layout are one: equal steps share their samples.
    """
    rows = []
    for profile in e.profiled.get(TABLE2_CONV, ()):
        # the convolution is the step with most candidates: reshapes at the border have one
        layer = max(profile.layers, key=lambda layer: len(layer.candidates))
        by_kernel: dict[str, dict[str, Candidate]] = {}
        for c in layer.candidates:
            by_kernel.setdefault(c.implementation, {})[c.source] = c
        for kernel, sources in by_kernel.items():
            raw, read, mapped = (sources.get(s) for s in ("raw", "cached_read", "cached_mmap"))
            known = next(iter(sources.values()))
            most = max(known.execute_ms)
            # of one sample, which the profile repeats for several cores: two medians do not agree to the last of nine digits
            looked_at_once = len(known.execute_ms) > 1 and len(set(known.execute_ms.values())) == 1
            rows.append(
                {
                    "kernel": kernel,
                    "layout": profile.layout,
                    "read_raw_ms": raw.read_ms[BIG] if raw else np.nan,
                    "transform_ms": raw.transform_ms[BIG] if raw else np.nan,
                    "read_cache_ms": read.read_ms[BIG] if read else np.nan,
                    "map_cache_ms": mapped.read_ms[BIG] if mapped else np.nan,
                    "create_ms": known.create_ms[BIG],
                    "execute_1_core_ms": known.execute_ms[min(known.execute_ms)],
                    f"execute_{most}_cores_ms": np.nan if looked_at_once else known.execute_ms[most],
                    "raw_bytes": raw.read_bytes if raw else 0,
                    "cache_bytes": read.cache_bytes if read else 0,
                    "from": "here",
                }
            )
    if not rows:
        raise NotMeasuredError("the convolution was not profiled")
    frame = pd.DataFrame(rows)
    once = frame.groupby([c for c in frame if c != "layout"], sort=False, dropna=False)["layout"].agg(", ".join)
    printed = pd.DataFrame(paper.TABLE2).rename(columns={"execute_ms": "execute_1_core_ms"})
    printed["from"] = "paper: ncnn on a phone, all big cores"
    return pd.concat([once.reset_index()[list(frame)], printed], ignore_index=True)


def _table_04(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate each model with its size, FLOPs (two a multiply-add), what its plan stores beside it, and planning time."""
    f = e.models
    if f.empty:
        raise NotMeasuredError("no model was measured")
    plans = e.plans[(e.plans["plan"] == OPTIMAL) & (e.plans["threads"] == e.plans["threads"].max())]
    plans = plans.drop_duplicates("model", keep="last").set_index("model").reindex(f["model"]).set_axis(f.index)
    told = {name: [getattr(TABLE4[model], name) for model in f["model"]] for name in _PRINTED}
    return pd.DataFrame(
        {
            "model": f["model"],
            "parameters_m": f["parameters"] / 1e6,
            "paper_parameters_m": told["parameters_m"],
            "model_mb": f["model_bytes"] / _MB,
            "paper_model_mb": told["model_mb"],
            "flops_g": 2 * f["macs"] / 1e9,
            "paper_flops_g": told["flops_g"],
            "storage_mb": plans["cache_bytes"] / _MB,
            "paper_storage_mb": told["storage_mb"],
            "planning_ms": plans["planning_ms"],
            "paper_planning_meizu16t_ms": f["model"].map(paper.TABLE4_PLANNING_MEIZU_MS),
            "paper_planning_pixel5_ms": f["model"].map(paper.TABLE4_PLANNING_PIXEL5_MS),
        }
    )


#: Every table by id, in the order of the report.
COLD_TABLES: Mapping[str, TableSpec[ColdEvidence]] = registry(
    TableSpec("cold_beside", "Our start against the best stock setting of each model", beside),
    TableSpec("cold_table_01", "Stages of a cold start", _table_01),
    TableSpec("cold_table_02", "Kernel alternatives of one convolution", _table_02),
    TableSpec("cold_table_04", "Models, storage and planning", _table_04),
    TableSpec("cold_table_05", "Speed-up over stock engines", _table_05),
    TableSpec("cold_figure_08", "Cold latency of every model", figure_08),
    TableSpec("cold_figure_02", "Cold over warm", figure_02_summary),
    TableSpec("cold_figure_06", "Stages by the number of cores", figure_06),
    TableSpec("cold_figure_09", "Cold latency by the number of cores", figure_09),
    TableSpec("cold_figure_11", "Background load", figure_11),
    TableSpec("cold_figure_13", "Ablation", figure_13),
    TableSpec("cold_figure_14", "Continuous inference", figure_14),
)
