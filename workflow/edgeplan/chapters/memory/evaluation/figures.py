"""The figures of the chapter on memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from edgeplan.chapters.memory import paper
from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.evaluation.evidence import DEFAULT, OWN, MemoryEvidence
from edgeplan.reporting import kit
from edgeplan.reporting.drawing import INK, MARKERS, PALETTE, canvas, legend, log_scale, name_axes
from edgeplan.reporting.kit import NotMeasuredError

_COLUMNS = 3


def peaks(e: MemoryEvidence) -> Any:
    """Least peak beside those of stock engines and of whole layers on demand (the paper's Figure 10)."""
    f = e.least
    stock = e.stock.pivot_table("peak", "model", "setting")
    bars = {name: f["model"].map(stock[name]) for name in (DEFAULT, "ncnn", "ncnn-direct") if name in stock}
    demand = e.same[e.same["setting"] == "on demand"].set_index("model")["budget"]
    bars |= {"whole layers on demand": f["model"].map(demand)} if len(demand) else {}
    bars |= {"edgeplan, least": f["peak"]}
    figure, (axis,) = canvas(8.0, 3.6)
    width = 0.8 / len(bars)
    for place, (name, peaks_of) in enumerate(bars.items()):
        at = [p - 0.4 + width * (place + 0.5) for p in range(len(f))]
        color = PALETTE[0] if name.startswith("edgeplan") else PALETTE[1 + place]
        axis.bar(at, peaks_of / MIB, width=width, color=color, label=name)
    axis.set_xticks(list(range(len(f))), list(f["model"]))
    axis.set_yscale("log")
    name_axes(axis, "", "peak over idle (MiB)")
    legend(axis)
    return figure


def layer_memory(e: MemoryEvidence) -> Any:
    """Weights and live activations of each layer, no step cut (the paper's Figure 1)."""

    def drawn(axis: Any, f: pd.DataFrame) -> None:
        activations, weights = f["activations"] / MIB, f["weights"] / MIB
        axis.bar(f["place"], activations, width=1.0, color=PALETTE[4], label="activations")
        axis.bar(f["place"], weights, width=1.0, bottom=activations, color=PALETTE[0], label="weights")

    return _by_model(e.layers, drawn, "layer", "memory (MiB)")


def kernels(e: MemoryEvidence) -> Any:
    """Memory and time of each kernel of one convolution (the paper's Figure 2)."""

    def drawn(axis: Any, f: pd.DataFrame) -> None:
        families = f["setting"].str.extract(r"(gemm|brgconv|jit)")[0].fillna("other")
        for place, (family, rows) in enumerate(f.groupby(families)):
            style = {"color": PALETTE[place % len(PALETTE)], "marker": MARKERS[place % len(MARKERS)], "linestyle": ""}
            axis.plot(rows["needed"] / MIB, rows["compute_ms"], label=family, **style)
        log_scale(axis)

    return _by_model(e.kernels, drawn, "weights, activations and scratch (MiB)", "convolution (ms)")


def slice_costs(e: MemoryEvidence) -> Any:
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


def processor_times(e: MemoryEvidence) -> Any:
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


def ablations(e: MemoryEvidence) -> Any:
    """Latency without static memory, without loading ahead, without both (the paper's Figure 13)."""
    table = e.ablated.pivot_table("median_ms", "model", "setting")
    table = table.reindex(index=e.ablated["model"].drop_duplicates(), columns=e.ablated["setting"].drop_duplicates())
    table = table.div(table[OWN], axis=0)
    figure, (axis,) = canvas(8.0, 3.6)
    width = 0.8 / len(table.columns)
    for place, setting in enumerate(table.columns):
        at = [p - 0.4 + width * (place + 0.5) for p in range(len(table))]
        axis.bar(at, table[setting], width=width, color=PALETTE[place], label=setting)
    axis.set_xticks(list(range(len(table))), list(table.index))
    name_axes(axis, "", "latency over the plan's")
    legend(axis)
    return figure


def adaption(e: MemoryEvidence) -> Any:
    """Latency and memory of a session that goes through budgets (the paper's Figure 14)."""
    f = e.adapted
    if f.empty:
        raise NotMeasuredError("no session went through budgets")
    figure, (upper, lower) = canvas(8.0, 5.0, 1, 2)
    upper.plot(f["place"], f["median_ms"], color=PALETTE[0])
    upper.set_ylim(bottom=0)
    name_axes(upper, "", "inference (ms)", str(f["model"].iloc[0]))
    lower.step(f["place"], f["budget"] / MIB, where="post", color=INK, linestyle="--", label="budget")
    lower.step(f["place"], f["peak"] / MIB, where="post", color=PALETTE[1], label="memory over idle")
    lower.set_ylim(bottom=0)
    name_axes(lower, "inference", "MiB")
    legend(lower)
    return figure


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


#: Every figure by id.
MEMORY_FIGURES: Mapping[str, kit.FigureSpec[MemoryEvidence]] = kit.registry(
    kit.FigureSpec("memory_figure_10", "Least peak of each model", peaks, ("least",)),
    kit.FigureSpec("memory_figure_1", "Memory of each layer", layer_memory, ("layers",)),
    kit.FigureSpec("memory_figure_2", "Kernels of one convolution", kernels, ("kernels",)),
    kit.FigureSpec("memory_figure_11", "Cuts of one layer", slice_costs, ("slices",)),
    kit.FigureSpec("memory_figure_12", "Processor time at little memory", processor_times, ("processor_time",)),
    kit.FigureSpec("memory_figure_13", "Without static memory, without loading ahead", ablations, ("ablated",)),
    kit.FigureSpec("memory_figure_14", "A session that goes through budgets", adaption, ("adapted",)),
)
