"""Draws figures of whole models: baselines (Fig. 9), error by latency (Fig. 10), operator sums (Fig. 11)."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.tables_baselines import baselines
from edgeplan.chapters.prediction.evaluation.tables_prediction import label
from edgeplan.reporting.drawing import (
    GRID,
    INK,
    PALETTE,
    PREDICTORS,
    canvas,
    colours,
    family_ticks,
    legend,
    legend_above,
    name_axes,
)
from edgeplan.reporting.metrics import by_group, relative_error

_GROUPS = 4
_PREDICTED = ("measured_ms", "predicted_ms")


def _grouped(axis: Any, series: dict[str, list[float]], labels: list[str]) -> None:
    """Draw bars side by side, one group a label."""
    width, colour = 0.8 / len(series), colours(series, PREDICTORS)
    for i, (name, values) in enumerate(series.items()):
        place = np.arange(len(values)) - 0.4 + width * (i + 0.5)
        axis.bar(place, values, width, color=colour[name], label=name)
        for x, value in zip(place, values, strict=True):
            # A bar of height zero must not look like a missing one.
            if value == 0:
                axis.plot([x], [0], marker="_", color=colour[name], markersize=6)
    family_ticks(axis, labels)
    axis.set_ylim(0, 103)
    legend_above(axis, len(series))


def baselines_figure(evidence: Evidence) -> Any:
    """Draw figure 9: +-10 % accuracy by family for every predictor, with the paper's means."""
    table = baselines(evidence)
    names = [n for n in ("ours", "operator sum", "FLOPs", "FLOPs+MAC") if f"{n}: within 10 % (%)" in table.columns]
    series = {n: table[f"{n}: within 10 % (%)"].tolist() for n in names}
    published = {
        "ours": paper.FIGURE_9["ours"],
        "operator sum": paper.FIGURE_11_OPERATOR,
        "FLOPs": paper.FIGURE_9["flops"],
        "FLOPs+MAC": paper.FIGURE_9["flops_mac"],
    }
    for name in names:
        series[name].append(published[name])
    figure, (axis,) = canvas(11, 5)
    _grouped(axis, series, [*(label(str(f)) for f in table["family"]), "paper"])
    axis.axvline(len(table) - 0.5, color=INK, linewidth=0.8, linestyle=":")
    name_axes(axis, "family", "models within 10 % (%)")
    return figure


def error_by_latency(evidence: Evidence) -> Any:
    """Draw figure 10: signed errors in four groups of equal size by measured latency."""
    frame = evidence.evaluated("measured_ms", "predicted_ms").sort_values("measured_ms", kind="stable")
    truth, guess = (frame[c].to_numpy(float) for c in _PREDICTED)
    errors = 100 * relative_error(truth, guess)
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
