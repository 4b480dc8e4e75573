"""Factors of kernel kinds: what kernels take in whole models, over what carriers said of them.

The sum of a carrier's labels is its plain time by construction; that of a whole model is not, and the difference has a part
that all models share. It is learnt as one factor for each kind of kernel, from whole models that are measured for that (stage
`calibration`) and are not evaluated. Kinds have most of it in common: what sets one apart has to be shown by the models. A
model stays the sum of its kernels.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgeplan.rounding import nine_digits_each

Floats = npt.NDArray[np.float64]
#: How far what kinds have in common is expected to lie from 1, and how far each from that, before any model is seen. With the
#: second as wide as the first, families that were left out were predicted worse than by one factor for all kinds.
_COMMON_SPREAD, _KIND_SPREAD = 0.1, 0.02
_LEAST_SPREAD = 1e-3
_FOLDS = 6
_HUBER = 1.345  # residuals of more spreads than that count less
_ROUNDS = 20
_LIMITS = (0.5, 2.0)


def fit_factors(by_kind_ms: Floats, call_ms: float, measured_ms: Floats) -> Floats:
    """Factors that bring predicted sums to what models take.

    Least squares of relative errors, those far off weighed less (Huber), with normal priors: of what all have in common around
    1, of each factor around that. The more of the models' time kernels of a kind take, the more these decide about its factor.

    Args:
        by_kind_ms: predicted latency by kind (k, m).
        call_ms: cost of the call, which no factor changes.
        measured_ms: what the models take (m,).

    Returns:
        A factor for each kind, to nine digits (k,).
    """
    share = (by_kind_ms / measured_ms).T
    missing = 1.0 - call_ms / measured_ms - share.sum(axis=1)
    terms = np.column_stack([share.sum(axis=1), share])
    expected = np.array([_COMMON_SPREAD, *[_KIND_SPREAD] * len(by_kind_ms)])
    change = np.zeros(len(expected))
    for _ in range(_ROUNDS if len(missing) else 0):
        rest = np.abs(missing - terms @ change)
        spread = max(1.4826 * float(np.median(rest)), _LEAST_SPREAD)
        weighted = terms.T * np.minimum(1.0, _HUBER * spread / np.maximum(rest, _LEAST_SPREAD * spread))
        change = np.linalg.solve(weighted @ terms + np.diag((spread / expected) ** 2), weighted @ missing)
    return nine_digits_each(np.clip(1.0 + change[0] + change[1:], *_LIMITS))


def cross_fitted_ms(by_kind_ms: Floats, call_ms: float, measured_ms: Floats) -> Floats:
    """Latencies of the models by factors fitted on others of them: errors as of models that were never seen (m,).

    Args:
        by_kind_ms: see `fit_factors`.
        call_ms: see above.
        measured_ms: see above.
    """
    found = np.empty(len(measured_ms))
    fold = np.arange(len(measured_ms)) % _FOLDS
    for number in range(min(_FOLDS, len(measured_ms))):
        own = fold == number
        found[own] = fit_factors(by_kind_ms[:, ~own], call_ms, measured_ms[~own]) @ by_kind_ms[:, own] + call_ms
    return found
