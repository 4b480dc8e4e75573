"""Draws the figures of the cold-start chapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.cold_start.evaluation import tables
from edgeplan.chapters.cold_start.evaluation.evidence import CACHED, OWN, ColdEvidence
from edgeplan.reporting.chapter_report import FigureSpec, NotMeasuredError, registry
from edgeplan.reporting.drawing import (
    HATCHES,
    INK,
    MARKERS,
    PALETTE,
    PAPER,
    PLANS,
    STATES,
    canvas,
    colours,
    family_ticks,
    legend,
    legend_above,
    log_scale,
    name_axes,
    series_style,
    setting_place,
)

_STATES = {"cached": "page cache warm", "evicted": "page cache evicted"}
_BAR = 0.8


def speed(e: ColdEvidence) -> Any:
    """Draw the cold latency of every model over our own, by setting (bars of Figure 8), for both states of the page cache."""
    frame = tables.figure_08(e)
    states = [s for s in _STATES if s in set(frame["page_cache"])]
    figure, axes = canvas(11.0, 4.2 * len(states), rows=len(states))
    for axis, state in zip(axes, states, strict=True):
        part = frame[frame["page_cache"] == state].dropna(subset=[f"{OWN}_ms"])
        stock = [c for c in part.columns if c.endswith("_ms") and c not in (f"{OWN}_ms", "bound_ms") and part[c].notna().any()]
        width = _BAR / max(len(stock), 1)
        for i, column in enumerate(stock):
            at = np.arange(len(part)) - _BAR / 2 + (i + 0.5) * width
            place, variant = setting_place(column)
            heights = part[column] / part[f"{OWN}_ms"]
            name = tables.title(column.removesuffix("_ms"))
            axis.bar(at, heights, width, color=PALETTE[place], hatch=HATCHES[variant], edgecolor=PAPER, linewidth=0, label=name)
        axis.plot(
            np.arange(len(part)), part["bound_ms"] / part[f"{OWN}_ms"], "_", color=INK, markersize=16, label="lower bound"
        )
        axis.axhline(1.0, color=INK, linewidth=1)
        log_scale(axis)
        axis.set_ylim(bottom=0.8 * min(1.0, float((part["bound_ms"] / part[f"{OWN}_ms"]).min(skipna=True))))
        family_ticks(axis, part["model"].tolist())
        name_axes(axis, "model" if state == states[-1] else "", f"latency over our own (times),\n{_STATES[state]}")
    legend_above(axes[0], 4)
    return figure


def cold_over_warm(e: ColdEvidence) -> Any:
    """Draw cold over warm latency by setting; a dot a model (Figure 2)."""
    frame = tables.figure_02(e)
    settings = list(dict.fromkeys(frame["setting"]))
    figure, (axis,) = canvas(9.0, 4.6)
    for i, state in enumerate(s for s in _STATES if s in set(frame["state"])):
        part = frame[frame["state"] == state]
        at = part["setting"].map(settings.index) + 0.24 * i - 0.12
        colour = PALETTE[STATES[_STATES[state]]]
        axis.plot(at, part["cold_over_warm"], MARKERS[i], color=colour, alpha=0.7, label=_STATES[state])
    log_scale(axis)
    axis.axhline(1.0, color=INK, linewidth=1)
    family_ticks(axis, settings)
    name_axes(axis, "setting", "cold over warm latency (times)")
    legend(axis, 2)
    return figure


def stages(e: ColdEvidence) -> Any:
    """Draw stages by plan and core count (Figure 6)."""
    frame = tables.figure_06(e)
    names = [c for c in (f"{s}_ms" for s in ("memory allocation", *tables.STAGES)) if c in frame.columns]
    figure, (axis,) = canvas(8.0, 4.2)
    width, colour = _BAR / len(frame), colours(frame["plan"], PLANS)
    for i, row in enumerate(frame.to_dict("records")):
        label = f"{row['plan']} plan, {row['cores']} core{'s' if row['cores'] > 1 else ''}"
        look = {"color": colour[row["plan"]], "hatch": HATCHES[0 if row["cores"] > 1 else 1], "edgecolor": PAPER}
        at = np.arange(len(names)) + width * (i - (len(frame) - 1) / 2)
        axis.bar(at, [row[name] for name in names], 0.95 * width, label=label, linewidth=0, **look)
    axis.set_xticks(range(len(names)), [n.removesuffix("_ms") for n in names])
    name_axes(axis, "stage", "sum over the lanes (ms)", str(frame["model"].iloc[0]))
    legend_above(axis, 4)
    return figure


def cores(e: ColdEvidence) -> Any:
    """Draw cold latency by core count (Figure 9)."""
    frame = tables.figure_09(e)
    frame = frame[frame["page_cache"] == CACHED] if (frame["page_cache"] == CACHED).any() else frame
    models = list(dict.fromkeys(frame["model"]))
    counts = sorted(set(frame["cores"]), key=lambda text: ("+" in text, text))
    styles = _styles(frame["setting"])
    figure, axes = canvas(6.0 + 4.0 * len(models), 4.6, len(models))
    for axis, model in zip(axes, models, strict=True):
        for setting, part in frame[frame["model"] == model].groupby("setting", sort=False):
            axis.plot([counts.index(c) for c in part["cores"]], part["cold_ms"], **styles[str(setting)], label=setting)
        axis.set_xticks(range(len(counts)), counts)
        axis.set_ylim(bottom=0)
        name_axes(axis, "cores (count)", "cold latency (ms)", model)
    legend(axes[-1], beside=True)
    return figure


def _styles(names: pd.Series[str]) -> dict[str, dict[str, str]]:
    """Return the same look for a setting in every panel."""
    return {name: series_style(*setting_place(name)) for name in dict.fromkeys(names)}


def _load(e: ColdEvidence) -> Any:
    """Draw the slow-down under background load (Figure 11); all panels start from the one baseline."""
    frame = tables.figure_11(e)
    places = [place for place in dict.fromkeys(frame["load_core"]) if place] or [""]
    styles = _styles(frame["setting"])
    figure, axes = canvas(5.0 + 4.0 * len(places), 4.2, len(places))
    for axis, place in zip(axes, places, strict=True):
        for setting, part in frame[frame["load_core"].isin(["", place])].groupby("setting", sort=False):
            ordered = part.sort_values("load_percent")
            axis.plot(ordered["load_percent"], ordered["slow_down"], **styles[str(setting)], label=setting)
        axis.set_ylim(0, 1.08 * frame["slow_down"].max())
        name_axes(axis, "load (%)", "cold latency over no load (times)", f"load on the {place or 'core'}")
    legend(axes[0])
    return figure


def ablation(e: ColdEvidence) -> Any:
    """Draw techniques added one after the other (Figure 13)."""
    frame = tables.figure_13(e)
    frame = frame[(frame["page_cache"] == CACHED) & frame["model"].isin(e.names)]
    if frame.empty:
        raise NotMeasuredError("no ablation with a warm page cache")
    steps = [c for c in ("warm_ms", "K_ms", "K+C_ms", "K+C+P_ms") if c in frame.columns]
    figure, (axis,) = canvas(10.0, 4.6)
    for i, column in enumerate(steps):
        at = np.arange(len(frame)) + 0.2 * (i - (len(steps) - 1) / 2)
        plan = column.removesuffix("_ms")
        axis.bar(at, frame[column] / frame[steps[0]], 0.19, color=PALETTE[PLANS[plan]], label=plan)
    family_ticks(axis, frame["model"].tolist())
    name_axes(axis, "model", "cold latency over the stock-like plan (times)")
    legend_above(axis, len(steps))
    return figure


def continuous(e: ColdEvidence) -> Any:
    """Draw the first inferences of a process (Figure 14), and by model what the mode takes over the same plan without it."""
    frame = tables.figure_14(e)
    models = tables.shown_models(e)
    frame = frame[frame["model"].isin(models)]
    columns = [c for c in frame.columns if c.startswith("inference_")]
    styles = _styles(frame["setting"])
    try:
        over = tables.mode_over_without(e)
    except NotMeasuredError:
        over = pd.DataFrame()
    figure, axes = canvas(4.8 * (len(models) + 1), 6.2, len(models) + (0 if over.empty else 1))
    for axis, model in zip(axes, models, strict=False):
        for _, row in frame[frame["model"] == model].iterrows():
            axis.plot(range(1, len(columns) + 1), row[columns].astype(float), **styles[row["setting"]], label=row["setting"])
        axis.set_xticks(range(1, len(columns) + 1))
        log_scale(axis)
        name_axes(axis, "inference (place in the process)", "latency (ms)", model)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", ncols=4, frameon=False, labelcolor=INK)
    if not over.empty:
        for i, column in enumerate(c for c in (*columns[:2], "sum_ms") if c in over.columns):
            style = series_style(i) | {"linestyle": ""}
            axes[-1].plot(range(len(over)), over[column], **style, label=column.removesuffix("_ms").replace("_", " "))
        axes[-1].axhline(1.0, color=INK, linewidth=1)
        family_ticks(axes[-1], over.index.tolist())
        name_axes(axes[-1], "model", "with the mode over without (times)", "continuous mode")
        legend(axes[-1])
    return figure


#: Every figure by id, in the order of the report.
COLD_FIGURES: Mapping[str, FigureSpec[ColdEvidence]] = registry(
    FigureSpec("cold_figure_08", "Cold latency of stock engines over our own", speed),
    FigureSpec("cold_figure_02", "Cold over warm", cold_over_warm),
    FigureSpec("cold_figure_06", "Stages by the number of cores", stages),
    FigureSpec("cold_figure_09", "Cold latency by the number of cores", cores),
    FigureSpec("cold_figure_11", "Background load", _load),
    FigureSpec("cold_figure_13", "Ablation", ablation),
    FigureSpec("cold_figure_14", "Continuous inference", continuous),
)
