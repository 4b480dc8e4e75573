"""Decides how much of a prior's kernels supports the training of one predictor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.predictors.boosting import Fitted, Parameters, fit, mixed_parameters, parameters_for
from edgeplan.predictors.correction import correct
from edgeplan.predictors.features import FEATURES
from edgeplan.predictors.labels import Floats, Labels, group_folds
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.sizes import nearest_of_others, places
from edgeplan.support.rounding import nine_digits_each

#: Weight of a further row over the mean of own rows, where these are few. The corrected prior is better than what few own rows
#: say: on ONNX Runtime on another machine errors of carriers fell from 24 to 22, 18, 17 and 15 % with .1, .3, 1 and 3.
_SHARE = 3.0
#: Own rows from which on a further row weighs less than half of that.
_MANY = 300
#: How much larger errors of held-out rows may become. Most of these have near relatives among the other own rows, which
#: kernels of other models lack: where held-out convolutions of ONNX Runtime became worse by 14 %, frozen ones fell from 25 to
#: 21 %; where depthwise ones, by other engines, became worse by 24 %, frozen ones rose from 34 to 44.
_TOLERANCE = 1.2
#: Octaves from which on a row is as much unlike those of other subjects as any.
_UNLIKE = 2.0
_LARGEST = 1.0  # errors of log latency count up to this


@dataclass(frozen=True)
class Support:
    """Support holds a prior's predictions and samples for the rows of one predictor.

    Attributes:
        said: log latency (us) of the own rows by each prior device (n, devices).
        matrix: features of further kernels, as the trees see them (m, features).
        further: log latency (us) of these by each prior device (m, devices).
        implementation: implementation of these kernels (m,).
        expected: share of each prior device in what a kernel takes, before any row is seen (devices,).
        share: weight of a further kernel over the mean weight of own rows, where these are few.
    """

    said: Floats
    matrix: Floats
    further: Floats
    implementation: npt.NDArray[Any]
    expected: Floats
    share: float = 0.0

    def __len__(self) -> int:
        return len(self.matrix)

    def take(self, rows: npt.NDArray[Any]) -> Support:
        """Return the support with only the own rows at `rows` (positions or a mask)."""
        return replace(self, said=self.said[rows])

    def of(self, implementation: str) -> Support | None:
        """Return the support with one implementation's further kernels alone, without its code; None if there are none."""
        here = self.implementation == implementation
        if not here.any():
            return None
        matrix = self.matrix[here].copy()
        matrix[:, -1] = -1.0
        return replace(self, matrix=matrix, further=self.further[here], implementation=self.implementation[here])


@dataclass(frozen=True)
class Chosen:
    """Holds the chosen training of a predictor: its parameters and its support.

    Attributes:
        parameters: parameters of its trees.
        support: the prior's support that it takes; None: nothing.
        held_out: latency of every row (us) by a model that saw no row of its subject (n,); NaN with a single subject.
    """

    parameters: Parameters
    support: Support | None
    held_out: Floats


def choose(labels: Labels, matrix: Floats, settings: TrainingSettings, support: Support | None) -> Chosen:
    """Choose the parameters of the trees, which learn from the prior, too, unless that raises the errors of held-out rows.

    Rows count by how far they lie from those of other subjects: own rows tell of their like, and a prior of the others.
    """
    parameters = parameters_for(labels, matrix, settings)
    best = Chosen(parameters, None, cross_validate(labels, matrix, parameters, settings))
    if support is None or not np.isfinite(best.held_out).any():
        return best
    distance = nearest_of_others(places(lambda name: labels.matrix[:, FEATURES.index(name)]), labels.group)
    weight = labels.weight * np.minimum(distance, _UNLIKE)
    if not weight[np.isfinite(best.held_out)].any():
        weight = labels.weight
    parameters, tried = mixed_parameters(len(labels) + len(support)), replace(support, share=_SHARE)
    held_out = cross_validate(labels, matrix, parameters, settings, tried)
    harms = _error(held_out, labels, weight) > _TOLERANCE * _error(best.held_out, labels, weight)
    return best if harms else Chosen(parameters, tried, held_out)


def cross_validate(
    labels: Labels,
    matrix: Floats,
    parameters: Mapping[str, float | int | str],
    settings: TrainingSettings,
    support: Support | None = None,
) -> Floats:
    """Predict the latency of every row (us) by a model that saw no row of its subject (n,); NaN with a single subject."""
    folds = group_folds(labels.group, settings.folds, settings.seeds[0])
    result = np.full(len(labels), np.nan)
    for number in range(int(folds.max()) + 1):
        train, held = np.flatnonzero(folds != number), np.flatnonzero(folds == number)
        if len(train):
            seen = support.take(train) if support else None
            fitted = fit_supported(labels.take(train), matrix[train], parameters, settings.seeds[:1], seen)
            result[held] = fitted.predict(matrix[held])
    return result


def fit_supported(
    labels: Labels,
    matrix: Floats,
    parameters: Mapping[str, float | int | str],
    seeds: tuple[int, ...],
    support: Support | None,
) -> Fitted:
    """Train on own rows, and on further ones with what the prior, corrected by these own rows, says of them."""
    if support is None or not support.share:
        return fit(labels, matrix, parameters, seeds)
    corrected = correct(support.said, support.expected, matrix, labels.latency, labels.weight, seeds[0])
    latency = nine_digits_each(corrected(support.further, support.matrix))
    share = support.share * _MANY / (_MANY + len(labels))
    weight = np.full(len(support), share * float(labels.weight.mean()))
    return fit(labels.with_further(latency, weight), np.vstack([matrix, support.matrix]), parameters, seeds)


def _error(held_out: Floats, labels: Labels, weight: Floats) -> float:
    """Return the weighted mean of held-out rows' absolute errors of log latency."""
    known = np.isfinite(held_out)
    rest = np.minimum(np.abs(np.log(held_out[known] / labels.latency[known])), _LARGEST)
    return float(np.average(rest, weights=weight[known]))
