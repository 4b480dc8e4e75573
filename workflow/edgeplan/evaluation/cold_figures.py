"""The figures of the cold-start chapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from edgeplan.evaluation import cold_metrics as metrics
from edgeplan.evaluation import cold_tables_runs as runs
from edgeplan.evaluation.cold_evidence import OPTIMAL, OWN, ColdEvidence
from edgeplan.evaluation.cold_gantt import gantt
from edgeplan.evaluation.cold_metrics import CACHED
from edgeplan.evaluation.cold_tables_stages import STAGES, NotMeasuredError, figure_06, figure_09, focus, title
from edgeplan.evaluation.drawing import INK, MARKERS, PALETTE, canvas, family_ticks, legend, legend_above, log_scale, name_axes
from edgeplan.evaluation.figures import png

_STATES = {"cached": "page cache warm", "evicted": "page cache evicted"}
_BAR = 0.8


def speed(e: ColdEvidence) -> Any:
    """Cold latency of every model over our own, by setting (bars of Figure 8), for both states."""
    frame = runs.figure_08(e)
    states = [s for s in _STATES if s in set(frame["page_cache"])]
    figure, axes = canvas(11.0, 4.2 * len(states), rows=len(states))
    for axis, state in zip(axes, states, strict=True):
        part = frame[frame["page_cache"] == state].dropna(subset=[f"{OWN}_ms"])
        stock = [c for c in part.columns if c.endswith("_ms") and c not in (f"{OWN}_ms", "bound_ms") and part[c].notna().any()]
        width = _BAR / max(len(stock), 1)
        for i, column in enumerate(stock):
            at = np.arange(len(part)) - _BAR / 2 + (i + 0.5) * width
            colour, hatch = PALETTE[i % len(PALETTE)], "//" if i >= len(PALETTE) else ""
            heights = part[column] / part[f"{OWN}_ms"]
            axis.bar(at, heights, width, color=colour, hatch=hatch, label=title(column.removesuffix("_ms")))
        axis.plot(
            np.arange(len(part)), part["bound_ms"] / part[f"{OWN}_ms"], "_", color=INK, markersize=16, label="lower bound"
        )
        axis.axhline(1.0, color=INK, linewidth=1)
        log_scale(axis)
        axis.set_ylim(bottom=0.8 * min(1.0, float((part["bound_ms"] / part[f"{OWN}_ms"]).min(skipna=True))))
        family_ticks(axis, part["model"].tolist())
        name_axes(axis, "", f"over our own, {_STATES[state]}")
    legend_above(axes[0], 4)
    return figure


def cold_over_warm(e: ColdEvidence) -> Any:
    """Cold over warm by setting; a dot a model (Figure 2)."""
    frame = runs.figure_02(e)
    settings = list(dict.fromkeys(frame["setting"]))
    figure, (axis,) = canvas(9.0, 4.6)
    for i, state in enumerate(s for s in _STATES if s in set(frame["state"])):
        part = frame[frame["state"] == state]
        at = part["setting"].map(settings.index) + 0.24 * i - 0.12
        axis.plot(at, part["cold_over_warm"], MARKERS[i], color=PALETTE[i], alpha=0.7, label=_STATES[state])
    log_scale(axis)
    axis.axhline(1.0, color=INK, linewidth=1)
    family_ticks(axis, settings)
    name_axes(axis, "", "cold / warm latency")
    legend(axis, 2)
    return figure


def stages(e: ColdEvidence) -> Any:
    """Stages by core count (Figure 6)."""
    frame = figure_06(e)
    frame = frame[frame["plan"] == "warm"] if (frame["plan"] == "warm").any() else frame
    names = [c for c in (f"{s}_ms" for s in ("memory allocation", *STAGES)) if c in frame.columns]
    figure, (axis,) = canvas(8.0, 4.2)
    counts = frame["cores"].tolist()
    for i, cores in enumerate(counts):
        heights = frame.iloc[i][names].astype(float)
        axis.bar(
            np.arange(len(names)) + 0.4 * (i - (len(counts) - 1) / 2), heights, 0.38, color=PALETTE[i], label=f"{cores} cores"
        )
    axis.set_xticks(range(len(names)), [n.removesuffix("_ms") for n in names])
    name_axes(axis, "", "ms", str(frame["model"].iloc[0]))
    legend(axis)
    return figure


def cores(e: ColdEvidence) -> Any:
    """Cold latency by core count (Figure 9)."""
    frame = figure_09(e)
    frame = frame[frame["page_cache"] == CACHED] if (frame["page_cache"] == CACHED).any() else frame
    models = list(dict.fromkeys(frame["model"]))
    counts = sorted(set(frame["cores"]), key=lambda text: ("+" in text, text))
    figure, axes = canvas(6.0 + 4.0 * len(models), 4.6, len(models))
    for axis, model in zip(axes, models, strict=True):
        for i, (setting, part) in enumerate(frame[frame["model"] == model].groupby("setting", sort=False)):
            at = [counts.index(c) for c in part["cores"]]
            axis.plot(at, part["cold_ms"], f"{MARKERS[i % len(MARKERS)]}-", color=PALETTE[i % len(PALETTE)], label=setting)
        axis.set_xticks(range(len(counts)), counts)
        axis.set_ylim(bottom=0)
        name_axes(axis, "cores", "cold latency (ms)", model)
    legend(axes[-1], beside=True)
    return figure


def load(e: ColdEvidence) -> Any:
    """Slow-down under background load (Figure 11)."""
    frame = runs.figure_11(e)
    places = list(dict.fromkeys(frame["load_core"]))
    figure, axes = canvas(5.0 + 4.0 * len(places), 4.2, len(places))
    for axis, place in zip(axes, places, strict=True):
        for i, (setting, part) in enumerate(frame[frame["load_core"] == place].groupby("setting", sort=False)):
            ordered = part.sort_values("load_percent")
            axis.plot(ordered["load_percent"], ordered["slow_down"], f"{MARKERS[i]}-", color=PALETTE[i], label=setting)
        axis.set_ylim(bottom=0)
        name_axes(axis, "load (%)", "cold latency over no load", f"load on the {place} core")
    legend(axes[0])
    return figure


def ablation(e: ColdEvidence) -> Any:
    """Techniques added one after the other (Figure 13)."""
    frame = runs.figure_13(e)
    frame = frame[(frame["page_cache"] == CACHED) & frame["model"].isin(e.names)]
    if frame.empty:
        raise NotMeasuredError("no ablation with a warm page cache")
    steps = [c for c in ("warm_ms", "K_ms", "K+C_ms", "K+C+P_ms") if c in frame.columns]
    figure, (axis,) = canvas(10.0, 4.6)
    for i, column in enumerate(steps):
        at = np.arange(len(frame)) + 0.2 * (i - (len(steps) - 1) / 2)
        axis.bar(at, frame[column] / frame[steps[0]], 0.19, color=PALETTE[i], label=column.removesuffix("_ms"))
    family_ticks(axis, frame["model"].tolist())
    name_axes(axis, "", "cold latency over the stock-like plan")
    legend_above(axis, len(steps))
    return figure


def continuous(e: ColdEvidence) -> Any:
    """The first inferences of a process (Figure 14)."""
    frame = runs.figure_14(e)
    models = list(dict.fromkeys(frame["model"]))
    columns = [c for c in frame.columns if c.startswith("inference_")]
    figure, axes = canvas(6.0 + 4.0 * len(models), 4.6, len(models))
    for axis, model in zip(axes, models, strict=True):
        for i, (_, row) in enumerate(frame[frame["model"] == model].iterrows()):
            style, colour = MARKERS[i % len(MARKERS)], PALETTE[i % len(PALETTE)]
            axis.plot(range(1, len(columns) + 1), row[columns].astype(float), f"{style}-", color=colour, label=row["setting"])
        axis.set_xticks(range(1, len(columns) + 1))
        log_scale(axis)
        name_axes(axis, "inference", "latency (ms)", model)
    legend(axes[-1], beside=True)
    return figure


def predicted(e: ColdEvidence) -> Any:
    """Predicted against measured makespans; the band is +-15 %."""
    frame = metrics.predicted_and_measured(e)
    if frame.empty:
        raise NotMeasuredError("no plan was executed with a warm page cache")
    figure, (axis,) = canvas(6.4, 5.6)
    low, high = (
        frame[["predicted_ms", "measured_ms"]].min().min() * 0.8,
        frame[["predicted_ms", "measured_ms"]].max().max() * 1.25,
    )
    line = np.array([low, high])
    axis.fill_between(line, line * 0.85, line / 0.85, color="#e8e8e8", linewidth=0)
    axis.plot(line, line, color=INK, linewidth=1)
    for i, (plan, part) in enumerate(frame.groupby("plan", sort=False)):
        axis.plot(
            part["predicted_ms"], part["measured_ms"], MARKERS[i % len(MARKERS)], color=PALETTE[i % len(PALETTE)], label=plan
        )
    log_scale(axis, x=True)
    name_axes(axis, "predicted makespan (ms)", "measured cold latency (ms)")
    legend(axis)
    return figure


def _gantt(e: ColdEvidence) -> Any:
    if e.spans.empty:
        raise NotMeasuredError(e.notes.get("spans", "no timeline was recorded"))
    known = set(e.spans["model"])
    wanted = focus(e, "resnet50")
    model = wanted if wanted in known else str(e.spans["model"].iloc[0])
    spans = e.spans[(e.spans["model"] == model) & (e.spans["plan"] == OPTIMAL)]
    return gantt(spans, model)


@dataclass(frozen=True, slots=True)
class ColdPicture:
    """A figure: stem of its file, one line, what is drawn, and what draws it."""

    id: str
    title: str
    caption: str
    function: Callable[[ColdEvidence], Any]


_ALL = (
    ColdPicture(
        "cold_gantt", "A cold start, planned and measured", "What runs where and when; both on the same scale.", _gantt
    ),
    ColdPicture(
        "cold_figure_08",
        "Cold latency of stock engines over our own",
        "Above 1 our plan starts sooner; the dash is the lower bound (paper: Fig. 8).",
        speed,
    ),
    ColdPicture(
        "cold_figure_02", "Cold over warm", "A mark a model, by engine (paper: Fig. 2, 1.5 to 12.7 on CPUs).", cold_over_warm
    ),
    ColdPicture("cold_figure_06", "Stages by the number of cores", "Everything in sequence (paper: Fig. 6).", stages),
    ColdPicture("cold_figure_09", "Cold latency by the number of cores", "Page cache warm (paper: Fig. 9).", cores),
    ColdPicture("cold_figure_11", "Background load", "Slow-down while one core is busy (paper: Fig. 11).", load),
    ColdPicture(
        "cold_figure_13", "Ablation", "K: kernels, C: caching, P: pipeline; page cache warm (paper: Fig. 13).", ablation
    ),
    ColdPicture("cold_figure_14", "Continuous inference", "The first inferences of a process (paper: Fig. 14).", continuous),
    ColdPicture("cold_predicted", "Predicted and measured", "Every executed plan; the band is +-15 %.", predicted),
)

#: Every figure by id, in the order of the report.
COLD_FIGURES: Mapping[str, ColdPicture] = MappingProxyType({picture.id: picture for picture in _ALL})


def make_cold_figures(evidence: ColdEvidence) -> dict[str, bytes]:
    """Every figure that can be drawn, as PNG by id; the table of the same id says why one cannot."""
    made = {}
    for name, picture in COLD_FIGURES.items():
        try:
            made[name] = png(picture.function(evidence))
        except NotMeasuredError:
            continue
    return made
