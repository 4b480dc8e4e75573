"""Holds predictions: of one model with its breakdown, or of many models at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class KernelPrediction:
    """Describes one kernel of a predicted model, in us; `low` and `high` bound the interval; `share` is of the whole model."""

    name: str
    kind: str
    type: str
    implementation: str
    latency_us: float
    share: float
    low_us: float
    high_us: float


@dataclass(frozen=True)
class ModelPrediction:
    """Holds the predicted latency of one model, with its interval.

    Attributes:
        latency_ms, low_ms, high_ms: prediction and its interval.
        call_us: constant cost of the call, part of the latency.
        coverage: share of the kernels that have a predictor; below 1 the latency is that of the covered part.
        missing: nodes without a predictor.
        unfamiliar: nodes whose kernels lie beyond what was measured, or whose sizes are far from all samples, each with what
            does so: their part of the latency is a guess. The interval does not cover it, but grows with sizes that are far.
        stand_ins: nodes whose kind was not measured: node, kind, and the other kind that they are predicted as, or "bytes" for
            those predicted by the bytes that they move. The interval is wider by what these may be off.
        stand_in_share: share of the latency that these nodes take.
        kernels: breakdown: kernels in topological order, then layout conversions.
    """

    latency_ms: float
    low_ms: float
    high_ms: float
    call_us: float
    coverage: float
    missing: tuple[str, ...]
    unfamiliar: tuple[tuple[str, str], ...]
    stand_ins: tuple[tuple[str, str, str], ...]
    stand_in_share: float
    kernels: tuple[KernelPrediction, ...]


@dataclass(frozen=True)
class BatchPrediction:
    """Holds the predicted latencies of many models (m,); `coverage` and the latencies are as in `ModelPrediction`.

    Attributes:
        models: names.
        effective_kernels: how many equal kernels would vary as much: (sum of latencies)^2 / sum of squares.
        by_kind_ms: latency by kernel kind (kinds, m), conversions under "reorder"; the call is in none.
        kinds: names of its rows.
    """

    models: tuple[str, ...]
    latency_ms: Floats
    low_ms: Floats
    high_ms: Floats
    coverage: Floats
    effective_kernels: Floats
    by_kind_ms: Floats
    kinds: tuple[str, ...]
