"""Measures how far the sizes of kernels lie from training samples, and widens their intervals accordingly.

Sizes lie in a space of octaves (base-2 logarithms): channels of a group, output height and width, window and so on, and, at
half the weight, what the model around a kernel moves. Within the distances that are usual among the samples themselves errors
do not depend on distance (measured on held-out rows of three engines); beyond them errors grow. So a regressor knows its
samples, the distance up to which samples are near to others (of other subjects), and the one beyond which hardly any lies.
Between the two an interval grows in proportion; beyond it grows no more, and the kernel is warned about, if it is two octaves
from any sample.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeplan.support.lazy import lazily

spatial = lazily("scipy.spatial")  # its import takes longer than a small prediction

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Places = npt.NDArray[np.uint8]
#: A column of raw features by name (n,).
Column = Callable[[str], Floats]

#: Axes of the space. A size of 2^31 on an axis of full weight still fits a byte.
AXES = 11
_PER_OCTAVE = 4
_CONTEXT_WEIGHT = 0.5
_NEAR_SHARE, _FAR_SHARE = 0.8, 0.95
#: Octaves: a distance below is near whatever the samples say, and at least so much lies between near and far.
_LEAST_NEAR, _LEAST_BETWEEN = 1.0, 0.5
#: Octaves below which no kernel is warned of, however close the samples lie: of rows that quick trainings on three devices had
#: not seen, those off by twice their interval were warned of as before, of those inside 2 to 4 in a hundred less.
_LEAST_WARNED = 2.0
#: Octaves beyond near from which a held-out row helps to calibrate growth, and the least number of such rows.
_BEYOND_NEAR, _FEW = 0.1, 20
_TREE_FROM = 200_000  # pairs from which building a tree is faster than comparing all


def places(column: Column) -> Places:
    """Return the positions of kernels in the space of sizes, in quarters of an octave (n, AXES)."""
    groups = np.maximum(column("groups"), 1.0)
    pixels = np.maximum(column("out_height") * column("out_width"), 1.0)
    sizes = (
        column("batch"),
        groups,
        column("in_channels") / groups,
        column("out_channels") / groups,
        column("out_height"),
        column("out_width"),
        column("kernel_h") * column("kernel_w"),
        column("in_height") * column("in_width") / pixels,
        column("other_elements"),
    )
    context = (column("model_bytes"), column("arena_bytes"))
    weighted = [np.log2(np.maximum(s, 1.0)) for s in sizes]
    weighted += [_CONTEXT_WEIGHT * np.log2(np.maximum(s, 1.0)) for s in context]
    quarters = np.rint(_PER_OCTAVE * np.column_stack(weighted))
    return np.asarray(np.minimum(quarters, 255), dtype=np.uint8)


def nearest(asked: Places, known: Places) -> Floats:
    """Return the distance of each place to the nearest known one, octaves (n,); infinite where none is known."""
    if not len(known):
        return np.full(len(asked), np.inf)
    if len(asked) * len(known) > _TREE_FROM:
        found = spatial.cKDTree(known.astype(np.float64)).query(asked.astype(np.float64), workers=-1)[0]
    else:
        # Squares of differences of bytes, as |a|^2 + |b|^2 - 2 ab: exact in float64.
        a, b = asked.astype(np.float64), known.astype(np.float64)
        squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None, :] - 2 * a @ b.T
        found = np.sqrt(squares.min(axis=1))
    return np.asarray(found / _PER_OCTAVE, dtype=np.float64)


def nearest_of_others(at: Places, subject: Integers) -> Floats:
    """Return the distance of each sample to the nearest one of another subject, octaves (n,); infinite where there is none."""
    found = np.full(len(at), np.inf)
    distinct, which = np.unique(at, axis=0, return_inverse=True)
    which = which.reshape(-1)
    # A place that several subjects hold is at no distance; one of a single subject asks those of the others.
    first = np.full(len(distinct), -1, dtype=np.int64)
    shared = np.zeros(len(distinct), dtype=bool)
    for place, owner in zip(which.tolist(), subject.tolist(), strict=True):
        shared[place] |= first[place] not in (-1, owner)
        first[place] = owner
    found[shared[which]] = 0.0
    for owner in np.unique(first[~shared]):
        mine = np.flatnonzero((subject == owner) & ~shared[which])
        others = shared | (first != owner)
        found[mine] = nearest(at[mine], distinct[others])
    return found


def usual(distance: Floats) -> tuple[float, float]:
    """Return the distance up to which samples are near to others, and that beyond which hardly any lies (octaves)."""
    known = distance[np.isfinite(distance)]
    if not len(known):
        return _LEAST_NEAR, _LEAST_NEAR + _LEAST_BETWEEN
    near = max(float(np.quantile(known, _NEAR_SHARE)), _LEAST_NEAR)
    return near, max(float(np.quantile(known, _FAR_SHARE)), near + _LEAST_BETWEEN)


def growth(beyond: Floats, error: Floats, nominal: float) -> float:
    """Return the growth of intervals for each octave beyond near at which they still hold the nominal share of held-out rows.

    Args:
        beyond: octaves beyond near of rows that were left out of training (n,).
        error: their errors over the half width of the interval on that side (n,).
        nominal: share to hold.

    Returns:
        The conformal quantile of what each row would have needed; 0 where too few rows are far to tell.
    """
    far = (beyond > _BEYOND_NEAR) & np.isfinite(beyond) & np.isfinite(error)
    if far.sum() < _FEW:
        return 0.0
    needed = np.sort(np.maximum(error[far] - 1.0, 0.0) / beyond[far])
    rank = min(len(needed), int(np.ceil((len(needed) + 1) * nominal)))
    return float(needed[rank - 1])


def packed(at: Places) -> str:
    """Return distinct places as text, for the card."""
    return base64.b64encode(np.unique(at, axis=0).tobytes()).decode()


def unpacked(text: str) -> Places:
    """Return the places that `packed` wrote as text (n, AXES)."""
    return np.frombuffer(base64.b64decode(text, validate=True), dtype=np.uint8).reshape(-1, AXES)


@dataclass(frozen=True)
class TrainedSizes:
    """Holds the sizes that regressors were trained on, and measures distances to them."""

    known: tuple[Places, ...]
    near: Floats
    far: Floats
    growth: float

    def distance(self, at: Places, regressor: Integers) -> Floats:
        """Return the octaves to the nearest sample of each kernel's regressor (n,); 0 where no regressor or sample is known."""
        found = np.zeros(len(at))
        for number in np.unique(regressor[regressor >= 0]):
            if len(self.known[number]):
                rows = np.flatnonzero(regressor == number)
                distinct, back = np.unique(at[rows], axis=0, return_inverse=True)
                found[rows] = nearest(distinct, self.known[number])[back.reshape(-1)]
        return found

    def widening(self, distance: Floats, regressor: Integers) -> Floats:
        """Return the factors by which the intervals of kernels are to be multiplied, 1 and more (n,)."""
        found = np.ones(len(distance))
        known = (regressor >= 0) & (distance > 0)
        beyond = np.minimum(distance[known], self.far[regressor[known]]) - self.near[regressor[known]]
        found[known] += self.growth * np.maximum(beyond, 0.0)
        return found

    def far_off(self, distance: Floats, regressor: Integers) -> tuple[str, ...]:
        """Describe kernels whose sizes are far from all samples; "" for the others (n,)."""
        far = np.zeros(len(distance), dtype=bool)
        known = regressor >= 0
        far[known] = distance[known] > np.maximum(self.far[regressor[known]], _LEAST_WARNED)
        return tuple(
            f"sizes more than {max(int(octaves), 1)} octaves from any that were measured" if told else ""
            for octaves, told in zip(distance.tolist(), far.tolist(), strict=True)
        )
