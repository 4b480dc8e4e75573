"""Registers the cold-start chapter's tables. No table is left out: one that could not be measured says why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.cold_start import paper
from edgeplan.chapters.cold_start.evaluation import metrics, tables_stages
from edgeplan.chapters.cold_start.evaluation import tables_stages as stages
from edgeplan.chapters.cold_start.evaluation.evidence import ABLATION, CACHED, EVICTED, OPTIMAL, OWN, TABLE2_CONV, ColdEvidence
from edgeplan.chapters.cold_start.evaluation.tables_stages import STATES, title
from edgeplan.engines.registry import SETTINGS
from edgeplan.planning.profile import BIG, Candidate
from edgeplan.reporting.chapter_report import NotMeasuredError, TableSpec, registry
from edgeplan.zoo.cold_start_models import TABLE4

#: Stock settings in the order of the registry.
STOCK = tuple(name for name, found in SETTINGS.items() if found.stock)
#: Plan -> its name in Figure 13; "" is the pipelined one for the state of the page cache.
_ABLATION = {name: name for name in ABLATION} | {"": "K+C+P"}


def figure_02(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate cold and warm latency of every setting and model, each at its best thread count."""
    best = metrics.beside(metrics.best_threads(e.runs), e.runs)
    if best.empty:
        raise NotMeasuredError("no run counts")
    names = best["setting"].map(title)
    frame = best.assign(setting=names, cold_over_warm=best["cold_ms"] / best["warm_ms"], runs=best["repeats"])
    return frame[["model", "setting", "state", "threads", "cold_ms", "warm_ms", "cold_over_warm", "runs"]]


def figure_02_summary(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate cold over warm latency by setting: least, largest, geometric mean."""
    frame = figure_02(e)
    frame = frame[frame["state"] == EVICTED] if (frame["state"] == EVICTED).any() else frame
    low, high = paper.FIGURE2_COLD_OVER_WARM
    rows = [
        {
            "setting": setting,
            "models": len(part),
            "least": part["cold_over_warm"].min(),
            "largest": part["cold_over_warm"].max(),
            "geomean": metrics.geomean(part["cold_over_warm"]),
            "runs": part["runs"].min(),
            "paper": f"{low} to {high}" if setting != OWN else f"{paper.COLD_OVER_WARM} (mean)",
        }
        for setting, part in frame.groupby("setting", sort=False)
    ]
    return pd.DataFrame(rows)


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
        all_models, runs = metrics.over_models(ratio), metrics.fewest_runs(stock, own)
        mean = {
            "model": f"all {len(ratio)} models, mean",
            "speedup": all_models.value,
            "low": all_models.low,
            "high": all_models.high,
        }
        first = {**mean, "runs": runs[ratio.index].min(), "failed_starts": lost.sum()}
        rest = pd.DataFrame(
            {
                "model": ratio.index,
                "speedup": ratio.to_numpy(),
                "best_stock": stock["setting"][ratio.index].map(title).to_numpy(),
                "best_stock_ms": stock["cold_ms"][ratio.index].to_numpy(),
                "own_ms": own["cold_ms"][ratio.index].to_numpy(),
                "own_runs": metrics.spread_of(e.runs, own)[ratio.index].to_numpy(),
                "runs": runs[ratio.index].to_numpy(),
                "failed_starts": lost.reindex(ratio.index, fill_value=0).to_numpy(),
            }
        )
        parts.append(pd.concat([pd.DataFrame([first]), rest], ignore_index=True).assign(page_cache=state))
    if not parts:
        raise NotMeasuredError("no model was run both by a stock engine and by the runtime")
    columns = ("page_cache", "model", "speedup", "low", "high", "best_stock", "best_stock_ms", "own_ms", "own_runs", "runs")
    found = pd.concat(parts, ignore_index=True)[[*columns, "failed_starts"]]
    return found.fillna({"best_stock": "", "own_runs": ""})


def table_05(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate the speed-up over every stock setting: least, largest, geometric mean over the models it runs."""
    rows = []
    names = [s for s in STOCK if s in set(e.runs["setting"])]
    for state in STATES:
        own = metrics.own_cold(e.runs, state)
        for setting in [*names, ""]:
            stock = metrics.stock_cold(e.runs, state, setting)
            ratio = (stock["cold_ms"] / own["cold_ms"]).dropna()
            runs = metrics.fewest_runs(stock, own).reindex(ratio.index)
            rows.append(
                {
                    "baseline": title(setting) if setting else "best stock setting of each model",
                    "page_cache": state,
                    "models": len(ratio),
                    "least": ratio.min() if len(ratio) else np.nan,
                    "largest": ratio.max() if len(ratio) else np.nan,
                    "geomean": metrics.geomean(ratio),
                    "runs": runs.min() if len(ratio) else np.nan,
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
    told = {device: row[name] for device, row in paper.TABLE5.items()}
    return "; ".join(f"{device} {s.least} to {s.largest} ({s.mean})" for device, s in told.items())


def _reasons(e: ColdEvidence, setting: str) -> str:
    """Tell why a setting has no figure for some models, one reason each."""
    if not setting:
        return ""
    mine = e.runs[e.runs["setting"] == setting]
    counted = set(mine.loc[mine["reason"] == "", "model"])
    failed = mine[(mine["reason"] != "") & ~mine["model"].isin(counted)].drop_duplicates("model")
    grouped: dict[str, list[str]] = {}
    for model, reason in zip(failed["model"], failed["reason"], strict=True):
        grouped.setdefault(reason, []).append(model)
    return "; ".join(f"{', '.join(models)}: {reason}" for reason, models in grouped.items())


def figure_08(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate the cold latency of every model and setting beside ours and the bounds (ms)."""
    rows = []
    evicted = metrics.evicted_bound_ms(e)
    for state in STATES:
        best = metrics.beside(metrics.best_threads(e.runs), e.runs)
        best = best[best["state"] == state]
        wide = best.pivot_table(index="model", columns="setting", values="cold_ms")
        fewest = best.groupby("model")["repeats"].min()
        fastest, ours = metrics.stock_cold(e.runs, state), metrics.own_cold(e.runs, state)
        spreads = {name: metrics.spread_of(e.runs, rows_of) for name, rows_of in (("best_stock", fastest), ("own", ours))}
        bound = metrics.work_bound_ms(e, CACHED) if state == CACHED else evicted
        for model in [m for m in e.names if m in wide.index]:
            stock = fastest["cold_ms"].get(model, np.nan)
            own = wide.loc[model].get(OWN, np.nan)
            times = {f"{name}_ms": wide.loc[model, name] for name in (*STOCK, OWN) if name in wide.columns}
            rows.append(
                {"model": model, "page_cache": state}
                | times
                | {
                    "bound_ms": bound.get(model, np.nan),
                    "best_stock_over_own": stock / own,
                    "best_stock_over_bound": stock / bound.get(model, np.nan),
                    "own_over_bound": own / bound.get(model, np.nan),
                    **{f"{name}_runs": spread.get(model, "") for name, spread in spreads.items()},
                    "runs": fewest[model],
                }
            )
    if not rows:
        raise NotMeasuredError("no run counts")
    return pd.DataFrame(rows)


def figure_11(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate cold latency under a background load on one core, with and without work stealing, over that without load.

    The runs under a load of 0 % are alike whichever core the load was to be on: they are one baseline.
    """
    runs = e.runs[(e.runs["reason"] == "") & (e.runs["load_core"] != "")]
    if runs.empty:
        raise NotMeasuredError(e.notes.get("load", "no run under a background load"))
    places = {"executing": "first core", "preparing": "second core" if e.threads == 2 else "last core"}
    runs = runs.assign(load_core=runs["load_core"].replace(places).where(runs["load_percent"] > 0, ""))
    keys = ["model", "setting", "plan"]
    frame = runs.groupby([*keys, "load_core", "load_percent"], as_index=False).agg(
        cold_ms=("cold_ms", "median"), runs=("cold_ms", "size")
    )
    idle = frame.loc[frame["load_percent"] == 0, [*keys, "cold_ms"]].rename(columns={"cold_ms": "idle_ms"})
    frame = frame.merge(idle, on=keys, how="left")
    own = frame["setting"].str.startswith(OWN)
    stock = f"{paper.FIGURE11_STOCK} (ncnn)"
    told = f"up to {paper.FIGURE11_WITHOUT_STEALING} without stealing, {paper.FIGURE11_WITH_STEALING:g} with (2 little cores)"
    return pd.DataFrame(
        {
            **{key: frame[key] for key in ("model", "plan", "load_core", "load_percent", "cold_ms")},
            "setting": frame["setting"].map(title),
            "slow_down": frame["cold_ms"] / frame["idle_ms"],
            "runs": frame["runs"],
            "paper_slow_down": np.where(own, told, stock),
        }
    )[["model", "setting", "plan", "load_core", "load_percent", "cold_ms", "slow_down", "runs", "paper_slow_down"]]


def figure_13(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate the techniques added one after the other (ms)."""
    rows = []
    for state in STATES:
        wide = e.runs[e.runs["threads"] == e.threads]
        parts = {f"{name}_ms": metrics.own_cold(wide, state, plan) for plan, name in _ABLATION.items()}
        stock = metrics.stock_cold(e.runs, state, "onnxruntime")
        fewest = metrics.fewest_runs(stock, *parts.values())
        for model in e.names:
            times = {name: part["cold_ms"].get(model, np.nan) for name, part in parts.items()}
            if not all(np.isnan(list(times.values()))):
                first = {"model": model, "page_cache": state, "onnxruntime_ms": stock["cold_ms"].get(model, np.nan)}
                rows.append(first | times | {"runs": fewest[model]})
    if not rows:
        raise NotMeasuredError("no plan of the ablation was executed")
    rows.append(
        {"model": "paper: resnet50, Jetson TX2", "page_cache": EVICTED}
        | {f"{k}_ms": v for k, v in paper.FIGURE13_TX2_MS.items()}
    )
    return pd.DataFrame(rows)


_MB = 1e6


def table_02(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate kernel alternatives of one convolution, 3x3, stride 1, 64 to 192 channels: what each stage takes (ms).

    Rows that differ in nothing but the home layout are one: equal steps share their samples.
    """
    profiles = e.profiled.get(TABLE2_CONV, ())
    rows = []
    for profile in profiles:
        # the convolution is the step with most candidates: reshapes at the border have one
        layer = max(profile.layers, key=lambda layer: len(layer.candidates))
        by_kernel: dict[str, dict[str, Candidate]] = {}
        for c in layer.candidates:
            by_kernel.setdefault(c.implementation, {})[c.source] = c
        for kernel, sources in by_kernel.items():
            raw, read, mapped = (sources.get(s) for s in ("raw", "cached_read", "cached_mmap"))
            known = next(iter(sources.values()))
            most = max(known.execute_ms)
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
                    f"execute_{most}_cores_ms": np.nan if quick_look_only(known) else known.execute_ms[most],
                    "raw_bytes": raw.read_bytes if raw else 0,
                    "cache_bytes": read.cache_bytes if read else 0,
                    "from": "here",
                }
            )
    if not rows:
        raise NotMeasuredError("the convolution was not profiled")
    rows = _once(rows)
    rows += [
        {
            "kernel": k.kernel,
            "read_raw_ms": k.read_raw_ms,
            "transform_ms": k.transform_ms,
            "read_cache_ms": k.read_cache_ms,
            "execute_1_core_ms": k.execute_ms,
            "from": "paper: ncnn on a phone, all big cores",
        }
        for k in paper.TABLE2
    ]
    return pd.DataFrame(rows)


def quick_look_only(candidate: Candidate) -> bool:
    """Tell whether a candidate has one sample, and none on several cores, where the profile repeats that of one.

    Two medians of samples of their own, nine digits each, do not agree to the last one.
    """
    times = list(candidate.execute_ms.values())
    return len(times) > 1 and len(set(times)) == 1


def _once(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge rows that differ in their layout only into one, which names them all."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        key = repr({name: value for name, value in row.items() if name != "layout"})
        layouts = f"{found[key]['layout']}, {row['layout']}" if key in found else row["layout"]
        found[key] = row | {"layout": layouts}
    return list(found.values())


def table_04(e: ColdEvidence) -> pd.DataFrame:
    """Tabulate each model with its size, FLOPs (two a multiply-add), what its plan stores beside it, and planning time."""
    widest = e.plans[(e.plans["plan"] == OPTIMAL) & (e.plans["threads"] == e.plans["threads"].max())]
    plans: dict[str, Any] = {plan["model"]: plan for plan in widest.to_dict("records")}
    rows = []
    for row in e.models.to_dict("records"):
        model = str(row["model"])
        told, plan = TABLE4[model], plans.get(model)
        rows.append(
            {
                "model": model,
                "parameters_m": row["parameters"] / 1e6,
                "paper_parameters_m": told.parameters_m,
                "model_mb": row["model_bytes"] / _MB,
                "paper_model_mb": told.model_mb,
                "flops_g": 2 * row["macs"] / 1e9,
                "paper_flops_g": told.flops_g,
                "storage_mb": plan["cache_bytes"] / _MB if plan else np.nan,
                "paper_storage_mb": told.storage_mb,
                "planning_ms": plan["planning_ms"] if plan else np.nan,
                "paper_planning_meizu16t_ms": paper.TABLE4_PLANNING_MEIZU_MS[model],
                "paper_planning_pixel5_ms": paper.TABLE4_PLANNING_PIXEL5_MS[model],
            }
        )
    if not rows:
        raise NotMeasuredError("no model was measured")
    return pd.DataFrame(rows)


#: Every table by id, in the order of the report.
COLD_TABLES: Mapping[str, TableSpec[ColdEvidence]] = registry(
    TableSpec("cold_beside", "Our start against the best stock setting of each model", beside),
    TableSpec("cold_table_01", "Stages of a cold start", stages.table_01),
    TableSpec("cold_table_02", "Kernel alternatives of one convolution", table_02),
    TableSpec("cold_table_04", "Models, storage and planning", table_04),
    TableSpec("cold_table_05", "Speed-up over stock engines", table_05),
    TableSpec("cold_figure_08", "Cold latency of every model", figure_08),
    TableSpec("cold_figure_02", "Cold over warm", figure_02_summary),
    TableSpec("cold_figure_06", "Stages by the number of cores", stages.figure_06),
    TableSpec("cold_figure_09", "Cold latency by the number of cores", stages.figure_09),
    TableSpec("cold_figure_11", "Background load", figure_11),
    TableSpec("cold_figure_13", "Ablation", figure_13),
    TableSpec("cold_figure_14", "Continuous inference", tables_stages.figure_14),
)
