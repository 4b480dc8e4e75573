"""Builds the chapter's page on predictions: headline figure, cards, figures against bars, findings, figures and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper
from edgeplan.chapters.prediction.evaluation.tables import (
    PUBLISHED,
    TABLES,
    WITHIN_10,
    Evidence,
    baselines,
    kernel_minutes,
    label,
)
from edgeplan.chapters.prediction.whole_models import APART_SECONDS
from edgeplan.reporting.bars import Bar, Graded, Repeats, graded
from edgeplan.reporting.chapter_report import ChapterReport, FigureSpec, NotMeasuredError, registry
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
from edgeplan.reporting.metrics import (
    ROUNDING,
    Estimate,
    by_group,
    coverage,
    estimate,
    figures_of_merit,
    relative_errors,
    relative_width,
    within,
)
from edgeplan.reporting.page import CardOf

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


Figure = Callable[[Evidence], float | Estimate]

_BARS = (
    Bar("prediction.within_10pct", "whole models as they ran within 10 %", low=0.96, aim=">= 99 %"),
    Bar("prediction.within_5pct", "whole models as they ran within 5 %", low=0.70, aim=">= 80 %"),
    Bar("measuring.kernel_minutes", "kernel measuring time (min)", high=20, aim="<= 10"),
    Bar("fusion.precision", "fusion rules: precision", low=0.95, aim="100 %"),
    Bar("fusion.recall", "fusion rules: recall", low=0.95, aim="100 %"),
    Bar("interval.coverage_90", "interval coverage at 90 % nominal", low=0.85, high=0.95),
    Bar("speed.predict_process_s", "edgeplan predict, whole process (s)", high=1.5, aim="<= 1"),
    Bar("speed.batch_26000_s", "26,000 predictions (s)", high=30, aim="<= 15"),
)
_WITHIN_10_BY_DEVICE: Mapping[str, float] = MappingProxyType({"cpu-openvino": 0.95, "cpu-onednn": 0.92})
_SHARES = ("prediction.within", "fusion.", "interval.coverage")
_ABOUT = (
    "The latency of whole models, predicted as the sum of their kernels, none of which ran as part of these models. The paper "
    "(nn-Meter, MobiSys 2021) measured a phone's CPU and GPU and a vision processor, so errors compare, latencies do not."
)
#: The table that belongs to a stage of its own, and to a page of its own.
TRANSFERRED = "table_11"


def bars(device: str) -> tuple[Bar, ...]:
    """Return the bars of a device, one for each figure that has one."""
    low = _WITHIN_10_BY_DEVICE.get(device, _BARS[0].low)
    return (replace(_BARS[0], low=low), *_BARS[1:])


def _near(measured: str, predicted: str, percent: int) -> Figure:
    """Return a figure of merit: the share of models whose prediction misses a time by so many percent at most."""

    def found(evidence: Evidence) -> Estimate:
        frame = evidence.evaluated(measured, predicted)
        return estimate(np.mean, np.abs(relative_errors(frame[measured], frame[predicted])) <= percent / 100 + ROUNDING)

    return found


def _of_models(statistic: Callable[..., float], *columns: str) -> Figure:
    return lambda e: statistic(*(e.evaluated(*columns)[column] for column in columns))


def _rules(figure: int) -> Figure:
    """Return a figure of merit: precision (0) or recall (1) of the rules, without the edges at reshapes."""

    def found(evidence: Evidence) -> float:
        rows = evidence.verification.astype({"bn_folding": bool, "reshaping": bool})
        counted = rows[~rows["bn_folding"] & ~rows["reshaping"]]
        if not (counted[["fused_by_engine", "fused_by_rules"]] > 0).to_numpy().any():
            raise NotMeasuredError("nothing fuses")
        return averages(rows)[figure]

    return found


#: The figures of merit; one whose inputs are missing is left out. Shares and relative errors are 0..1.
#: `fusion.*` leaves out edges at reshapes and batch-norm folding.
MERITS: Mapping[str, Figure] = MappingProxyType(
    {
        # as it ran; what the model takes at the machine's usual speed stands beside it, and how well that repeats
        "prediction.within_10pct": _near("measured_ms", "predicted_ms", 10),
        "prediction.within_5pct": _near("measured_ms", "predicted_ms", 5),
        "prediction.normalised_within_10pct": _near("normalised_ms", "predicted_ms", 10),
        "prediction.repeat_within_10pct": _near("normalised_ms", "repeat_ms", 10),
        "prediction.left_out_within_10pct": _of_models(partial(within, share=0.1), "measured_ms", "left_out_ms"),
        "measuring.kernel_minutes": lambda e: kernel_minutes(e.sampling, e.calibration),
        "fusion.precision": _rules(0),
        "fusion.recall": _rules(1),
        "interval.coverage_90": _of_models(coverage, "measured_ms", "low_ms", "high_ms"),
        "interval.width_90": _of_models(relative_width, "predicted_ms", "low_ms", "high_ms"),
        "speed.predict_process_s": lambda e: e.speed["predict_process_s"],
        "speed.batch_26000_s": lambda e: e.speed["batch_26000_s"],
    }
)


def metrics(evidence: Evidence) -> dict[str, float]:
    """Return the figures of merit, sorted by key."""
    return dict(sorted(figures_of_merit(MERITS, evidence).items()))


_ALL_MODELS = paper.printed("table_08", "family").loc["all"]
_CARDS = (
    CardOf(
        "predicts {} of the models within 10 %",
        "prediction.within_10pct",
        share=True,
        paper=", ".join(f"{_ALL_MODELS[f'paper {device}: within 10 % (%)']:g} % ({device})" for device in ("CPU", "VPU")),
    ),
    CardOf(
        "measured twice, {} of the same models are within 10 %",
        "prediction.repeat_within_10pct",
        share=True,
        paper="not printed",
        further=True,
    ),
    CardOf("has {} of the measurements in its 90 % intervals", "interval.coverage_90", share=True, paper="not printed"),
    CardOf(
        "needs {} of measuring kernels",
        "measuring.kernel_minutes",
        "min",
        paper=f"{paper.printed('table_12')['minutes'][0] / paper.MINUTES_PER_DAY:g} days (CPU)",
    ),
)


def machine_grade(models: pd.DataFrame, environment: Mapping[str, Any]) -> Graded | None:
    """Grade the figures by models measured again: minutes later (`APART_SECONDS`), where the rows have some that were."""
    ratios = models["repeat_ms"] / models["normalised_ms"]
    later = Repeats(ratios.where(models["repeat_gap_s"] >= APART_SECONDS), "models and the same ones minutes later")
    if later.spread() is not None:
        return graded(environment, later)
    seconds = models["repeat_gap_s"][ratios.notna()].median()
    return graded(environment, Repeats(ratios, f"models and the same ones {seconds:.0f} s later"))


PREDICTION_REPORT = ChapterReport(
    id="prediction",
    title="Latency prediction",
    about=_ABOUT,
    headline="figure_09",
    unfolded=("table_08",),
    cards=_CARDS,
    bars=lambda evidence: bars(evidence.device),
    shares=_SHARES,
    tables={name: spec for name, spec in TABLES.items() if name != TRANSFERRED},
    figures=FIGURES,
    metrics=metrics,
    findings=lambda evidence, *_: (evidence.speed_told,) if evidence.speed_told else (),
    grade=lambda evidence: machine_grade(evidence.models, evidence.environment),
)


def averages(verification: pd.DataFrame) -> tuple[float, float]:
    """Return precision and recall, macro-averaged over pairs and connections, batch-norm folding and reshapes apart.

    Precision is averaged over the pairs that the rules fuse somewhere, recall over those that the engine fuses somewhere: a
    pair that only the rules fuse counts with precision 0, one that only the engine fuses with recall 0.
    """
    seen = verification[~verification.bn_folding & ~verification.reshaping]
    claimed, real = seen[seen.fused_by_rules > 0], seen[seen.fused_by_engine > 0]
    return (float(claimed.precision.mean()) if len(claimed) else 1.0, float(real.recall.mean()) if len(real) else 1.0)
