"""A calibration brings what an old device's predictor says of kernels to a new device, from few measured kernels.

The logarithm of latency on the new device is what the old one says, a common line and a line of the kernel's kind. Lines are
pulled towards "as on the old device" (ridge), rows far off weigh less (Huber), rows of much time more. Where there are labels
enough, one small ensemble of trees over all kinds corrects what the lines leave.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.predictors.boosting import SHALLOW, boost
from edgeplan.predictors.features import FEATURES
from edgeplan.predictors.labels import group_folds
from edgeplan.predictors.latency import EXTRA_FEATURES, MANY_ROWS
from edgeplan.predictors.trees import Forest, merge_texts, parse_ensemble
from edgeplan.predictors.walking import Walk
from edgeplan.support.rounding import nine_digits

Floats = npt.NDArray[np.float64]
Finite = Annotated[float, Field(allow_inf_nan=False)]

#: Labels from which trees correct the lines.
TREE_LABELS = 50
#: Rows that "as on the old device" weighs as much as: the common shift, the common slope, and both of each kind.
_PULL_SHIFT, _PULL_SLOPE, _PULL_KIND_SHIFT, _PULL_KIND_SLOPE = 0.1, 2.0, 4.0, 10.0
_HUBER, _LEAST_SPREAD, _ROUNDS = 1.345, 0.02, 10
#: Power of a row's time in its weight: whole models are sums, but a few large kernels must not decide alone.
_TIME_POWER = 0.25
_FOLDS, _SEEDS = 4, (0, 1)
#: Few trees of large steps, and coarse thresholds: carriers that were left out err as by twice as many, in half the time.
_TREES: Mapping[str, float | int | str] = {**SHALLOW, "num_iterations": 75, "learning_rate": 0.1, "max_bin": 63}
_WIDTH = len(FEATURES) + len(EXTRA_FEATURES)
#: Kinds that no label was of, to the trees.
_UNKNOWN_KIND = -1.0


class LogLine(BaseModel):
    """A line adds `shift`, and `slope` for each unit of the logarithm of latency above the centre."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    shift: Finite = 0.0
    slope: Finite = 0.0


class Lines(BaseModel):
    """Holds the lines of a calibration, around one centre (log us).

    Attributes:
        centre: log latency where slopes add nothing.
        common: line of all kinds.
        kinds: line that each kind adds to the common one.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    centre: Finite = 0.0
    common: LogLine = LogLine()
    kinds: dict[str, LogLine] = {}

    def added(self, kind: npt.NDArray[np.object_], said: Floats) -> Floats:
        """Return what the lines add to log latencies of an old device (n,).

        Args:
            kind: kind of each kernel (n,).
            said: log us (n,).
        """
        names, place = np.unique(kind.astype(str), return_inverse=True)
        own = [self.kinds.get(name, LogLine()) for name in names]
        shift = np.array([self.common.shift + line.shift for line in own])[place]
        slope = np.array([self.common.slope + line.slope for line in own])[place]
        return np.asarray(shift + slope * (said - self.centre), dtype=np.float64)


@dataclass(frozen=True)
class KernelRows:
    """Holds measured kernels of a new device, as a calibration learns from them.

    Attributes:
        kind: kind of each kernel (n,).
        matrix: features (n, features).
        said: log latency on the old device, log us (n,).
        latency: measured latency, us (n,).
        weight: trust in each label (n,).
        group: number of its measured subject (n,).
    """

    kind: npt.NDArray[np.object_]
    matrix: Floats
    said: Floats
    latency: Floats
    weight: Floats
    group: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.latency)

    def take(self, index: npt.NDArray[np.bool_] | npt.NDArray[np.int64]) -> KernelRows:
        """Return the rows at `index`, a mask or positions."""
        return KernelRows(*(getattr(self, name)[index] for name in KernelRows.__dataclass_fields__))


@dataclass(frozen=True)
class Calibration:
    """A calibration is lines, and trees where labels sufficed.

    Attributes:
        lines: the linear part.
        text: LightGBM text model of the correction; "" without.
        kinds: kinds by the code that the trees know them by.
    """

    lines: Lines
    text: str = ""
    kinds: tuple[str, ...] = ()

    def latency_us(self, kind: npt.NDArray[np.object_], matrix: Floats, said: Floats) -> Floats:
        """Return the latency on the new device, us (n,); the arguments are as the fields of `KernelRows`."""
        log_us = said + self.lines.added(kind, said)
        if self.text and len(said):
            known = np.isfinite(said)
            seen = tree_features(kind, matrix, np.where(known, said, 0.0), self.kinds)
            log_us = log_us + self._corrected(seen)
        return np.asarray(np.exp(log_us), dtype=np.float64)

    def _corrected(self, seen: Floats) -> Floats:
        """Return what the trees add, by a walk where there are many rows: the same sums."""
        if len(seen) > MANY_ROWS and (walk := Walk.of(self.forest, 0, seen.shape[1])):
            return walk.raw(seen)[:, 0]
        return self.forest.raw(seen, np.zeros(len(seen), np.int64))[:, 0]

    @cached_property
    def forest(self) -> Forest:
        """Return the packed trees of the text model."""
        return Forest.pack([parse_ensemble(self.text, "the trees of a calibration")])


def tree_features(kind: npt.NDArray[np.object_], matrix: Floats, said: Floats, kinds: Sequence[str]) -> Floats:
    """Stack the columns of the trees: features, log us of the old device, code of the kind (n, features + 2)."""
    code = {name: float(number) for number, name in enumerate(kinds)}
    return np.column_stack([matrix, said, [code.get(str(name), _UNKNOWN_KIND) for name in kind]])


def calibrate_lines(rows: KernelRows, weight: Floats) -> Lines:
    """Fit the lines by ridge regression, reweighted (Huber); no rows give the old device as it is."""
    if not len(rows):
        return Lines()
    names, place = np.unique(rows.kind.astype(str), return_inverse=True)
    of_kind = np.eye(len(names))[place]
    centre = float(np.average(rows.said, weights=weight))
    beside = rows.said - centre
    design = np.column_stack([np.ones(len(rows)), beside, of_kind, of_kind * beside[:, None]])
    pull = np.diag(
        [_PULL_SHIFT, _PULL_SLOPE, *np.full(len(names), _PULL_KIND_SHIFT), *np.full(len(names), _PULL_KIND_SLOPE)],
    )
    target = np.log(rows.latency) - rows.said
    start = np.zeros(design.shape[1])
    start[0] = float(np.median(target))
    found, rest = start, target - start[0]
    for _ in range(_ROUNDS):
        spread = max(1.4826 * float(np.median(np.abs(rest))), _LEAST_SPREAD)
        trust = weight * np.minimum(1.0, _HUBER * spread / np.maximum(np.abs(rest), 1e-9))
        weighted = design.T * trust
        found = start + np.linalg.solve(weighted @ design + pull, weighted @ (target - design @ start))
        rest = target - design @ found
    lines = [
        LogLine(shift=nine_digits(a), slope=nine_digits(b))
        for a, b in zip(found[2 : 2 + len(names)], found[2 + len(names) :], strict=True)
    ]
    return Lines(
        centre=nine_digits(centre),
        common=LogLine(shift=nine_digits(found[0]), slope=nine_digits(found[1])),
        kinds=dict(zip(map(str, names), lines, strict=True)),
    )


@dataclass(frozen=True)
class _Fit:
    """Holds a calibration while its trees are LightGBM's own models: these predict many rows sooner than their text does."""

    lines: Lines
    boosters: tuple[Any, ...]
    kinds: tuple[str, ...]

    @staticmethod
    def of(rows: KernelRows, seeds: Sequence[int]) -> _Fit:
        """Fit lines on all rows, and trees of these seeds where labels suffice."""
        weight = rows.weight * rows.latency**_TIME_POWER
        weight = weight / weight.mean() if len(rows) else weight
        lines = calibrate_lines(rows, weight)
        if len(rows) < TREE_LABELS:
            return _Fit(lines, (), ())
        kinds = tuple(sorted({str(name) for name in rows.kind}))
        rest = np.log(rows.latency) - rows.said - lines.added(rows.kind, rows.said)
        seen = tree_features(rows.kind, rows.matrix, rows.said, kinds)
        return _Fit(lines, tuple(boost(seen, rest, weight, _TREES, seed) for seed in seeds), kinds)

    def latency_us(self, rows: KernelRows) -> Floats:
        """Return the latency of rows on the new device, us (n,)."""
        log_us = rows.said + self.lines.added(rows.kind, rows.said)
        if self.boosters:
            seen = tree_features(rows.kind, rows.matrix, rows.said, self.kinds)
            log_us = log_us + np.mean([booster.predict(seen, num_threads=1) for booster in self.boosters], axis=0)
        return np.asarray(np.exp(log_us), dtype=np.float64)


def calibrate_kernels(rows: KernelRows) -> Calibration:
    """Fit a calibration on all rows."""
    fit = _Fit.of(rows, _SEEDS)
    return Calibration(fit.lines, merge_texts([b.model_to_string() for b in fit.boosters]) if fit.boosters else "", fit.kinds)


def held_out_us(rows: KernelRows, seed: int) -> Floats:
    """Predict the latency of each row by a calibration that saw no row of its subject, us (n,); NaN with a single subject."""
    fold = group_folds(rows.group, _FOLDS, seed)
    found = np.full(len(rows), np.nan)
    for number in np.unique(fold):
        own = fold == number
        if own.all():
            break
        found[own] = _Fit.of(rows.take(~own), _SEEDS[:1]).latency_us(rows.take(own))
    return found
