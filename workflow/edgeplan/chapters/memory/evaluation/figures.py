"""The figures of the chapter on memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.evaluation.evidence import DEFAULT, MemoryEvidence
from edgeplan.reporting import kit
from edgeplan.reporting.drawing import INK, MARKERS, PALETTE, canvas, legend, name_axes
from edgeplan.reporting.kit import NotMeasuredError

_COLUMNS = 3


def latency_by_budget(e: MemoryEvidence) -> Any:
    """Latency against peak memory, one panel a model, stock engines beside it."""
    models = list(dict.fromkeys(e.planned["model"]))
    if not models:
        raise NotMeasuredError("no plan ran")
    rows = -(-len(models) // _COLUMNS)
    figure, axes = canvas(10.0, 3.2 * rows, min(_COLUMNS, len(models)), rows)
    for axis, model in zip(axes, models, strict=False):
        own = e.planned[e.planned["model"] == model].sort_values("budget")
        axis.plot(own["peak"] / MIB, own["median_ms"], color=PALETTE[0], marker="o", label="edgeplan")
        axis.plot(own["budget"] / MIB, own["bound_ms"], color=INK, linestyle="--", label="bound")
        stock = e.stock[(e.stock["model"] == model) & e.stock["median_ms"].notna()]
        for place, (_, row) in enumerate(stock.iterrows(), start=1):
            style = {"color": PALETTE[place % len(PALETTE)], "marker": MARKERS[place % len(MARKERS)], "linestyle": ""}
            axis.plot([row["peak"] / MIB], [row["median_ms"]], label=row["setting"], **style)
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.xaxis.set_minor_formatter("{x:g}")
        axis.set_ylim(bottom=0)
        name_axes(axis, "peak over idle (MiB)", "inference (ms)", model)
    for axis in axes[len(models) :]:
        axis.set_visible(False)
    legend(axes[0])
    return figure


def peaks(e: MemoryEvidence) -> Any:
    """Least peak beside stock engines' (the paper's Figure 10)."""
    f = e.least
    figure, (axis,) = canvas(8.0, 3.6)
    places = range(len(f))
    axis.bar([p - 0.2 for p in places], f["stock_peak"] / MIB, width=0.4, color=PALETTE[1], label=DEFAULT)
    axis.bar([p + 0.2 for p in places], f["peak"] / MIB, width=0.4, color=PALETTE[0], label="edgeplan, least")
    axis.set_xticks(list(places), list(f["model"]))
    axis.set_yscale("log")
    name_axes(axis, "", "peak over idle (MiB)")
    legend(axis)
    return figure


#: Every figure by id.
MEMORY_FIGURES: Mapping[str, kit.FigureSpec[MemoryEvidence]] = kit.registry(
    kit.FigureSpec("memory_figure_10", "Least peak of each model", peaks, ("least",)),
    kit.FigureSpec("memory_curves", "Latency by peak memory", latency_by_budget, ("planned",)),
)
