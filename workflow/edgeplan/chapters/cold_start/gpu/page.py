"""Shows cold starts on a GPU: what was measured, the figures of merit, tables, a figure and the page of a device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.cold_start import paper
from edgeplan.chapters.cold_start.evaluation.evidence import CACHED, EVICTED
from edgeplan.chapters.cold_start.evaluation.figures import COLD_FIGURES
from edgeplan.chapters.cold_start.evaluation.tables import COLD_TABLES
from edgeplan.chapters.cold_start.planners.gpu import KEPT, KERNELS, OPTIMAL, STOCK, WARM
from edgeplan.chapters.cold_start.settings import GPU_PROTOCOL
from edgeplan.reporting.bars import Bar, Graded, Repeats, graded
from edgeplan.reporting.chapter_report import ChapterReport, FigureSpec, NotMeasuredError, TableSpec, registry
from edgeplan.reporting.drawing import INK, PALETTE, PAPER, canvas, legend_above, name_axes
from edgeplan.reporting.metrics import Estimate, estimate, figures_of_merit, gap_max, geomean
from edgeplan.reporting.page import CardOf
from edgeplan.support.tensors import OUTPUT_TOLERANCE

_MS_PER_S = 1e3
_ABLATION = (STOCK, KERNELS, KEPT, OPTIMAL)
_ABOUT = (
    "A start begins with a driver that is loaded and a device that is open, each timed apart, and ends with the outputs in the "
    "host's memory. Weights are read, kernels loaded or compiled, weights packed and uploaded by threads of the host while the "
    "GPU runs the steps that are ready. Every start is a fresh process that finds no code but what its plan keeps."
)
BARS = (
    Bar("cold_gpu.over_warm", "cold start over own fastest later inference, mean", high=3.0, aim="1.72"),
    Bar("cold_gpu.plan_gap_max", "optimal plan over the proven bound, largest", high=0.01, aim="0.002"),
    Bar("cold_gpu.output_error_max", "difference of outputs from the reference, largest", high=OUTPUT_TOLERANCE),
    Bar("cold_gpu.failed_starts", "starts that failed, or that compiled what their plan keeps", high=0),
)
_CARDS = (
    CardOf("starts in {} its own fastest later inference", "cold_gpu.over_warm", "times", f"{paper.COLD_OVER_WARM:g}"),
    CardOf(
        "starts {} as fast as compiling and packing at every start",
        "cold_gpu.speedup_over_default",
        "times",
        "28.5 and 29.6 over ncnn",
    ),
    CardOf(
        "starts {} as fast as the best stock setting on the GPU",
        "cold_gpu.speedup_over_best_stock",
        "times",
        "4 to 58 over ncnn",
        further=True,
    ),
)


@dataclass(frozen=True)
class GpuStartEvidence:
    """Rows of the stage `cold_gpu`: a start each and a plan each, of a model, with the columns of `measuring.COLUMNS`."""

    device: str
    starts: pd.DataFrame
    plans: pd.DataFrame
    environment: Mapping[str, Any]

    @cached_property
    def counted(self) -> pd.DataFrame:
        """Return the starts that gave outputs, whose plan's code was found."""
        return self.starts[self.starts["cold_ms"].notna() & (self.starts["reason"] == "")]

    @cached_property
    def cold(self) -> pd.DataFrame:
        """Return medians of our starts (ms): rows of model and state, a column for each plan."""
        return self._medians(["model", "state"], "cold_ms")

    @cached_property
    def warm(self) -> pd.DataFrame:
        """Return medians of later inferences (ms) by model, a column for each plan."""
        return self._medians(["model"], "warm_ms")

    @cached_property
    def stock(self) -> pd.DataFrame:
        """Return medians of stock starts (ms): rows of model and state, a column for each setting; maybe none."""
        return self._medians(["model", "state"], "cold_ms", stock=1)

    def _medians(self, index: list[str], values: str, stock: int = 0) -> pd.DataFrame:
        own = self.counted[self.counted["stock"] == stock]
        return own.pivot_table(index=index, columns="way", values=values, aggfunc="median")

    def of_state(self, state: str, *, stock: bool = False) -> pd.DataFrame:
        """Return the starts of our plans, or of stock settings, in a state of the page cache, by model; maybe none."""
        cold = self.stock if stock else self.cold
        return cold[cold.index.get_level_values("state") == state].droplevel("state")

    def optimal(self) -> pd.DataFrame:
        """Return the optimal plans by model."""
        return self.plans[self.plans["way"] == OPTIMAL].set_index("model")


def over_warm(e: GpuStartEvidence) -> Estimate:
    """Geometric mean of the optimal plan's cold start over the fastest later inference of any of our plans, page cache warm."""
    return estimate(geomean, (e.of_state(CACHED)[OPTIMAL] / e.warm.min(axis=1)).dropna())


def least_ms(e: GpuStartEvidence, model: str, state: str) -> float:
    """Return what no start of our kernels beats on the machine (ms): the GPU's work, the bus, and the disk if evicted."""
    if model not in e.optimal().index or "work_ms" not in e.plans.columns:
        return math.nan
    plan = e.optimal().loc[model]
    times = [plan["work_ms"], plan["upload_mb"] / plan["upload_mb_s"] * _MS_PER_S]
    if state == EVICTED:
        times.append(plan["read_mb"] / plan["read_mb_s"] * _MS_PER_S)
    return float(np.max(times))  # nan where one was not measured


def plan_gap_max(e: GpuStartEvidence) -> float:
    """Max over models of the optimal plan's makespan over its proven bound, less 1."""
    return gap_max(e.optimal()["predicted_ms"], e.optimal()["bound_ms"])


def speedup_over_default(e: GpuStartEvidence) -> Estimate:
    """Geometric mean of the start that compiles and packs everything in sequence over the optimal plan's, page cache warm."""
    cold = e.of_state(CACHED)
    return estimate(geomean, (cold[STOCK] / cold[OPTIMAL]).dropna())


def speedup_over_best_stock(e: GpuStartEvidence) -> Estimate:
    """Geometric mean of the best stock setting's start on this GPU over the optimal plan's, page cache warm."""
    best = e.of_state(CACHED, stock=True).min(axis=1)
    return estimate(geomean, (best / e.of_state(CACHED)[OPTIMAL]).dropna())


def output_error_max(e: GpuStartEvidence) -> float:
    """Max over all our starts of the outputs' difference from the reference, relative to the largest magnitude."""
    return float(e.starts.loc[e.starts["stock"] == 0, "error"].max())


def failed_starts(e: GpuStartEvidence) -> float:
    """Count starts of our plans that failed, or that found no whole code though the plan keeps it."""
    return float(((e.starts["stock"] == 0) & (e.starts["reason"] != "") & (e.starts["way"] != "")).sum())


_FIGURES = (over_warm, plan_gap_max, speedup_over_default, speedup_over_best_stock, output_error_max, failed_starts)
#: All figures that were measured, by key.
gpu_metrics = partial(figures_of_merit, {f"cold_gpu.{figure.__name__}": figure for figure in _FIGURES})


def _beside(e: GpuStartEvidence) -> pd.DataFrame:
    """Starts of each model: the optimal plan beside its bound, the default start and the best stock setting."""
    rows = []
    opened = e.counted[(e.counted["way"] == OPTIMAL)].groupby("model")[["library_ms", "context_ms"]].median()
    for model in dict.fromkeys(e.starts["model"]):
        own = {state: e.cold.loc[(model, state)] for state in (CACHED, EVICTED) if (model, state) in e.cold.index}
        row: dict[str, Any] = {"model": model}
        row |= {f"{state}_ms": found.get(OPTIMAL, math.nan) for state, found in own.items()}
        if model in e.warm.index:
            row |= {"warm_ms": e.warm.loc[model].min(), "over_warm": row.get("cached_ms", math.nan) / e.warm.loc[model].min()}
        if model in opened.index:
            row |= opened.loc[model].to_dict()
        if model in e.optimal().index:
            plan = e.optimal().loc[model]
            row |= {"predicted_ms": plan["predicted_ms"], "bound_ms": plan["bound_ms"]}
            row["gap"] = plan["predicted_ms"] / plan["bound_ms"] - 1
            row |= {f"least_{state}_ms": least_ms(e, model, state) for state in own}
        row["default_ms"] = own[CACHED].get(STOCK, math.nan) if CACHED in own else math.nan
        if (model, CACHED) in e.stock.index:
            best = e.stock.loc[(model, CACHED)]
            row |= {"stock_ms": best.min(), "stock": best.idxmin()}
        row["reason"] = "; ".join(
            dict.fromkeys(e.starts.loc[(e.starts["model"] == model) & (e.starts["stock"] != 1), "reason"])
        )
        rows.append(row)
    return pd.DataFrame(rows).round(4)


def _planning(e: GpuStartEvidence) -> pd.DataFrame:
    """Storage and planning of each model's optimal plan (Table 4), beside the paper's times on two GPUs."""
    found = e.optimal()[["steps", "threads", "kept_mb", "code_mb", "planning_s", "search_ms"]].reset_index()
    for name, known in (("tx2", paper.TABLE4_PLANNING_TX2_MS), ("nano", paper.TABLE4_PLANNING_NANO_MS)):
        found[f"paper_planning_{name}_ms"] = found["model"].map(lambda model, known=known: known.get(model, math.nan))
    return found.round(3)


def _ways(e: GpuStartEvidence) -> Any:
    """Cold starts of each model by technique and by stock engine, on a scale of powers of ten."""
    frame = e.of_state(CACHED)
    known = {name: frame[name] for name in (*_ABLATION, WARM) if name in frame.columns}
    if frame.empty or not known:
        raise NotMeasuredError("no start with the page cache warm")
    stock = e.of_state(CACHED, stock=True).reindex(frame.index)
    bars = {**known, **stock.dropna(axis=1, how="all")}
    later = e.warm.min(axis=1).reindex(frame.index)
    figure, (axis,) = canvas(9.0, 4.2)
    places, width = np.arange(len(frame)), 0.8 / (len(bars) + 1)
    for number, (name, times) in enumerate(bars.items()):
        axis.bar(places + width * (number + 0.5) - 0.4, times, width, color=PALETTE[number % len(PALETTE)], label=name)
    axis.bar(places + width * (len(bars) + 0.5) - 0.4, later, width, facecolor=PAPER, edgecolor=INK, label="later")
    axis.set_yscale("log")
    axis.set_xticks(places, list(frame.index), rotation=60, ha="right", fontsize=7)
    name_axes(axis, "", "ms")
    legend_above(axis, 4)
    return figure


def gpu_findings(e: GpuStartEvidence, *_: object) -> tuple[str, ...]:
    """Say what a start is made of, and what could not be planned or started."""
    told = []
    own = e.counted[(e.counted["way"] == OPTIMAL) & (e.counted["state"] == CACHED)]
    if len(own):
        opened = own[["library_ms", "context_ms"]].median()
        told.append(
            f"Loading the driver takes {opened['library_ms']:.0f} ms and opening the device {opened['context_ms']:.1f} ms, "
            "once a process, which no start below counts."
        )
    if "protocol" in e.starts.columns:
        earlier = e.starts[e.starts["protocol"] != GPU_PROTOCOL.name]
        for name, rows in earlier.groupby("protocol"):
            told.append(f"By the earlier protocol {name} were started: {', '.join(dict.fromkeys(rows['model']))}.")
    failed = e.starts[e.starts["reason"] != ""].drop_duplicates(["model", "way", "reason"])
    for model, way, why in failed[["model", "way", "reason"]].astype(str).to_numpy().tolist():
        told.append(f"{model}{f' ({way})' if way else ''}: {why}.")
    return tuple(told)


def _grade(e: GpuStartEvidence) -> Graded | None:
    """Return the grade of the figures, by what the same start took in turn, again and again."""
    own = e.counted.sort_values("repeat")
    before = own.groupby(["model", "way", "state"])["cold_ms"].shift()
    return graded(e.environment, Repeats(own["cold_ms"] / before, "starts and the same ones before"))


GPU_TABLES: Mapping[str, TableSpec[GpuStartEvidence]] = registry(
    TableSpec("cold_gpu_beside", "Cold starts on the GPU", _beside, ("starts",)),
    TableSpec("cold_gpu_plans", "Storage and planning on the GPU", _planning, ("plans.predicted_ms",)),
)
GPU_FIGURES: Mapping[str, FigureSpec[GpuStartEvidence]] = registry(
    FigureSpec("cold_gpu_ways", "Cold starts on the GPU by technique", _ways, ("starts",))
)
#: Of the whole chapter.
TABLES: Mapping[str, TableSpec[Any]] = MappingProxyType({**COLD_TABLES, **GPU_TABLES})
FIGURES: Mapping[str, FigureSpec[Any]] = MappingProxyType({**COLD_FIGURES, **GPU_FIGURES})
GPU_REPORT = ChapterReport(
    id="cold-gpu",
    title="Cold start on a GPU",
    about=_ABOUT,
    headline="cold_gpu_ways",
    unfolded=("cold_gpu_beside",),
    cards=_CARDS,
    bars=lambda _: BARS,
    tables=GPU_TABLES,
    figures=GPU_FIGURES,
    metrics=gpu_metrics,
    findings=gpu_findings,
    grade=_grade,
    evidence=GpuStartEvidence,
    frames={
        "starts": ("model", "way", "stock", "state", "repeat", "cold_ms", "warm_ms", "error", "reason"),
        "plans": ("model", "way", "predicted_ms", "bound_ms", "planning_s"),
    },
)
#: The stage `cold_gpu_tables`.
write = GPU_REPORT.write
