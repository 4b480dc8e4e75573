"""Computes whole-model intervals, calibrated on held-out subjects (split conformal prediction).

A subject is a carrier of about a dozen kernels. The relative error of its predicted sum, by models that saw none of its rows,
has a part all kernels share (clock, cache state) and a part of their own that averages out: its variance is taken to be
common^2 + single^2 / n, where n is the effective number of kernels, (sum of latencies)^2 / sum of squares. Both are fitted; the
conformal quantile of the scaled residuals makes up for what the formula misses.

The sum of a carrier's labels is its plain time by construction; that of a whole model is not, and errors of the two differ by
a factor that each engine has of its own. So the quantile, not the form, is then taken from whole models measured for that
(`with_quantile_of`).
"""

from __future__ import annotations

import logging

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.predictors.card import Interval
from edgeplan.predictors.labels import Labels
from edgeplan.support.lazy import lazily
from edgeplan.support.rounding import nine_digits, nine_digits_each

optimize, stats = lazily("scipy.optimize"), lazily("scipy.stats")  # training alone needs them

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float64]
#: So many frozen carriers calibrate the intervals on their own.
_CALIBRATING_CARRIERS = 30
_LEAST_SPREAD = 1e-4
_REWEIGHTED = 5
_TRIM = 0.98  # share of residuals that fit the two parts; the quantile sees all
#: Whole models below which nearly the largest score would be the conformal quantile, as wide as chance has it. With 26 models
#: of two devices, drawn 60 times, conformal intervals held 94 % of 260 others and were 0.45 and 0.19 wide, those by the spread
#: of the scores held 89 and 90 % at 0.35 and 0.17.
_FEW_MODELS = 50
_MOST_SPREADS = 3.0  # of the scores, by their median: what lies beyond counts as that
_NORMAL = 1.4826  # a normal spread over the median of absolute deviations


def held_out_sums(
    labels: Labels, frozen: pd.DataFrame, kept: npt.NDArray[np.int64], out_of_fold: Floats
) -> tuple[Floats, Floats]:
    """Return the log errors of held-out carriers' sums, which calibrate the intervals, and their effective numbers of kernels.

    They are those of the frozen carriers, which look like models and were never trained on; where these are too few, of all
    subjects trained on, out of fold.

    Args:
        labels: all rows (n).
        frozen: the frozen rows, indexed as `labels.frame`, with `predicted_us`.
        kept: rows trained on.
        out_of_fold: latency (us) of each row by a model that saw no row of its subject; NaN without (n,).

    Returns:
        As `sums_by_subject`.
    """
    place = labels.frame.index.get_indexer(frozen.index)
    if len(set(labels.group[place])) >= _CALIBRATING_CARRIERS:
        return sums_by_subject(labels.group[place], labels.latency[place], frozen["predicted_us"].to_numpy(float))
    return sums_by_subject(labels.group[kept], labels.latency[kept], out_of_fold[kept])


def sums_by_subject(group: npt.NDArray[np.int64], measured: Floats, predicted: Floats) -> tuple[Floats, Floats]:
    """Return log(measured / predicted) of each subject's sum, and its effective number of kernels (subjects,).

    Args:
        group: number of the subject of each kernel (n,).
        measured: latency of each kernel (n,).
        predicted: the same predicted, in the same unit; rows that are not finite are left out (n,).
    """
    keep = np.isfinite(measured) & np.isfinite(predicted)
    group, measured, predicted = group[keep], measured[keep], predicted[keep]
    count = np.bincount(group)
    here = count > 0
    total, guess = np.bincount(group, measured)[here], np.bincount(group, predicted)[here]
    return np.log(total / guess), guess**2 / np.bincount(group, predicted**2)[here]


def calibrate(residual: Floats, effective: Floats, nominal: float) -> Interval:
    """Fit an interval of the given coverage to errors of held-out models.

    Args:
        residual: log(measured / predicted) of held-out models (n,).
        effective: effective number of kernels of each model (n,).
        nominal: coverage, e.g. 0.9.

    Returns:
        The interval; without residuals one of no width.
    """
    if not len(residual):
        return Interval(nominal=nominal, common=_LEAST_SPREAD, single=0.0, quantile=0.0, subjects=0)
    squares = residual**2
    design = np.column_stack([np.ones(len(residual)), 1 / np.maximum(effective, 1.0)])
    common, single = 1.0, 0.0
    for _ in range(_REWEIGHTED):
        # Squares of small variances are known better: weigh them by the variance last found. Outliers are told by the same
        # measure, or mostly models of few kernels would be left out.
        variance = np.maximum(design[:, 0] * common**2 + design[:, 1] * single**2, _LEAST_SPREAD**2)
        usual = squares / variance <= np.quantile(squares / variance, _TRIM)
        trust = 1 / variance[usual]
        solution = optimize.nnls(design[usual] * trust[:, None], squares[usual] * trust)[0]
        common, single = nine_digits_each(np.sqrt(solution))
    common = max(float(common), _LEAST_SPREAD)
    fitted = Interval(nominal=nominal, common=common, single=float(single), quantile=1.0, subjects=len(residual))
    return fitted.model_copy(update={"quantile": _quantile(fitted, residual, effective)})


def with_quantile_of(interval: Interval, residual: Floats, effective: Floats) -> Interval:
    """Return the interval with the quantile of other held-out models, which neither it nor the predictors saw.

    It is the conformal one, or, of few models, what a normal distribution of the scores' spread has.

    Args:
        interval: the interval that `calibrate` returned.
        residual: log(measured / predicted) of the models (n,).
        effective: effective number of kernels of each model (n,).

    Returns:
        The interval itself where the models are too few for its coverage: 9 for nine tenths.
    """
    if _rank(len(residual), interval.nominal) > len(residual):
        log.warning("%d whole models are too few to calibrate intervals on: held-out carriers do", len(residual))
        return interval
    quantile = _quantile if len(residual) >= _FEW_MODELS else _quantile_of_few
    found = {"quantile": quantile(interval, residual, effective), "subjects": len(residual), "quantile_of": "models"}
    return interval.model_copy(update=found)


def _rank(count: int, nominal: float) -> int:
    """Return the rank of the conformal quantile among so many sorted scores, from 1; above `count` where they are too few."""
    return int(np.ceil((count + 1) * nominal))


def _scores(interval: Interval, residual: Floats, effective: Floats) -> Floats:
    return np.sort(np.abs(residual) / interval.model_copy(update={"quantile": 1.0}).half_width(effective))


def _quantile_of_few(interval: Interval, residual: Floats, effective: Floats) -> float:
    """Return the quantile of Student's t around zero for the root mean square of the scores, outliers held to three spreads."""
    score = _scores(interval, residual, effective)
    score = np.minimum(score, _MOST_SPREADS * _NORMAL * float(np.median(score)))
    spread = float(np.sqrt(np.mean(score**2)))
    return nine_digits(float(stats.t.ppf((1 + interval.nominal) / 2, len(score))) * spread)


def _quantile(interval: Interval, residual: Floats, effective: Floats) -> float:
    score = _scores(interval, residual, effective)
    return nine_digits(float(score[min(len(score), _rank(len(score), interval.nominal)) - 1]))
