"""Computes the flat figures of merit of predictions, which experiments are compared by, and their bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction.evaluation.evidence import Evidence
from edgeplan.chapters.prediction.evaluation.tables_prediction import within_estimate
from edgeplan.chapters.prediction.evaluation.tables_sampling import kernel_minutes
from edgeplan.chapters.prediction.fusion.verification import averages
from edgeplan.chapters.prediction.whole_models import APART_SECONDS
from edgeplan.reporting.bars import Bar
from edgeplan.reporting.estimates import Estimate, figures_of_merit
from edgeplan.reporting.grade import Repeats, of_spread
from edgeplan.reporting.kit import NotMeasuredError
from edgeplan.reporting.metrics import FloatArray, coverage, relative_width, within

#: Samplers that are compared; figures are named in this order.
SAMPLERS = ("adaptive", "random", "prior")


Figure = Callable[[Evidence], float | Estimate]

_BARS = (
    Bar("prediction.within_10pct", "whole models within 10 %", low=0.96, aim=">= 99 %"),
    Bar("prediction.within_5pct", "whole models within 5 %", low=0.75, aim=">= 90 %"),
    Bar("prediction.plain_sum_within_10pct", "within 10 % by plain sums, without factors of kinds", low=0.96, aim=">= 99 %"),
    Bar("prediction.plain_sum_within_5pct", "within 5 % by plain sums, without factors of kinds", low=0.75, aim=">= 90 %"),
    Bar("prediction.models", "models evaluated", low=260),
    Bar("measuring.kernel_minutes", "kernel measuring time (min)", high=20, aim="<= 10"),
    Bar("fusion.precision", "fusion rules: precision, without reshapes", low=0.95, aim="100 %"),
    Bar("fusion.recall", "fusion rules: recall, without reshapes", low=0.95, aim="100 %"),
    Bar("fusion.precision_all", "fusion rules: precision, with reshapes", low=0.95, aim="100 %"),
    Bar("fusion.recall_all", "fusion rules: recall, with reshapes", low=0.95, aim="100 %"),
    Bar("interval.coverage_90", "interval coverage at 90 % nominal", low=0.85, high=0.95),
    Bar("speed.predict_process_s", "edgeplan predict, whole process (s)", high=2, aim="<= 1"),
    Bar("speed.predict_call_ms", "edgeplan predict, call (ms)", high=50, aim="<= 20"),
    Bar("speed.batch_26000_s", "26,000 predictions (s)", high=60, aim="<= 10"),
    Bar("speed.tables_26000_s", "specs and kernel tables of 26,000 models (s)", high=300),
)
_WITHIN_10_BY_DEVICE: Mapping[str, float] = MappingProxyType({"cpu-openvino": 0.95})


def sampling_bars(metrics: Mapping[str, float]) -> list[tuple[str, list[float]]]:
    """Return the comparison of samplers on each set of frozen labels: its title, and the errors of `SAMPLERS`, ours first.

    Both sets are shown, since the verdict may differ between them. A set without all errors is left out.
    """
    found = []
    sets = {"": f"labels of at least {metrics.get('sampling.resolved_us', math.nan):g} us", "_all": "all labels"}
    for suffix, which in sets.items():
        keys = [f"sampling.{name}_error{suffix}" for name in SAMPLERS]
        if all(key in metrics for key in keys):
            found.append((f"conv RMSPE on {which} of the frozen set: {', '.join(SAMPLERS)}", [metrics[key] for key in keys]))
    return found


def bars(device: str) -> tuple[Bar, ...]:
    """Return the bars of a device, one for each figure that has one."""
    low = _WITHIN_10_BY_DEVICE.get(device)
    if low is None:
        return _BARS
    return tuple(replace(bar, low=low) if bar.key.endswith("within_10pct") else bar for bar in _BARS)


def _within(column: str, percent: int) -> Figure:
    return lambda e: within(*_pair(e, column), percent / 100)


def _within_by_chance(column: str, percent: int) -> Figure:
    return lambda e: within_estimate(e.evaluated(column), column, percent / 100)


def _pair(evidence: Evidence, column: str) -> tuple[FloatArray, FloatArray]:
    frame = evidence.evaluated("measured_ms", column)
    return frame["measured_ms"].to_numpy(), frame[column].to_numpy()


def _of_models(statistic: Callable[..., float], *columns: str) -> Figure:
    return lambda e: statistic(*(e.evaluated(*columns)[column] for column in columns))


def _rules(figure: int, *, reshapes: bool) -> Figure:
    """Return a figure of merit: precision (0) or recall (1) of the rules, with or without the edges at reshapes."""

    def found(evidence: Evidence) -> float:
        rows = evidence.verification.astype({"bn_folding": bool, "reshaping": bool})
        rows = rows.assign(reshaping=False) if reshapes else rows
        counted = rows[~rows["bn_folding"] & ~rows["reshaping"]]
        if not (counted[["fused_by_engine", "fused_by_rules"]] > 0).to_numpy().any():
            raise NotMeasuredError("nothing fuses")
        return averages(rows)[figure]

    return found


def _sampled(sampler: str, suffix: str) -> Figure:
    return lambda e: float(e.samplers.set_index("sampler")[f"rmspe{suffix}"][sampler]) / 100


def _speed(name: str) -> Figure:
    return lambda e: e.speed[name]


def _repeat_deviation(evidence: Evidence) -> float:
    """Return the median by which models differ from the same ones minutes later."""
    return _spread(evidence)[0]


def _spread(evidence: Evidence) -> tuple[float, float]:
    found = later_repeats(evidence.evaluated("repeat_ms", "repeat_gap_s")).spread()
    if found is None:
        raise NotMeasuredError("too few models were measured again minutes later")
    return found


def later_repeats(models: pd.DataFrame) -> Repeats:
    """Return the ratios of models that were measured again at least `APART_SECONDS` later."""
    ratios = models["repeat_ms"] / models["measured_ms"]
    return Repeats(ratios.where(models["repeat_gap_s"] >= APART_SECONDS), "models and the same ones minutes later")


#: The figures of merit; one whose inputs are missing is left out. Shares and relative errors are 0..1.
#: `fusion.*` leaves out edges at reshapes, `fusion.*_all` does not; batch-norm folding is in neither.
#: `measuring.noise_*` is over the evaluated models: half the range of the normalised blocks of one, relative to their median.
#: `sampling.*_error` is the conv RMSPE on frozen labels of at least `sampling.resolved_us` us, `sampling.*_error_all` on all.
MERITS: Mapping[str, Figure] = MappingProxyType(
    {
        **{f"prediction.within_{percent}pct": _within_by_chance("predicted_ms", percent) for percent in (10, 5)},
        **{f"prediction.repeat_within_{percent}pct": _within_by_chance("repeat_ms", percent) for percent in (10, 5)},
        **{f"prediction.plain_sum_within_{percent}pct": _within("plain_sum_ms", percent) for percent in (10, 5)},
        **{f"prediction.left_out_within_{percent}pct": _within("left_out_ms", percent) for percent in (10, 5)},
        "prediction.models": lambda e: len(e.evaluated("predicted_ms")),
        "measuring.kernel_minutes": lambda e: kernel_minutes(e.sampling, e.calibration),
        "measuring.noise_median": _of_models(np.median, "noise"),
        "measuring.noise_max": _of_models(np.max, "noise"),
        "measuring.repeat_deviation": _repeat_deviation,
        "sampling.resolved_us": lambda e: float(e.samplers["resolved_us"].iloc[0]),
        **{f"sampling.{name}_error{suffix}": _sampled(name, suffix) for suffix in ("", "_all") for name in SAMPLERS},
        "fusion.precision": _rules(0, reshapes=False),
        "fusion.recall": _rules(1, reshapes=False),
        "fusion.precision_all": _rules(0, reshapes=True),
        "fusion.recall_all": _rules(1, reshapes=True),
        "interval.coverage_90": _of_models(coverage, "measured_ms", "low_ms", "high_ms"),
        "interval.width_90": _of_models(relative_width, "predicted_ms", "low_ms", "high_ms"),
        **{
            f"speed.{name}": _speed(name)
            for name in ("predict_process_s", "predict_call_ms", "batch_26000_s", "tables_26000_s")
        },
    }
)


def metrics(evidence: Evidence) -> dict[str, Any]:
    """Return the figures of merit, sorted by key, with `measuring.grade`, the machine's grade (good, fair or poor)."""
    found: dict[str, Any] = figures_of_merit(MERITS, evidence)
    with suppress(NotMeasuredError):
        found["measuring.grade"] = of_spread(*_spread(evidence))
    return dict(sorted(found.items()))
