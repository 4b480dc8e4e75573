"""Draws figures of kernels: the latency breakdown (Fig. 6) and the sweeps (Fig. 7 and 8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.tables_prediction import label
from edgeplan.reporting.drawing import (
    INK,
    KINDS,
    PALETTE,
    PAPER,
    PREDICTORS,
    canvas,
    colours,
    family_ticks,
    legend,
    legend_above,
    name_axes,
)

# Kinds below this mean share everywhere are drawn as one.
_SMALL_SHARE = 0.02
_MAX_KINDS = 7


def shares_by_family(evidence: Evidence) -> pd.DataFrame:
    """Return the mean share (0..1) of each kernel kind in predicted latency: one row a family and "all", one column a kind.

    Kinds are ordered by their mean share; a family's row sums to 1.
    """
    parts = evidence.breakdown
    wide = parts.pivot_table(index="model_id", columns="kind", values="predicted_ms", aggfunc="sum", fill_value=0.0)
    wide = wide.div(wide.sum(axis=1), axis=0)
    models = evidence.models.set_index("model_id")["family"]
    wide = wide.loc[wide.index.intersection(models.index)]
    families = models.loc[wide.index]
    table = wide.groupby(families, sort=False).mean()
    table.loc["all"] = wide.mean()
    order = list(dict.fromkeys(f for f in models if f in table.index))
    return table.loc[[*order, "all"], wide.mean().sort_values(ascending=False, kind="stable").index]


def breakdown(evidence: Evidence) -> Any:
    """Draw figure 6 of the paper: stacked shares of kernel kinds by family."""
    table = shares_by_family(evidence)
    kept = [k for k in table.columns if table[k].max() >= _SMALL_SHARE][:_MAX_KINDS]
    small = [k for k in table.columns if k not in kept]
    figure, (axis,) = canvas(10, 5)
    bottom = np.zeros(len(table))
    names = [*kept, *(["others"] if small else [])]
    for name, colour in colours(names, KINDS).items():
        height = table[small].sum(axis=1).to_numpy(float) if name == "others" else table[name].to_numpy(float)
        axis.bar(range(len(table)), 100 * height, 0.75, bottom=bottom, color=colour, label=name, edgecolor=PAPER, linewidth=0.5)
        bottom += 100 * height
    family_ticks(axis, [label(str(f)) for f in table.index])
    name_axes(axis, "family", "share of predicted latency (%)")
    axis.set_ylim(0, 100)
    legend_above(axis, 8)
    return figure


def _sweep(axis: Any, rows: pd.DataFrame, title: str, x: str, *, staircase: bool) -> None:
    rows = rows.sort_values("x")
    xs, measured = rows["x"].to_numpy(float), rows["measured_us"].to_numpy(float)
    known = rows["predicted_us"].notna().to_numpy()
    if staircase:
        axis.step(xs, measured, where="post", color=INK, linewidth=1.4, label="measured")
        axis.plot(xs, measured, ".", color=INK, markersize=4)
    else:
        axis.plot(xs, measured, "o-", color=INK, markersize=5, label="measured")
    if known.any():
        predicted = rows["predicted_us"].to_numpy(float)
        axis.plot(
            xs[known],
            predicted[known],
            "s--",
            color=PALETTE[PREDICTORS["predicted"]],
            markersize=3.5,
            linewidth=1.2,
            label="predicted",
        )
    name_axes(axis, x, "latency (us)", title)
    axis.set_ylim(bottom=0)
    legend(axis)


def _empty(axis: Any) -> None:
    axis.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axis.transAxes, color=INK)


def sizes(evidence: Evidence) -> Any:
    """Draw figure 7 of the paper: one Conv by kernel size and by input size."""
    rows = evidence.sweeps
    figure, axes = canvas(10, 4.2, 2)
    names = {
        "kernel_size": ("(a) kernel size", "kernel size (pixels)"),
        "input_size": ("(b) input size", "input height and width (pixels)"),
    }
    for axis, (name, (title, x)) in zip(axes, names.items(), strict=True):
        part = rows[rows["sweep"] == name]
        if len(part):
            _sweep(axis, part, title, x, staircase=False)
        else:
            _empty(axis)
    return figure


def channels(evidence: Evidence) -> Any:
    """Draw figure 8 of the paper: one Conv by output channels."""
    rows = evidence.sweeps
    figure, (axis,) = canvas(10, 4.4)
    part = rows[rows["sweep"] == "out_channels"]
    if len(part):
        _sweep(axis, part, "", "output channels (count)", staircase=True)
    else:
        _empty(axis)
    return figure
