"""What the stage `partition_eop` measured; EOP's tables and figures of it, each beside the paper's values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.partition import paper
from edgeplan.chapters.partition.eop.ways import CONDITION_1, CONDITION_2, CPU_WAY, EOP, EQUAL, FIXED, GPU_WAY, OURS, WAYS
from edgeplan.chapters.partition.evaluation.tables import beside
from edgeplan.chapters.partition.settings import SLOWER
from edgeplan.planning.partition.eop import Pattern, fits, fitted_pattern
from edgeplan.reporting.chapter_report import FigureSpec, NotMeasuredError, TableSpec, registry
from edgeplan.reporting.drawing import INK, PALETTE, canvas, legend, log_scale, name_axes
from edgeplan.reporting.metrics import geomean

_PATTERN_COLUMNS = {"error": "error over mean time", "paper": "paper's text", "paper_error": "error of the paper's"}
#: The paper's names of models, and its groups of them in Table 5; all others are CNNs.
_FAMILIES = ("inception_v3", "mobilenetv1", "yolov3", "bert", "lstm", "gru")
_GROUPS = {"bert": "Transformers", "lstm": "RNNs", "gru": "RNNs"}
_NONE = (np.nan, np.nan, "")
_US_PER_MS = 1e3
#: Operators and dimensions that are drawn, in the order of the paper's figure 4.
_DRAWN = (("conv2d", "batch"), ("conv2d", "HW"), ("dense", "HW1W2"), ("dense", "batch"), ("multiply", "HW"), ("split", "batch"))
_SHOWN = (CPU_WAY, GPU_WAY, EQUAL, FIXED, EOP, OURS)


@dataclass(frozen=True)
class EopEvidence:
    """Rows of the stage, as `stages.partition_eop.COLUMNS` names them.

    All but `sampled` are labelled with model, figure, setting and value; there is one row a model and way in `plans`, and one a
    key operator in `key`.
    """

    pair: str
    sampled: pd.DataFrame
    sweeps: pd.DataFrame
    plans: pd.DataFrame
    key: pd.DataFrame
    environment: Mapping[str, Any]

    @cached_property
    def own(self) -> pd.DataFrame:
        """Plans of the models themselves, those that ran."""
        return self.plans[(self.plans["figure"] == "") & self.plans["median_ms"].notna()]

    @cached_property
    def end_to_end(self) -> pd.DataFrame:
        """Models by way: median time in ms."""
        found = self.own.pivot_table(index="model", columns="way", values="median_ms", aggfunc="first", sort=False)
        return found.reindex(columns=list(WAYS))

    @cached_property
    def varied(self) -> pd.DataFrame:
        """Plans of the models of figures 9 and 10."""
        return self.plans[(self.plans["figure"] != "") & self.plans["median_ms"].notna()]

    @cached_property
    def tuned(self) -> pd.DataFrame:
        """Key operators of the models themselves, at EOP's ratio and at the best that was swept."""
        return self.key[(self.key["figure"] == "") & (self.key["grid_us"] > 0)]

    @cached_property
    def wholes(self) -> pd.DataFrame:
        """Steps whole on each processor, us: model, step, name, operator, cpu, gpu."""
        rows = self.sweeps[(self.sweeps["dimension"] == "") & (self.sweeps["figure"] == "")]
        keys = ["model", "step", "name", "operator"]
        cpu, gpu = (rows[rows["end"] == end].set_index(keys)[f"{side}_us"] for end, side in ((1, "cpu"), (0, "gpu")))
        return pd.DataFrame({"cpu_us": cpu, "gpu_us": gpu}).reset_index()

    @cached_property
    def patterns(self) -> pd.DataFrame:
        """Operators alone: operator, dimension, side, the fitted pattern, its error, and what the paper names."""
        rows = []
        measured = self.sampled[self.sampled["us"].notna()]
        for (operator, dimension, side), own in measured.groupby(["operator", "dimension", "side"], sort=False):
            pattern, every = _fitted(own), {p.name: p.error_ms for p in fits(*_samples(own))}
            named = paper.PATTERNS.get((str(operator), str(dimension), str(side)), "")
            mean_ms = float(own["us"].mean()) / _US_PER_MS
            others = every.get(named, float("nan")) / mean_ms
            rows.append([operator, dimension, side, pattern.name, pattern.error_ms / mean_ms, named, others])
        return pd.DataFrame(rows, columns=["operator", "dimension", "side", "pattern", "error", "paper", "paper_error"])

    @cached_property
    def best_single(self) -> pd.Series[float]:
        """Return the time of the better processor for each model, ms."""
        return self.end_to_end[["cpu", "gpu"]].min(axis=1)

    @cached_property
    def beside(self) -> pd.DataFrame:
        """By figure ("" of the models themselves) and model: our plan beside the processors alone and all cores."""
        times = self.plans.pivot_table(
            index=["figure", "model"], columns="way", values="median_ms", aggfunc="first", dropna=False, sort=False
        ).reindex(columns=list(WAYS))
        return beside(times.dropna(how="all")).reset_index()

    def of_figure(self, figure: str) -> pd.DataFrame:
        """Varied models of a figure by setting, value and way."""
        rows = self.varied[self.varied["figure"] == figure]
        rows = rows.assign(kind=rows["model"].str.split().str[0])
        found = rows.pivot_table(index=["kind", "setting", "value"], columns="way", values="median_ms", aggfunc="first")
        return found.reindex(columns=list(WAYS))

    def estimate(self, model: str) -> float:
        """EOP's AT of a model, ms."""
        rows = self.plans[(self.plans["model"] == model) & (self.plans["way"] == EOP)]
        return float(rows["predicted_ms"].iloc[0])


def _fitted(own: pd.DataFrame) -> Pattern:
    """The pattern of one operator over one dimension: sizes as shares of the largest."""
    return fitted_pattern(*_samples(own))


def _samples(own: pd.DataFrame) -> tuple[list[float], list[float]]:
    own = own.sort_values("size")
    return (own["size"] / own["size"].max()).tolist(), (own["us"] / _US_PER_MS).tolist()


def _family(model: object) -> str:
    """The paper's name of a model."""
    return next((name for name in _FAMILIES if str(model).startswith(name)), "")


def _of(e: EopEvidence, families: Iterable[str]) -> pd.DataFrame:
    """Return times by way of the models of some families."""
    return e.end_to_end[e.end_to_end.index.map(_family).isin(list(families))]


def _operators(e: EopEvidence) -> pd.DataFrame:
    """Table 1: subgraphs and operators of a model. Here operators are steps, with what is fused into them."""
    swept = e.sweeps[e.sweeps["figure"] == ""]
    splits, refused = (swept[swept[c] != ""].groupby("model")["step"].nunique() for c in ("dimension", "refused"))
    counts = {
        "split over some dimension": splits,
        "CPU only": refused,
        "key operators": e.key[e.key["figure"] == ""].groupby("model")["key_operators"].first(),
    }
    steps = e.wholes.groupby("model", sort=False).size()
    found = pd.DataFrame({"subgraphs": e.own.groupby("model")["subgraphs"].first(), "steps": steps, **counts}).reindex(
        steps.index
    )
    printed = [paper.KEY_OPERATORS.get(_family(model), _NONE[:2]) for model in found.index]
    return (
        found.fillna(dict.fromkeys(counts, 0.0))
        .assign(**{f"paper: {what}": [row[k] for row in printed] for k, what in enumerate(("subgraphs", "operators"))})
        .reset_index()
    )


def _workloads(e: EopEvidence) -> pd.DataFrame:
    """Table 3: what each model is, what its plans split, and why steps stay on the CPU."""
    rows = []
    for model, own in e.own.groupby("model", sort=False):
        swept = e.sweeps[(e.sweeps["model"] == model) & (e.sweeps["figure"] == "") & (e.sweeps["refused"] != "")]
        splits = own.set_index("way")["splits"]
        why = swept.drop_duplicates("step")["refused"].value_counts()
        row = {"model": model, "steps": int(own["steps"].iloc[0])}
        row |= {f"splits of {way}": splits.get(way, np.nan) for way in (EQUAL, EOP, OURS)}
        rows.append(row | {"steps on the CPU alone": "; ".join(f"{count} ({reason})" for reason, count in why.items())})
    return pd.DataFrame(rows)


def _cnns(e: EopEvidence) -> pd.DataFrame:
    """Table 4: equal, fixed and EOP, each as EOP estimates and as measured."""
    f = _of(e, paper.CNNS)
    if f.empty:
        raise NotMeasuredError("no network of images ran")
    times = f[[CPU_WAY, GPU_WAY, EQUAL, FIXED, EOP, OURS]].add_suffix("_ms")
    over: dict[str, Any] = {f"{way} over EOP": f[way] / f[EOP] for way in (EQUAL, FIXED)}
    found = times.assign(**{"estimated by EOP_ms": f.index.map(e.estimate), **over}).reset_index()
    printed = pd.DataFrame([*paper.CNNS.values()], columns=[f"{way}_ms" for way in (EQUAL, FIXED, EOP)])
    over = {f"{way} over EOP": printed[f"{way}_ms"] / printed[f"{EOP}_ms"] for way in (EQUAL, FIXED)}
    printed = printed.assign(model=[f"paper, estimated: {model}" for model in paper.CNNS], **over)
    return pd.concat([found, printed], ignore_index=True).round(3)


def _ratios(e: EopEvidence) -> pd.DataFrame:
    """Table 5: ratios and dimensions of key operators, and their time over that at the best ratio of all that were swept."""
    rows = e.tuned.assign(model=e.tuned["model"].map(_family), over=e.tuned["tuned_us"] / e.tuned["grid_us"])
    statistics: dict[str, Any] = {"operators": ("ratio", "size"), "cpu share, median": ("ratio", "median")}
    statistics |= {"least": ("ratio", "min"), "most": ("ratio", "max"), "time over the best ratio's": ("over", geomean)}
    found: pd.DataFrame = rows.groupby(["model", "operator", "dimension"], sort=False).agg(**statistics).reset_index()
    keys = zip(found["model"], found["operator"], strict=True)
    printed = [paper.RATIOS.get((_GROUPS.get(model, "CNNs"), operator), _NONE) for model, operator in keys]
    columns = {f"paper: {what}": [row[k] for row in printed] for k, what in enumerate(("cpu", "gpu", "dimension"))}
    return found.assign(dimension=found["dimension"].replace("", "whole"), **columns).round(3)


def _shares(e: EopEvidence) -> pd.DataFrame:
    """Figure 3: share of the CPU's time by operator, and speedups of the GPU, alone and with their spread."""
    f = e.wholes.assign(speedup=e.wholes["cpu_us"] / e.wholes["gpu_us"])
    share, found = "share of CPU time", f.groupby(["model", "operator"], sort=False)
    statistics: dict[str, Any] = {"steps": ("speedup", "size"), share: ("cpu_us", "sum")}
    statistics |= {"GPU speedup, median": ("speedup", "median"), "least": ("speedup", "min"), "most": ("speedup", "max")}
    table: pd.DataFrame = found.agg(**statistics).reset_index()
    table[share] /= table["model"].map(f.groupby("model")["cpu_us"].sum())
    return table.sort_values(["model", share], ascending=[True, False]).round(3)


def _patterns(e: EopEvidence) -> pd.DataFrame:
    """Figures 4 and 7: the pattern of least error of each operator alone, and which the paper's text names."""
    return e.patterns.rename(columns=_PATTERN_COLUMNS).round(3)


def _reduction(e: EopEvidence) -> pd.DataFrame:
    """Figure 8: every way to run every model, measured, and what EOP estimates; the mean over the models first."""
    f, single = e.end_to_end, e.best_single
    beside = e.beside[e.beside["figure"] == ""].set_index("model").reindex(f.index)
    faster = f[OURS].where(f[OURS] < f[EOP], f[EOP])
    found = pd.DataFrame(
        {
            "model": f.index,
            "ours over the best": beside["best"] / f[OURS],
            "best way": beside["way"],
            "ours over the better processor": single / f[OURS],
            "EOP over the better processor": single / f[EOP],
            **f.drop(columns=[CONDITION_1, CONDITION_2]).add_suffix("_ms"),
            "estimated by EOP_ms": f.index.map(e.estimate),
            "right plan": np.where(faster > single / SLOWER, "one processor", "both"),
        }
    )
    means = {name: geomean(found[name].dropna().to_numpy(float)) for name in found if " over " in str(name)}
    first = pd.DataFrame([{"model": f"all {len(found)} models, mean", **means}])
    return pd.concat([first, found], ignore_index=True)[list(found)].fillna({"best way": "", "right plan": ""}).round(4)


def _varied(e: EopEvidence) -> pd.DataFrame:
    """Figures 9 and 10: one setting of a model changed at a time, measured."""
    parts = [e.of_figure(figure).assign(figure=figure).reset_index() for figure in ("figure_09", "figure_10")]
    found = pd.concat(parts, ignore_index=True)
    times = found[[CPU_WAY, GPU_WAY, EQUAL, FIXED, EOP, OURS]]
    single = times[[CPU_WAY, GPU_WAY]].min(axis=1)
    over = {"EOP over the better one": single / found[EOP], "ours over the better one": single / found[OURS]}
    return pd.concat([found[["figure", "kind", "setting", "value"]], times.add_suffix("_ms")], axis=1).assign(**over).round(4)


def _mechanisms(e: EopEvidence) -> pd.DataFrame:
    """Figure 11: EOP's two mechanisms, alone and together, on BERT."""
    f, gain = _of(e, ["bert"]), "condition 3, gain"
    if f.empty:
        raise NotMeasuredError("BERT did not run")
    times = {f"condition {k}_ms": f[way] for k, way in enumerate((CONDITION_1, CONDITION_2, EOP), start=1)}
    found = pd.DataFrame({"model": f.index, **times, gain: e.best_single[f.index] / f[EOP]})
    printed = pd.DataFrame([{"model": "paper, estimated", gain: paper.BOTH_CONDITIONS}])
    return pd.concat([found, printed], ignore_index=True).round(4)


EOP_TABLES: Mapping[str, TableSpec[EopEvidence]] = registry(
    TableSpec("eop_figure_08", "Every way to run every model (Figure 8)", _reduction, ("end_to_end",)),
    TableSpec("eop_table_01", "Operators of the models (Table 1)", _operators, ("wholes",)),
    TableSpec("eop_table_03", "The models (Table 3)", _workloads, ("own",)),
    TableSpec("eop_table_04", "Networks of images (Table 4)", _cnns, ("end_to_end",)),
    TableSpec("eop_table_05", "Ratios of key operators (Table 5)", _ratios, ("tuned",)),
    TableSpec("eop_figure_03", "Shares of time and speedups (Figure 3)", _shares, ("wholes",)),
    TableSpec("eop_patterns", "Patterns (Figures 4 and 7)", _patterns, ("patterns",)),
    TableSpec("eop_varied", "Settings varied (Figures 9 and 10)", _varied, ("varied",)),
    TableSpec("eop_figure_11", "EOP's mechanisms (Figure 11)", _mechanisms, ("end_to_end",)),
)


def _by_operator(draw: Callable[[Any, pd.DataFrame], None], rows: pd.DataFrame, y: str) -> Any:
    figure, axes = canvas(10.0, 5.6, columns=3, rows=2)
    for axis, (operator, dimension) in zip(axes, _DRAWN, strict=True):
        draw(axis, rows[(rows["operator"] == operator) & (rows["dimension"] == dimension)])
        name_axes(axis, dimension, y, operator)
        if axis.lines:
            legend(axis)
    return figure


def _draw_patterns(e: EopEvidence) -> Any:
    """Figure 4: times of operators over sizes, and the patterns fitted to them."""

    def draw(axis: Any, rows: pd.DataFrame) -> None:
        for place, (side, own) in enumerate(rows.groupby("side")):
            pattern, most = _fitted(own), own["size"].max()
            x = np.linspace(own["size"].min(), most, 200)
            axis.plot(own["size"], own["us"], "o", markersize=3.5, color=PALETTE[place])
            label = f"{str(side).upper()}, {pattern.name}"
            axis.plot(x, pattern.at(x / most) * _US_PER_MS, color=PALETTE[place], linewidth=1.2, label=label)

    return _by_operator(draw, e.sampled[e.sampled["us"].notna()], "us")


def _draw_speedups(e: EopEvidence) -> Any:
    """Figure 7: speedup of the GPU over sizes, measured and by the patterns."""

    def draw(axis: Any, rows: pd.DataFrame) -> None:
        us = rows.pivot_table(index="size", columns="side", values="us", aggfunc="first").dropna()
        if {"cpu", "gpu"} <= set(us.columns) and len(us):
            sides = [rows[rows["side"] == side].dropna(subset="us") for side in ("cpu", "gpu")]
            share = us.index.to_numpy(float) / float(us.index.max())
            estimated = _fitted(sides[0]).at(share) / np.maximum(_fitted(sides[1]).at(share), 1e-9)
            axis.plot(us.index, us["cpu"] / us["gpu"], "o--", markersize=3.5, color=INK, label="measured")
            axis.plot(us.index, estimated, color=PALETTE[0], label="by the patterns")

    return _by_operator(draw, e.sampled, "CPU time / GPU time")


def _draw_reduction(e: EopEvidence) -> Any:
    """Figure 8: times of whole inferences by every way, over the better single processor's."""
    times, place, width = e.end_to_end, np.arange(len(e.end_to_end)), 1 / (len(_SHOWN) + 1)
    figure, (axis,) = canvas(10.0, 4.4)
    for k, way in enumerate(_SHOWN):
        at = place + (k - len(_SHOWN) / 2) * width
        axis.bar(at, times[way] / e.best_single, width, color=PALETTE[k % len(PALETTE)], label=way)
    axis.axhline(1.0, color=INK, linewidth=0.8)
    axis.set_xticks(place, [str(model).replace("_", "\n") for model in times.index])
    log_scale(axis)
    name_axes(axis, "", "time over the better processor's")
    legend(axis, 4)
    return figure


def _draw_settings(e: EopEvidence) -> Any:
    """Figure 9: recurrent layers with one setting changed at a time."""
    found = e.of_figure("figure_09").reset_index()
    if found.empty:
        raise NotMeasuredError("settings were not varied")
    names = list(dict.fromkeys(found["setting"]))
    figure, axes = canvas(10.0, 3.6, columns=len(names))
    for axis, name in zip(axes, names, strict=True):
        for place, way in enumerate(_SHOWN):
            for style, kind in (("-", "LSTM"), ("--", "GRU")):
                own = found[(found["setting"] == name) & (found["kind"] == kind)]
                axis.plot(own["value"], own[way], style, color=PALETTE[place % len(PALETTE)], label=f"{kind}, {way}")
        name_axes(axis, name, "ms")
    legend(axes[-1], beside=True)
    return figure


EOP_FIGURES: Mapping[str, FigureSpec[EopEvidence]] = registry(
    FigureSpec("eop_reduction", "Every way to run every model (Figure 8)", _draw_reduction, ("end_to_end",)),
    FigureSpec("eop_figure_04", "Patterns (Figure 4)", _draw_patterns, ("sampled",)),
    FigureSpec("eop_figure_07", "Speedups of operators (Figure 7)", _draw_speedups, ("sampled",)),
    FigureSpec("eop_figure_09", "Settings varied (Figure 9)", _draw_settings, ("varied",)),
)
