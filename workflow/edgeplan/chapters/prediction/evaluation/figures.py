"""The chapter's figures; a new one is a function and a line of `FIGURES`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction.evaluation.tables import PUBLISHED, WITHIN_10, Evidence, baselines, label
from edgeplan.reporting.chapter_report import FigureSpec, registry
from edgeplan.reporting.drawing import (
    GRID,
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
from edgeplan.reporting.metrics import by_group, relative_errors

# Kinds below this mean share everywhere are drawn as one.
_SMALL_SHARE = 0.02
_MAX_KINDS = 7
_GROUPS = 4


def shares_by_family(evidence: Evidence) -> pd.DataFrame:
    """Return the mean share (0..1) of each kernel kind in predicted latency: one row a family and "all", one column a kind."""
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


def _sweep(axis: Any, rows: pd.DataFrame, title: str, x: str, *, staircase: bool = False) -> None:
    if not len(rows):
        axis.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axis.transAxes, color=INK)
        return
    rows = rows.sort_values("x")
    xs, measured = rows["x"].to_numpy(float), rows["measured_us"].to_numpy(float)
    if staircase:
        axis.step(xs, measured, where="post", color=INK, linewidth=1.4, label="measured")
        axis.plot(xs, measured, ".", color=INK, markersize=4)
    else:
        axis.plot(xs, measured, "o-", color=INK, markersize=5, label="measured")
    known = rows[rows["predicted_us"].notna()]
    if len(known):
        look = {"color": PALETTE[PREDICTORS["predicted"]], "markersize": 3.5, "linewidth": 1.2}
        axis.plot(known["x"], known["predicted_us"], "s--", label="predicted", **look)
    name_axes(axis, x, "latency (us)", title)
    axis.set_ylim(bottom=0)
    legend(axis)


def sizes(evidence: Evidence) -> Any:
    """Draw figure 7 of the paper: one Conv by kernel size and by input size."""
    rows, (figure, axes) = evidence.sweeps, canvas(10, 4.2, 2)
    _sweep(axes[0], rows[rows["sweep"] == "kernel_size"], "(a) kernel size", "kernel size (pixels)")
    _sweep(axes[1], rows[rows["sweep"] == "input_size"], "(b) input size", "input height and width (pixels)")
    return figure


def channels(evidence: Evidence) -> Any:
    """Draw figure 8 of the paper: one Conv by output channels."""
    rows, (figure, axes) = evidence.sweeps, canvas(10, 4.4)
    _sweep(axes[0], rows[rows["sweep"] == "out_channels"], "", "output channels (count)", staircase=True)
    return figure


def _grouped(axis: Any, series: dict[str, list[float]], labels: list[str]) -> None:
    """Draw bars side by side, one group a label."""
    width, colour = 0.8 / len(series), colours(series, PREDICTORS)
    for i, (name, values) in enumerate(series.items()):
        place = np.arange(len(values)) - 0.4 + width * (i + 0.5)
        axis.bar(place, values, width, color=colour[name], label=name)
        for x in place[np.array(values) == 0]:  # a bar of height zero must not look like a missing one
            axis.plot([x], [0], marker="_", color=colour[name], markersize=6)
    family_ticks(axis, labels)
    axis.set_ylim(0, 103)
    legend_above(axis, len(series))


def baselines_figure(evidence: Evidence) -> Any:
    """Draw figure 9: +-10 % accuracy by family for every predictor, with the paper's means."""
    table = baselines(evidence)
    shown = {name: f"{name}: {WITHIN_10}" for name in PUBLISHED}
    series = {name: [*table[column], PUBLISHED[name]] for name, column in shown.items() if column in table}
    figure, (axis,) = canvas(11, 5)
    _grouped(axis, series, [*(label(str(f)) for f in table["family"]), "paper"])
    axis.axvline(len(table) - 0.5, color=INK, linewidth=0.8, linestyle=":")
    name_axes(axis, "family", "models within 10 % (%)")
    return figure


def error_by_latency(evidence: Evidence) -> Any:
    """Draw figure 10: signed errors in four groups of equal size by measured latency."""
    frame = evidence.evaluated("measured_ms", "predicted_ms").sort_values("measured_ms", kind="stable")
    truth, guess = (frame[c].to_numpy(float) for c in ("measured_ms", "predicted_ms"))
    errors = 100 * relative_errors(truth, guess)
    parts = [p for p in np.array_split(np.arange(len(truth)), _GROUPS) if p.size]
    figure, (axis,) = canvas(9, 4.6)
    axis.axhspan(-10, 10, color=GRID, alpha=0.6, zorder=0, label="within 10 %")
    axis.boxplot(
        [errors[p] for p in parts],
        positions=range(len(parts)),
        widths=0.5,
        whis=(5, 95),
        patch_artist=True,
        boxprops={"facecolor": PALETTE[4], "edgecolor": INK},
        medianprops={"color": INK, "linewidth": 1.6},
        whiskerprops={"color": INK},
        capprops={"color": INK},
        flierprops={"marker": ".", "markerfacecolor": PALETTE[1], "markeredgecolor": PALETTE[1]},
    )
    axis.set_xticks(range(len(parts)))
    axis.set_xticklabels([f"{truth[p[0]]:.3g} - {truth[p[-1]]:.3g} ms\n{len(p)} models" for p in parts], fontsize=11)
    name_axes(axis, "measured latency (ms)", "prediction error (%)")
    legend(axis)
    return figure


def operators_against_kernels(evidence: Evidence) -> Any:
    """Draw figure 11: +-5 % and +-10 % accuracy of the two sums, by family."""
    frame = evidence.evaluated("measured_ms", "predicted_ms", "operator_sum_ms")
    ours, theirs = by_group(frame), by_group(frame, predicted="operator_sum_ms")
    figure, axes = canvas(12, 4.8, 2)
    for axis, (column, title) in zip(
        axes, (("within_5pct", "(a) within 5 %"), ("within_10pct", "(b) within 10 %")), strict=True
    ):
        series = {"kernel sum": (100 * ours[column]).tolist(), "operator sum": (100 * theirs[column]).tolist()}
        _grouped(axis, series, [label(str(f)) for f in ours["family"]])
        name_axes(axis, "family", f"models {title[4:]} (%)")
    return figure


_PREDICTED = "models.predicted_ms"
#: Every figure by id, in the order of the report.
FIGURES: Mapping[str, FigureSpec[Evidence]] = registry(
    FigureSpec("figure_06", "Where the latency goes", breakdown, ("breakdown", "models")),
    FigureSpec("figure_07", "Conv by kernel size and by input size", sizes, ("sweeps",)),
    FigureSpec("figure_08", "Conv by output channels", channels, ("sweeps",)),
    FigureSpec(
        "figure_09", "Accuracy on unseen families", baselines_figure, (_PREDICTED, "models.macs", "models.memory_bytes")
    ),
    FigureSpec("figure_10", "Error by latency", error_by_latency, (_PREDICTED,)),
    FigureSpec("figure_11", "Operators against kernels", operators_against_kernels, (_PREDICTED, "models.operator_sum_ms")),
)
