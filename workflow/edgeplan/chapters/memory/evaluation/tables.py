"""The tables and figures of the chapter on memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.memory import paper
from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.evaluation.evidence import DEFAULT, OWN, MemoryEvidence
from edgeplan.reporting.chapter_report import FigureSpec, NotMeasuredError, TableSpec, registry
from edgeplan.reporting.drawing import INK, MARKERS, PALETTE, canvas, grouped_bars, legend, log_scale, name_axes
from edgeplan.reporting.metrics import estimate, geomean

_COLUMNS = 3
_OFFLINE = ("weights_mb", "cutting_ms", "profiling_ms", "planning_ms")


def _mib(f: pd.DataFrame, *same: str, **named: str) -> dict[str, pd.Series[float]]:
    """Columns in MiB by the stems of their names, from columns in bytes."""
    return {f"{name}_mib": (f[source] / MIB).round(2) for name, source in (*zip(same, same, strict=True), *named.items())}


def _ms(f: pd.DataFrame, digits: int, *same: str, **named: str) -> dict[str, pd.Series[float]]:
    """Times by the stems of their names."""
    sources = (*((name, f"{name}_ms") for name in same), *named.items())
    return {f"{name}_ms": f[source].round(digits) for name, source in sources}


def _least(e: MemoryEvidence) -> pd.DataFrame:
    f = e.least
    return pd.DataFrame(
        {
            "model": f["model"],
            **_mib(f, "peak", "anonymous", "file", stock="stock_peak", frugal="frugal_peak"),
            "reduction": (1 - f["peak"] / f["stock_peak"]).round(4),
            "paper_reduction": f["model"].map(paper.REDUCTION),
            "slower": (f["median_ms"] / f["resident_ms"] - 1).round(4),
            **f[["bands", "parts"]].astype("Int64"),
            "reason": _told(f),
        }
    )


def _beside(e: MemoryEvidence) -> pd.DataFrame:
    """Our plans beside stock engines that take what they want, and both held to as much; the mean over models first."""
    least, ways = e.least, [_ways(e, model) for model in e.stock["model"].drop_duplicates()]
    ratios = {
        "time over onnxruntime": least["median_ms"] / least["stock_ms"],
        "time over the fastest": least["median_ms"] / least["best_stock_ms"],
        "peak over onnxruntime": least["peak"] / least["stock_peak"],
    }
    means = {name: round(estimate(geomean, ratio.dropna()).value, 3) for name, ratio in ratios.items()}
    first = {"model": "all models, mean", "way": f"{OWN}, least", **means}
    found = pd.concat([pd.DataFrame([first]), *ways], ignore_index=True)
    return found.fillna({"reason": ""}).astype(dict.fromkeys(("major_faults", "failures"), "Int64"))


def _ways(e: MemoryEvidence, model: str) -> pd.DataFrame:
    """Collect every way that a model ran: our plans from the least on, stock engines, and both held to the same limit."""
    of = [rows[rows["model"] == model] for rows in (e.least, e.budgets, e.halved, e.stock, e.held)]
    least, budgets, halved, stock, held = of
    shares, halved_shares = ((100 * rows["share"]).map("{:g} %".format).astype(str) for rows in (budgets, halved))
    named = [
        least.assign(way=f"{OWN}, least"),
        budgets.assign(way=f"{OWN}, " + shares)[budgets["median_ms"].notna()],
        halved.assign(way=f"{OWN}, " + halved_shares + ", weights as " + halved["setting"]),
        stock.assign(way=stock["setting"]),
        held.assign(way=held["setting"] + ", held by the system"),
    ]
    f = pd.concat(named, ignore_index=True)
    free = stock.set_index("setting")
    default = free.reindex([DEFAULT]).iloc[0]
    return pd.DataFrame(
        {
            **f[["model", "way"]],
            **_mib(f, limit="budget", peak="peak", anonymous="anonymous", file="file", idle="idle"),
            **_ms(f, 2, "median", "cpu"),
            "time over onnxruntime": (f["median_ms"] / default["median_ms"]).round(3),
            "time over the fastest": (f["median_ms"] / free["median_ms"].min()).round(3),
            "peak over onnxruntime": (f["peak"] / default["peak"]).round(4),
            **f[["major_faults", "failures"]],
            "reason": _told(f),
        }
    )


def _told(f: pd.DataFrame) -> pd.Series[str]:
    """Why a row has no times; or, where it has some, what became of the plan when the system held it to its budget."""
    reason = f["reason"].str.rstrip(":")
    return reason.where((reason == "") | f["median_ms"].isna(), "held to it: " + reason)


def _overhead(e: MemoryEvidence) -> pd.DataFrame:
    """The least peak over all weights in memory and over engines, on a slower processor and beside a busy core."""
    kinds = ((e.slowed, e.phonelike, "slowed"), (e.busy, e.turns[e.turns["setting"] == "busy"], "a busy core beside it"))
    found = [_costs(rows[rows["reason"] == ""], turns, told) for rows, turns, told in kinds]
    return pd.concat(found, ignore_index=True)


def _costs(f: pd.DataFrame, turns: pd.DataFrame, told: str) -> pd.DataFrame:
    own = f["setting"].isin([OWN, "overhead"])
    over = estimate(np.median, turns["median_ms"] / turns["resident_ms"] - 1)
    return pd.DataFrame(
        {
            "model": f["model"],
            "how": told,
            "over": f["setting"].where(~own, "our own program, all weights in memory"),
            "overhead": pd.Series(over.value, f.index).where(own).fillna(f["median_ms"]).round(4),
            **{end: pd.Series(getattr(over, end), f.index).where(own).round(4) for end in ("low", "high")},
            "stalls": f["wait_ms"].round(4),
            "ratio": f["ratio"].round(2),
            "slowed": f["factor"].fillna(f["predicted_ms"]).round(2),
            "turns": f["pairs"].astype("Int64"),
            **_mib(f, "peak"),
            "paper_overhead": f["model"].map(paper.OVERHEAD).where(~own),
        }
    )


def _frugal(e: MemoryEvidence) -> pd.DataFrame:
    """Show what people would pick for little memory, beside our plans: free, and held to limits; a line a read-ahead."""
    f = e.frugal.assign(reason=e.frugal["reason"].fillna(""))
    free = f[f["budget"].isna()]
    limits = sorted(f["budget"].dropna().unique(), reverse=True)
    peaks, lines = ("peak", "anonymous", "file"), []
    for (model, setting, kilobytes), rows in f.groupby(["model", "setting", "read_ahead"], sort=False, dropna=False):
        own = free[(free["model"] == model) & (free["setting"] == setting)].iloc[0]
        line = {"model": model, "setting": setting, "read_ahead_kib": kilobytes}
        line |= {f"{name}_mib": own[name] / MIB for name in peaks} | {"free": _time_or_reason(own)}
        for limit in limits:
            held = rows[rows["budget"] == limit]
            line[f"idle + {limit / MIB:g} MiB"] = _time_or_reason(held.iloc[0]) if len(held) else ""
        lines.append(line)
    return pd.DataFrame(lines).round({f"{name}_mib": 1 for name in peaks}).astype({"read_ahead_kib": "Int64"})


def _time_or_reason(row: pd.Series[Any]) -> str:
    """The time of a run with its major faults; or why there is none."""
    if not row["median_ms"] > 0:
        return str(row["reason"]).partition(":")[0] if row["reason"].startswith("killed") else str(row["reason"])
    faults = f", {row['major_faults']:.0f} faults" if row["major_faults"] > 0 else ""
    return f"{row['median_ms']:.4g} ms{faults}"


def _same_memory(e: MemoryEvidence) -> pd.DataFrame:
    """Our plan in as much memory as others take, and the least that it runs in."""
    f = e.same.assign(least=e.same["model"].map(e.least.set_index("model")["peak"]))
    theirs = [paper.SAVED.get(key, (math.nan, math.nan)) for key in zip(f["model"], f["setting"], strict=True)]
    return pd.DataFrame(
        {
            "model": f["model"],
            "beside": f["setting"],
            **_mib(f, memory="budget"),
            **_ms(f, 2, their="full_ms", our="median_ms"),
            "time_saved": (1 - f["median_ms"] / f["full_ms"]).round(4),
            "paper_time_saved": [time for _, time in theirs],
            **_mib(f, our_least="least"),
            "memory_saved": (1 - f["least"] / f["budget"]).round(4),
            "paper_memory_saved": [memory for memory, _ in theirs],
            "reason": f["reason"],
        }
    )


def _kernels(e: MemoryEvidence) -> pd.DataFrame:
    f = e.kernels.sort_values(["model", "compute_ms"])
    fastest, least = (f.groupby("model")[name].transform("min") for name in ("compute_ms", "needed"))
    return pd.DataFrame(
        {
            "model": f["model"],
            "kernel": f["setting"],
            "ms": f["compute_ms"].round(3),
            **_mib(f, memory="needed", weights="weights"),
            "time over the fastest": (f["compute_ms"] / fastest).round(2),
            "memory over the least": (f["needed"] / least).round(2),
        }
    )


def _slices(e: MemoryEvidence) -> pd.DataFrame:
    f = e.slices
    return pd.DataFrame(
        {
            "model": f["model"],
            "cut": f["setting"],
            **_mib(f, least="needed", memory="peak"),
            **_ms(f, 3, "compute", "load", loaded_ahead="median_ms", when_needed="full_ms"),
            **_mib(f, "read"),
            "reason": f["reason"],
        }
    )


def _processor_time(e: MemoryEvidence) -> pd.DataFrame:
    """Processor time and bytes of an inference at the least memory beside those at the largest budget."""
    f = e.processor_time
    return pd.DataFrame(
        {
            "model": f.index,
            **_ms(f, 2, least_cpu="cpu_ms", most_cpu="cpu_ms_most"),
            "most_share": f["share"],
            "gained": (f["ratio"] - 1).round(4),
            "paper_energy_gained": f.index.map(paper.ENERGY),
            **_mib(f, least_read="read", most_read="read_most"),
        }
    )


def _offline(e: MemoryEvidence) -> pd.DataFrame:
    f = e.offline
    theirs = pd.DataFrame([paper.OFFLINE.get(name, (math.nan,) * len(_OFFLINE)) for name in f["model"]], f.index, _OFFLINE)
    return pd.DataFrame(
        {
            "model": f["model"],
            **{f"{name}_mb": (f[name.removesuffix("_mb")] / 1e6).round(1) for name in ("budget", "weights")},
            **{f"{name}_ms": (1e3 * f[f"{name}_s"]).round(1) for name in ("cutting", "profiling")},
            **_ms(f, 2, planning="replan_ms"),
            **theirs.add_prefix("paper_"),
            "reason": f["reason"],
        }
    )


#: Every table by id.
MEMORY_TABLES: Mapping[str, TableSpec[MemoryEvidence]] = registry(
    TableSpec("memory_frugal", "What people would pick for little memory, free and held to it", _frugal, ("frugal",)),
    TableSpec("memory_beside", "Peak and latency beside stock engines", _beside, ("stock",)),
    TableSpec("memory_least", "Least peak that runs", _least, ("least",)),
    TableSpec("memory_same", "Time in as much memory as others take (Figure 10)", _same_memory, ("same",)),
    TableSpec("memory_overhead", "Overhead on a slower processor, and beside a busy core", _overhead, ("slowed",)),
    TableSpec("memory_kernels", "Kernels of one convolution (Figure 2)", _kernels, ("kernels",)),
    TableSpec("memory_slices", "Cuts of one layer (Figure 11)", _slices, ("slices",)),
    TableSpec("memory_processor_time", "Processor time at little memory (Figure 12)", _processor_time, ("processor_time",)),
    TableSpec("memory_offline", "Storage and time of planning (Table 2)", _offline, ("offline",)),
)


def _draw_peaks(e: MemoryEvidence) -> Any:
    """Least peak beside those of stock engines and of whole layers on demand (the paper's Figure 10)."""
    f = e.least
    stock = e.stock.pivot_table("peak", "model", "setting")
    bars = {name: f["model"].map(stock[name]) / MIB for name in (DEFAULT, "ncnn", "ncnn-direct") if name in stock}
    demand = e.same[e.same["setting"] == "on demand"].set_index("model")["budget"]
    bars |= {"whole layers on demand": f["model"].map(demand) / MIB} if len(demand) else {}
    figure, axis = _by_name(
        {**bars, "edgeplan, least": f["peak"] / MIB}, list(f["model"]), (*PALETTE[1 : 1 + len(bars)], PALETTE[0])
    )
    axis.set_yscale("log")
    name_axes(axis, "", "peak over idle (MiB)")
    return figure


def _draw_ablations(e: MemoryEvidence) -> Any:
    """Latency without static memory, without loading ahead, without both (the paper's Figure 13)."""
    table = e.ablated.pivot_table("median_ms", "model", "setting")
    table = table.reindex(index=e.ablated["model"].drop_duplicates(), columns=e.ablated["setting"].drop_duplicates())
    figure, axis = _by_name(dict(table.div(table[OWN], axis=0)), list(table.index), PALETTE)
    name_axes(axis, "", "latency over the plan's")
    return figure


def _by_name(bars: Mapping[str, Any], models: list[str], colours: tuple[str, ...]) -> tuple[Any, Any]:
    figure, (axis,) = canvas(8.0, 3.6)
    grouped_bars(axis, bars, colours)
    axis.set_xticks(list(range(len(models))), models)
    legend(axis)
    return figure, axis


def _draw_layers(e: MemoryEvidence) -> Any:
    """Weights and live activations of each layer, no step cut (the paper's Figure 1)."""

    def drawn(axis: Any, f: pd.DataFrame) -> None:
        activations, weights = f["activations"] / MIB, f["weights"] / MIB
        axis.bar(f["place"], activations, width=1.0, color=PALETTE[4], label="activations")
        axis.bar(f["place"], weights, width=1.0, bottom=activations, color=PALETTE[0], label="weights")

    return _by_model(e.layers, drawn, "layer", "memory (MiB)")


def _draw_kernels(e: MemoryEvidence) -> Any:
    """Memory and time of each kernel of one convolution (the paper's Figure 2)."""

    def drawn(axis: Any, f: pd.DataFrame) -> None:
        families = f["setting"].str.extract(r"(gemm|brgconv|jit)")[0].fillna("other")
        for place, (family, rows) in enumerate(f.groupby(families)):
            style = {"color": PALETTE[place % len(PALETTE)], "marker": MARKERS[place % len(MARKERS)], "linestyle": ""}
            axis.plot(rows["needed"] / MIB, rows["compute_ms"], label=family, **style)
        log_scale(axis)

    return _by_model(e.kernels, drawn, "weights, activations and scratch (MiB)", "convolution (ms)")


def _draw_slices(e: MemoryEvidence) -> Any:
    """Memory and times of each cut of one layer, weights loaded ahead and when needed (the paper's Figure 11)."""

    def drawn(axis: Any, f: pd.DataFrame) -> None:
        for place, (in_bands, rows) in enumerate(f.groupby(f["place"] > 0)):
            rows = rows.sort_values("needed")  # noqa: PLW2901
            name = "inputs in bands" if in_bands else "weights in parts"
            style = {"color": PALETTE[place], "marker": MARKERS[place]}
            for when, column, line in (("loaded ahead", "median_ms", "-"), ("loaded when needed", "full_ms", ":")):
                axis.plot(rows["needed"] / MIB, rows[column], linestyle=line, label=f"{name}, {when}", **style)
        axis.set_ylim(bottom=0)

    return _by_model(e.slices, drawn, "least memory beside kernels (MiB)", "inference (ms)")


def _by_model(rows: pd.DataFrame, draw: Callable[[Any, pd.DataFrame], None], x: str, y: str) -> Any:
    models = list(dict.fromkeys(rows["model"]))
    if not models:
        raise NotMeasuredError("no model was measured")
    columns = min(_COLUMNS, len(models))
    lines = -(-len(models) // columns)
    figure, axes = canvas(10.0, 3.0 * lines, columns, lines)
    for axis, model in zip(axes, models, strict=False):
        draw(axis, rows[rows["model"] == model])
        name_axes(axis, x, y, model)
    for axis in axes[len(models) :]:
        axis.set_visible(False)
    legend(axes[0])
    return figure


def _draw_processor_times(e: MemoryEvidence) -> Any:
    """Processor time at the least memory over that at the largest budget, beside the paper's energy (its Figure 12)."""
    f = e.processor_time
    figure, (axis,) = canvas(8.0, 3.2)
    axis.bar(range(len(f)), 100 * (f["ratio"] - 1), width=0.5, color=PALETTE[0], label="processor time, here")
    theirs = 100 * pd.Series(f.index.map(paper.ENERGY), dtype="float64")
    style = {"color": INK, "marker": "_", "markersize": 24, "linestyle": ""}
    axis.plot(range(len(f)), theirs, label="energy, the paper", **style)
    axis.set_xticks(list(range(len(f))), list(f.index))
    name_axes(axis, "", "gained at the least memory (%)")
    legend(axis)
    return figure


def _draw_adaption(e: MemoryEvidence) -> Any:
    """Latency and memory of a session that goes through budgets (the paper's Figure 14)."""
    f = e.adapted
    figure, (upper, lower) = canvas(8.0, 5.0, 1, 2)
    upper.plot(f["place"], f["median_ms"], color=PALETTE[0])
    name_axes(upper, "", "inference (ms)", str(f["model"].iloc[0]))
    lower.step(f["place"], f["budget"] / MIB, where="post", color=INK, linestyle="--", label="budget")
    lower.step(f["place"], f["peak"] / MIB, where="post", color=PALETTE[1], label="memory over idle")
    name_axes(lower, "inference", "MiB")
    legend(lower)
    for axis in (upper, lower):
        axis.set_ylim(bottom=0)
    return figure


#: Every figure by id.
MEMORY_FIGURES: Mapping[str, FigureSpec[MemoryEvidence]] = registry(
    FigureSpec("memory_figure_10", "Least peak of each model", _draw_peaks, ("least",)),
    FigureSpec("memory_figure_1", "Memory of each layer", _draw_layers, ("layers",)),
    FigureSpec("memory_figure_2", "Kernels of one convolution", _draw_kernels, ("kernels",)),
    FigureSpec("memory_figure_11", "Cuts of one layer", _draw_slices, ("slices",)),
    FigureSpec("memory_figure_12", "Processor time at little memory", _draw_processor_times, ("processor_time",)),
    FigureSpec("memory_figure_13", "Without static memory, without loading ahead", _draw_ablations, ("ablated",)),
    FigureSpec("memory_figure_14", "A session that goes through budgets", _draw_adaption, ("adapted",)),
)
