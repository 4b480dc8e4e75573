"""The figures of EOP, after the paper's 4, 7, 8 and 9."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeplan.chapters.partition.eop.evidence import EopEvidence, fitted
from edgeplan.chapters.partition.eop.ways import CPU_WAY, EOP, EQUAL, FIXED, GPU_WAY, OURS
from edgeplan.reporting import kit
from edgeplan.reporting.drawing import INK, PALETTE, canvas, legend, log_scale, name_axes
from edgeplan.reporting.kit import NotMeasuredError

_MS = 1e3
#: Operators and dimensions that are drawn, in the order of the paper's figure 4.
_DRAWN = (("conv2d", "batch"), ("conv2d", "HW"), ("dense", "HW1W2"), ("dense", "batch"), ("multiply", "HW"), ("split", "batch"))
_SHOWN = (CPU_WAY, GPU_WAY, EQUAL, FIXED, EOP, OURS)


def patterns(e: EopEvidence) -> Any:
    """Figure 4: times of operators over sizes, and the patterns fitted to them."""
    figure, axes = canvas(10.0, 5.6, columns=3, rows=2)
    for axis, (operator, dimension) in zip(axes, _DRAWN, strict=True):
        rows = e.sampled[(e.sampled["operator"] == operator) & (e.sampled["dimension"] == dimension) & e.sampled["us"].notna()]
        for place, (side, own) in enumerate(rows.groupby("side")):
            pattern, most = fitted(own), own["size"].max()
            x = np.linspace(own["size"].min(), most, 200)
            axis.plot(own["size"], own["us"], "o", markersize=3.5, color=PALETTE[place])
            label = f"{str(side).upper()}, {pattern.name}"
            axis.plot(x, pattern.at(x / most) * _MS, color=PALETTE[place], linewidth=1.2, label=label)
        name_axes(axis, dimension, "us", operator)
        if len(rows):
            legend(axis)
    return figure


def speedups(e: EopEvidence) -> Any:
    """Figure 7: speedup of the GPU over sizes, measured and by the patterns."""
    figure, axes = canvas(10.0, 5.6, columns=3, rows=2)
    for axis, (operator, dimension) in zip(axes, _DRAWN, strict=True):
        rows = e.sampled[(e.sampled["operator"] == operator) & (e.sampled["dimension"] == dimension)]
        us = rows.pivot_table(index="size", columns="side", values="us", aggfunc="first").dropna()
        if {"cpu", "gpu"} <= set(us.columns) and len(us):
            sides = [rows[rows["side"] == side].dropna(subset="us") for side in ("cpu", "gpu")]
            share = us.index.to_numpy(float) / float(us.index.max())
            estimated = fitted(sides[0]).at(share) / np.maximum(fitted(sides[1]).at(share), 1e-9)
            axis.plot(us.index, us["cpu"] / us["gpu"], "o--", markersize=3.5, color=INK, label="measured")
            axis.plot(us.index, estimated, color=PALETTE[0], label="by the patterns")
            legend(axis)
        name_axes(axis, dimension, "CPU time / GPU time", operator)
    return figure


def reduction(e: EopEvidence) -> Any:
    """Figure 8: times of whole inferences by every way, over the better single processor's."""
    times = e.end_to_end
    figure, (axis,) = canvas(10.0, 4.4)
    ways = [way for way in _SHOWN if way in times.columns]
    place = np.arange(len(times))
    for k, way in enumerate(ways):
        axis.bar(place + (k - len(ways) / 2) / (len(ways) + 1), times[way] / e.best_single, 1 / (len(ways) + 1),
                 color=PALETTE[k % len(PALETTE)], label=way)  # fmt: skip
    axis.axhline(1.0, color=INK, linewidth=0.8)
    axis.set_xticks(place, [str(model).replace("_", "\n") for model in times.index])
    log_scale(axis)
    name_axes(axis, "", "time over the better processor's")
    legend(axis, 4)
    return figure


def settings(e: EopEvidence) -> Any:
    """Figure 9: recurrent layers with one setting changed at a time."""
    found = e.of_figure("figure_09")
    if found.empty:
        raise NotMeasuredError("settings were not varied")
    names = list(dict.fromkeys(found.index.get_level_values("setting")))
    figure, axes = canvas(10.0, 3.6, columns=len(names))
    for axis, name in zip(axes, names, strict=True):
        for place, way in enumerate(way for way in _SHOWN if way in found.columns):
            for style, kind in (("-", "LSTM"), ("--", "GRU")):
                own = found.reset_index()
                own = own[(own["setting"] == name) & (own["kind"] == kind)]
                axis.plot(own["value"], own[way], style, color=PALETTE[place % len(PALETTE)], label=f"{kind}, {way}")
        name_axes(axis, name, "ms")
    legend(axes[-1], beside=True)
    return figure


EOP_FIGURES: Mapping[str, kit.FigureSpec[EopEvidence]] = kit.registry(
    kit.FigureSpec("eop_reduction", "Every way to run every model (Figure 8)", reduction, ("end_to_end",)),
    kit.FigureSpec("eop_figure_04", "Patterns (Figure 4)", patterns, ("sampled",)),
    kit.FigureSpec("eop_figure_07", "Speedups of operators (Figure 7)", speedups, ("sampled",)),
    kit.FigureSpec("eop_figure_09", "Settings varied (Figure 9)", settings, ("varied",)),
)
