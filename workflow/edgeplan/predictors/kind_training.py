"""Trains the predictors of one kernel kind."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeplan.predictors.boosting import Parameters, cross_validate, fit, parameters_for
from edgeplan.predictors.card import KindDispatch, Regressor
from edgeplan.predictors.dispatch import learn_dispatch
from edgeplan.predictors.features import FEATURES
from edgeplan.predictors.labels import Floats, Labels
from edgeplan.predictors.latency import EXTRA_FEATURES, together
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.sizes import Places, nearest_of_others, packed, places, usual
from edgeplan.support.rounding import nine_digits

LEAST_HALF_WIDTH = 1e-3
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass
class Kind:
    """Holds what training a kind of kernels gives: predictors, texts, and errors.

    Attributes:
        regressors: latency predictors; that of the whole kind, if there is one, comes first.
        texts: text models by file name.
        dispatch: how its implementations are told, if the engine tells them.
        out_of_fold: latency (us) of each row by models that saw no row of its subject; NaN without (n,).
        beyond, error: how far the sizes of each row lie beyond what is near to samples of other subjects (octaves), and its
            error out of fold over the half width of the interval on that side; NaN without (n,).
        parameters: tuned parameters by implementation.
    """

    regressors: list[Regressor]
    texts: dict[str, str]
    dispatch: KindDispatch | None
    out_of_fold: Floats
    beyond: Floats
    error: Floats
    parameters: dict[str, Parameters]


def train_kind(kind: str, labels: Labels, matrix: Floats, reads: Floats, settings: TrainingSettings) -> Kind:
    """Train one kind: its dispatch, a predictor of all its rows, and one of each implementation that has rows enough.

    Args:
        kind: kernel kind.
        labels: its rows (n).
        matrix: features of the trees, with the code of the input state (n, features).
        reads: code of the layout each row reads (n,).
        settings: how to train.
    """
    names = labels.column("implementation")
    told = sorted(set(names) - {""})
    # The reorder inserted is known by its two layouts; no state has to be learnt for it.
    told_of = matrix.copy()
    told_of[:, len(FEATURES) : -len(EXTRA_FEATURES)] = 0.0  # launches: see `Evaluator`
    learnt = learn_dispatch(kind, labels, told_of, settings) if kind != "reorder" else None
    unknown = np.full(len(labels), np.nan)
    result = Kind([], {}, None, unknown, unknown.copy(), unknown.copy(), {})
    if learnt:
        result.dispatch = learnt[0]
        if learnt[0].file:
            result.texts[learnt[0].file] = learnt[1]
    # What a kernel costs depends on the layout it reads, not on the one its inputs were produced in.
    matrix = matrix.copy()
    matrix[:, -2] = reads
    matrix[:, -1] = [told.index(n) if n else -1 for n in names]
    parts = [n for n in told if (names == n).sum() >= settings.min_rows_per_implementation]
    if parts != told or (names == "").any() or not told or len(told) > 1:
        _train_part(result, kind, "", np.arange(len(labels)), labels, matrix, settings)
    for name in parts:
        _train_part(result, kind, name, np.flatnonzero(names == name), labels, matrix, settings)
    return result


def _train_part(
    result: Kind,
    kind: str,
    implementation: str,
    rows: npt.NDArray[np.int64],
    labels: Labels,
    matrix: Floats,
    settings: TrainingSettings,
) -> None:
    """Train on some rows of a kind; predictors of implementations come after that of the kind and are averaged with it."""
    part, seen = labels.take(rows), matrix[rows].copy()
    codes: tuple[str, ...] = ()
    if implementation:
        seen[:, -1] = -1.0
    else:
        codes = tuple(sorted(set(part.column("implementation")) - {""}))
    parameters = parameters_for(part, seen, settings)
    left_out = cross_validate(part, seen, parameters, settings)
    held_out = together(result.out_of_fold[rows], left_out, launched=bool(settings.dispatch_numbers))
    fitted = fit(part, seen, parameters, settings.seeds)
    file = file_name(kind, implementation, result.texts)
    result.texts[file] = fitted.text
    result.parameters[implementation] = parameters
    better = np.isfinite(held_out)
    result.out_of_fold[rows[better]] = held_out[better]
    residual = np.log(part.latency / held_out)[better]
    error = (held_out / part.latency - 1)[better]
    tail = (1 - settings.interval) / 2
    known = len(residual) > 0
    low, high = (float(np.quantile(residual, q)) if known else 0.0 for q in (tail, 1 - tail))
    at = places_of(part)
    near, far, distance = reach_of(at, part)
    result.beyond[rows] = np.minimum(distance, far) - near
    side = np.where(residual > 0, high, -low)
    result.error[rows] = np.nan
    result.error[rows[better]] = np.abs(residual) / np.maximum(side, LEAST_HALF_WIDTH)
    result.regressors.append(
        Regressor(
            kind=kind,
            implementation=implementation,
            codes=codes,
            file=file,
            work=tuple(float(w) for w in fitted.work),
            rows=len(part),
            parameters=dict(parameters),
            cv_rmspe=float(np.sqrt(np.mean(error**2))) if known else 0.0,
            cv_within_5pct=float((np.abs(error) <= 0.05).mean()) if known else 0.0,
            cv_within_10pct=float((np.abs(error) <= 0.1).mean()) if known else 0.0,
            low=low,
            high=high,
            spread=float(residual.std()) if known else 0.0,
            samples=packed(at),
            near=near,
            far=far,
        )
    )


def places_of(labels: Labels) -> Places:
    """Return the positions of rows in the space of sizes (n, AXES); see `places`."""
    return places(lambda name: labels.matrix[:, FEATURES.index(name)])


def reach_of(at: Places, labels: Labels) -> tuple[float, float, Floats]:
    """Compute the card's distances between a regressor's rows, octaves: near, far, and the distances themselves (n,)."""
    distance = nearest_of_others(at, labels.group)
    near, far = map(nine_digits, usual(distance))
    return near, far, distance


def file_name(kind: str, implementation: str, taken: Collection[str]) -> str:
    """Return the file name `kind[.implementation].txt`, in letters every file system takes."""
    stem = ".".join(_UNSAFE.sub("_", part) for part in (kind, *implementation.split(".")) if part)
    name, number = f"{stem}.txt", 1
    while name in taken:
        number += 1
        name = f"{stem}.{number}.txt"
    return name
