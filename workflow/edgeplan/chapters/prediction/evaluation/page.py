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
from edgeplan.chapters.prediction.evaluation.figures import FIGURES
from edgeplan.chapters.prediction.evaluation.tables import TABLES, Evidence, kernel_minutes
from edgeplan.chapters.prediction.whole_models import APART_SECONDS
from edgeplan.reporting.bars import Bar, Graded, Repeats, graded
from edgeplan.reporting.chapter_report import ChapterReport, NotMeasuredError
from edgeplan.reporting.metrics import (
    ROUNDING,
    Estimate,
    coverage,
    estimate,
    figures_of_merit,
    relative_errors,
    relative_width,
    within,
)
from edgeplan.reporting.page import CardOf

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


def later_repeats(models: pd.DataFrame) -> Repeats:
    """Return the ratios of models that were measured again at least `APART_SECONDS` later."""
    ratios = models["repeat_ms"] / models["normalised_ms"]
    return Repeats(ratios.where(models["repeat_gap_s"] >= APART_SECONDS), "models and the same ones minutes later")


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
    """Grade the figures by models measured again: minutes later, where the rows have some that were."""
    later = later_repeats(models)
    if later.spread() is not None:
        return graded(environment, later)
    ratios = models["repeat_ms"] / models["normalised_ms"]
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
