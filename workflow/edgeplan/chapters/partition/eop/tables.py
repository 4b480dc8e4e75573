"""EOP's tables, and those behind its figures, each beside the paper's values and what whole inferences took."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.partition.eop import paper
from edgeplan.chapters.partition.eop.evidence import EopEvidence, fitted
from edgeplan.chapters.partition.eop.ways import CONDITION_1, CONDITION_2, CPU_WAY, EOP, EQUAL, FIXED, GPU_WAY, OURS, WAYS
from edgeplan.chapters.partition.names import SLOWER
from edgeplan.reporting.chapter_report import FigureSpec, NotMeasuredError, TableSpec, registry
from edgeplan.reporting.drawing import INK, PALETTE, canvas, legend, log_scale, name_axes
from edgeplan.reporting.metrics import geomean

_RECURRENT = ("lstm", "gru")


_PATTERN_COLUMNS = {"error": "error over mean time", "paper": "paper's text", "paper_error": "error of the paper's"}


def _family(model: str) -> str:
    """The paper's name of a model."""
    return next((name for name in ("inception_v3", "mobilenetv1", "yolov3", "bert", *_RECURRENT) if model.startswith(name)), "")


def operators(e: EopEvidence) -> pd.DataFrame:
    """Table 1: subgraphs and operators of a model. Here operators are steps, with what is fused into them."""
    subgraphs_of = e.own.groupby("model")["subgraphs"].first()
    rows, keys = [], e.key[e.key["figure"] == ""].groupby("model")["key_operators"].first()
    for model, own in e.wholes.groupby("model", sort=False):
        swept = e.sweeps[(e.sweeps["model"] == model) & (e.sweeps["figure"] == "")]
        splits = swept[swept["dimension"] != ""]
        subgraphs, printed = paper.OPERATORS.get(_family(str(model)), (np.nan, np.nan))
        refused = swept[swept["refused"] != ""]
        rows.append(
            {
                "model": model,
                "subgraphs": subgraphs_of.get(model, np.nan),
                "steps": len(own),
                "split over some dimension": splits["step"].nunique(),
                "CPU only": refused["step"].nunique(),
                "key operators": keys.get(model, 0.0),
                "paper: subgraphs": subgraphs,
                "paper: operators": printed,
            }
        )
    return pd.DataFrame(rows)


def workloads(e: EopEvidence) -> pd.DataFrame:
    """Table 3: what each model is, what its plans split, and why steps stay on the CPU."""
    rows = []
    for model, own in e.own.groupby("model", sort=False):
        swept = e.sweeps[(e.sweeps["model"] == model) & (e.sweeps["figure"] == "") & (e.sweeps["refused"] != "")]
        splits = own.set_index("way")["splits"]
        why = swept.drop_duplicates("step")["refused"].value_counts()
        rows.append(
            {
                "model": model,
                "steps": int(own["steps"].iloc[0]),
                **{f"splits of {way}": splits.get(way, np.nan) for way in (EQUAL, EOP, OURS)},
                "steps on the CPU alone": "; ".join(f"{count} ({reason})" for reason, count in why.items()),
            }
        )
    return pd.DataFrame(rows)


def cnns(e: EopEvidence) -> pd.DataFrame:
    """Table 4: equal, fixed and EOP, each as EOP estimates and as measured."""
    rows = [_cnn(e, str(model)) for model in e.end_to_end.index if _family(str(model)) in paper.CNNS]
    if not rows:
        raise NotMeasuredError("no network of images ran")
    for model, (equal, fixed, tuned) in paper.CNNS.items():
        printed = {f"{EQUAL}_ms": equal, f"{FIXED}_ms": fixed, f"{EOP}_ms": tuned, "equal over EOP": equal / tuned}
        rows.append({"model": f"paper, estimated: {model}", **printed, "fixed over EOP": fixed / tuned})
    return pd.DataFrame(rows).round(3)


def _cnn(e: EopEvidence, model: str) -> dict[str, object]:
    times = e.end_to_end.loc[model]
    found: dict[str, object] = {"model": model}
    found |= {f"{way}_ms": times.get(way, np.nan) for way in (CPU_WAY, GPU_WAY, EQUAL, FIXED, EOP, OURS)}
    found |= {"estimated by EOP_ms": e.estimate(model)}
    return found | {f"{name} over EOP": times[way] / times[EOP] for name, way in (("equal", EQUAL), ("fixed", FIXED))}


def ratios(e: EopEvidence) -> pd.DataFrame:
    """Table 5: ratios and dimensions of key operators, and their time over that at the best ratio of all that were swept."""
    rows = e.tuned.assign(kind=e.tuned["model"].map(_family), over=e.tuned["tuned_us"] / e.tuned["grid_us"])
    found = []
    for (kind, operator, dimension), own in rows.groupby(["kind", "operator", "dimension"], sort=False):
        group = "Transformers" if kind == "bert" else "RNNs" if kind in _RECURRENT else "CNNs"
        share, rest, over = paper.RATIOS.get((group, str(operator)), (np.nan, np.nan, ""))
        found.append(
            {
                "model": kind,
                "operator": operator,
                "dimension": dimension or "whole",
                "operators": len(own),
                "cpu share, median": own["ratio"].median(),
                "least": own["ratio"].min(),
                "most": own["ratio"].max(),
                "time over the best ratio's": float(np.exp(np.log(own["over"]).mean())),
                "paper: cpu": share,
                "paper: gpu": rest,
                "paper: dimension": over,
            }
        )
    return pd.DataFrame(found).round(3)


def shares(e: EopEvidence) -> pd.DataFrame:
    """Figure 3: share of the CPU's time by operator, and speedups of the GPU, alone and with their spread."""
    rows = []
    for (model, operator), own in e.wholes.groupby(["model", "operator"], sort=False):
        whole = e.wholes.loc[e.wholes["model"] == model, "cpu_us"].sum()
        speedup = own["cpu_us"] / own["gpu_us"]
        rows.append(
            {
                "model": model,
                "operator": operator,
                "steps": len(own),
                "share of CPU time": own["cpu_us"].sum() / whole,
                "GPU speedup, median": speedup.median(),
                "least": speedup.min(),
                "most": speedup.max(),
            }
        )
    return pd.DataFrame(rows).sort_values(["model", "share of CPU time"], ascending=[True, False]).round(3)


def patterns(e: EopEvidence) -> pd.DataFrame:
    """Figures 4 and 7: the pattern of least error of each operator alone, and which the paper's text names."""
    return e.patterns.rename(columns=_PATTERN_COLUMNS).round(3)


def reduction(e: EopEvidence) -> pd.DataFrame:
    """Figure 8: every way to run every model, measured, and what EOP estimates; the mean over the models first."""
    beside = e.beside[e.beside["figure"] == ""].set_index("model")
    rows = []
    for name, times in e.end_to_end.iterrows():
        model, single = str(name), times[[CPU_WAY, GPU_WAY]].min()
        own = {f"{way}_ms": times.get(way, np.nan) for way in WAYS if way not in (CONDITION_1, CONDITION_2)}
        over = {"ours over the best": beside["best"][model] / times[OURS], "best way": beside["way"][model]}
        gains = {"ours over the better processor": single / times[OURS], "EOP over the better processor": single / times[EOP]}
        right = "one processor" if min(times[EOP], times[OURS]) > single / SLOWER else "both"
        rows.append(
            {"model": model, **over, **gains, **own, "estimated by EOP_ms": e.estimate(str(model)), "right plan": right}
        )
    found = pd.DataFrame(rows)
    means = {name: geomean(found[name].dropna().to_numpy(float)) for name in found if " over " in str(name)}
    first = pd.DataFrame([{"model": f"all {len(found)} models, mean", **means}])
    return pd.concat([first, found], ignore_index=True)[list(found)].fillna({"best way": "", "right plan": ""}).round(4)


def varied(e: EopEvidence) -> pd.DataFrame:
    """Figures 9 and 10: one setting of a model changed at a time, measured."""
    parts = [e.of_figure(figure).assign(figure=figure).reset_index() for figure in ("figure_09", "figure_10")]
    found = pd.concat(parts, ignore_index=True)
    ways = [way for way in (CPU_WAY, GPU_WAY, EQUAL, FIXED, EOP, OURS) if way in found.columns]
    single = found[[CPU_WAY, GPU_WAY]].min(axis=1)
    table = found[["figure", "kind", "setting", "value", *ways]].rename(columns={way: f"{way}_ms" for way in ways})
    return table.assign(
        **{"EOP over the better one": single / found[EOP], "ours over the better one": single / found[OURS]}
    ).round(4)


def mechanisms(e: EopEvidence) -> pd.DataFrame:
    """Figure 11: EOP's two mechanisms, alone and together, on BERT."""
    rows = []
    for model, times in e.end_to_end.iterrows():
        if _family(str(model)) == "bert":
            single = times[[CPU_WAY, GPU_WAY]].min()
            own = {"condition 1": times[CONDITION_1], "condition 2": times[CONDITION_2], "condition 3": times[EOP]}
            rows.append(
                {"model": model, **{f"{name}_ms": ms for name, ms in own.items()}, "condition 3, gain": single / times[EOP]}
            )
    if not rows:
        raise NotMeasuredError("BERT did not run")
    return pd.DataFrame([*rows, {"model": "paper, estimated", "condition 3, gain": paper.BOTH_CONDITIONS}]).round(4)


EOP_TABLES: Mapping[str, TableSpec[EopEvidence]] = registry(
    TableSpec("eop_figure_08", "Every way to run every model (Figure 8)", reduction, ("end_to_end",)),
    TableSpec("eop_table_01", "Operators of the models (Table 1)", operators, ("wholes",)),
    TableSpec("eop_table_03", "The models (Table 3)", workloads, ("own",)),
    TableSpec("eop_table_04", "Networks of images (Table 4)", cnns, ("end_to_end",)),
    TableSpec("eop_table_05", "Ratios of key operators (Table 5)", ratios, ("tuned",)),
    TableSpec("eop_figure_03", "Shares of time and speedups (Figure 3)", shares, ("wholes",)),
    TableSpec("eop_patterns", "Patterns (Figures 4 and 7)", patterns, ("patterns",)),
    TableSpec("eop_varied", "Settings varied (Figures 9 and 10)", varied, ("varied",)),
    TableSpec("eop_figure_11", "EOP's mechanisms (Figure 11)", mechanisms, ("end_to_end",)),
)


_MS = 1e3
#: Operators and dimensions that are drawn, in the order of the paper's figure 4.
_DRAWN = (("conv2d", "batch"), ("conv2d", "HW"), ("dense", "HW1W2"), ("dense", "batch"), ("multiply", "HW"), ("split", "batch"))
_SHOWN = (CPU_WAY, GPU_WAY, EQUAL, FIXED, EOP, OURS)


def fitted_patterns(e: EopEvidence) -> Any:
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


def draw_reduction(e: EopEvidence) -> Any:
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


EOP_FIGURES: Mapping[str, FigureSpec[EopEvidence]] = registry(
    FigureSpec("eop_reduction", "Every way to run every model (Figure 8)", draw_reduction, ("end_to_end",)),
    FigureSpec("eop_figure_04", "Patterns (Figure 4)", fitted_patterns, ("sampled",)),
    FigureSpec("eop_figure_07", "Speedups of operators (Figure 7)", speedups, ("sampled",)),
    FigureSpec("eop_figure_09", "Settings varied (Figure 9)", settings, ("varied",)),
)
