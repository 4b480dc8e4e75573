"""The patterns by which EOP estimates an operator's time from a share of its input (section 3.2).

    constant   t = a
    linear     t = a + b x
    staircase  t = a + b ceil(x / w)

The pattern "with least errors" is chosen (step 2 of section 3.2). The paper does not say which
error. On the samples themselves a constant could never beat a line, nor a line a staircase of
narrow stairs; so the error here is that of leaving one sample out, the staircase's width chosen
without it, too. Equal errors go to the pattern of fewer parameters. A pattern that has no more
samples than parameters has no error, and is no candidate; the constant always is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
PATTERNS = ("constant", "linear", "staircase")
_STAIRS = range(2, 33)  # numbers of stairs that are tried
_SAME = 1e-9  # of the longest time: errors that differ by less are rounding
_LEVERAGE = 1e-9


@dataclass(frozen=True, slots=True)
class Pattern:
    """A pattern is a curve of time over share, fitted to samples.

    Attributes:
        name: one of `PATTERNS`.
        base_ms, slope_ms: a and b.
        width: w, a share of the input; 0 for the other patterns.
        error_ms: root mean square of what each sample is off by when it is left out.
    """

    name: str
    base_ms: float
    slope_ms: float
    width: float
    error_ms: float

    def at(self, shares: npt.ArrayLike) -> Floats:
        """Estimated times (ms) of shares of the input, at least 0; a share of 0 takes nothing."""
        x = np.asarray(shares, dtype=np.float64)
        feature = _stairs(x, self.width) if self.width else x
        return np.where(x > 0, np.maximum(self.base_ms + self.slope_ms * feature, 0.0), 0.0)


def fit(shares: Sequence[float], times_ms: Sequence[float]) -> Pattern:
    """Return the pattern of least error.

    Args:
        shares: of the input, above 0 to 1; at least one.
        times_ms: measured or predicted there.
    """
    fitted = fits(shares, times_ms)
    least = min(p.error_ms for p in fitted) + _SAME * max(map(abs, times_ms))
    return next(p for p in fitted if p.error_ms <= least)


def fits(shares: Sequence[float], times_ms: Sequence[float]) -> list[Pattern]:
    """Fit every pattern that has samples enough, those of fewer parameters first; see `fit`."""
    x, t = np.asarray(shares, dtype=np.float64), np.asarray(times_ms, dtype=np.float64)
    n = len(x)
    mean = float(t.mean())
    alone = _rms((t - mean) * n / (n - 1)) if n > 1 else 0.0
    candidates = [Pattern("constant", mean, 0.0, 0.0, alone)]
    if n > 2:  # two parameters
        a, b, _, left_out = _regress(x[None, :], t)
        candidates.append(Pattern("linear", float(a[0]), float(b[0]), 0.0, _rms(left_out[0])))
    if n > 3:  # three parameters
        widths = x.max() / np.asarray(_STAIRS)
        a, b, errors, left_out = _regress(np.stack([_stairs(x, w) for w in widths]), t)
        best = int(errors.sum(axis=1).argmin())
        # Without a sample the sum of squares falls by residual times left-out residual: its width
        # is chosen by what remains.
        residuals = t - a[:, None] - b[:, None] * np.stack([_stairs(x, w) for w in widths])
        chosen = (errors.sum(axis=1)[:, None] - residuals * left_out).argmin(axis=0)
        error = _rms(left_out[chosen, np.arange(n)])
        candidates.append(Pattern("staircase", float(a[best]), float(b[best]), float(widths[best]), error))
    return candidates


def _stairs(x: Floats, width: float) -> Floats:
    return np.asarray(np.ceil(x / width - _SAME), dtype=np.float64)


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _regress(features: Floats, t: Floats) -> tuple[Floats, Floats, Floats, Floats]:
    """Least squares, a feature each row: intercepts, slopes, squared residuals, left-out ones."""
    n = len(t)
    centre = features.mean(axis=1, keepdims=True)
    offset = features - centre
    spread = (offset**2).sum(axis=1, keepdims=True)
    flat = spread <= 0
    spread = np.where(flat, 1.0, spread)
    b = np.where(flat[:, 0], 0.0, (offset * (t - t.mean())).sum(axis=1) / spread[:, 0])
    a = t.mean() - b * centre[:, 0]
    residual = t - a[:, None] - b[:, None] * features
    leverage = 1 / n + np.where(flat, 0.0, offset**2 / spread)
    # A sample that decides the slope alone leaves the others' mean behind.
    alone = leverage > 1 - _LEVERAGE
    left_out = np.where(alone, (t - t.mean()) * n / (n - 1), residual / np.where(alone, 1.0, 1 - leverage))
    return a, b, residual**2, left_out
