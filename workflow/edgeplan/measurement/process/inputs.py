"""Inputs and outputs of a run, and their comparison."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def random_inputs(
    shapes: Mapping[str, Sequence[int]],
    seed: int,
    types: Mapping[str, str] = MappingProxyType({}),
    below: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Array]:
    """Seeded inputs in [0.05, 1): no zeros, no denormals. The same values as the engines of the first chapter get.

    Args:
        shapes: by name.
        seed: of all.
        types: of inputs that are not of float32; these are 0 and 1, which most axes have.
        below: what the values of such an input stay below, where more than these are known to be good.
    """
    rng = np.random.default_rng(seed)

    def values(name: str, shape: tuple[int, ...]) -> Array:
        if types.get(name, "float32") != "float32":
            return rng.integers(0, below.get(name, 2), shape).astype(types[name])
        return rng.random(shape, dtype=np.float32) * np.float32(0.95) + np.float32(0.05)

    return {name: values(name, tuple(shape)) for name, shape in shapes.items()}


def digest(outputs: Mapping[str, Array]) -> str:
    """Digest of the bytes of all outputs, in order."""
    state = hashlib.sha256()
    for value in outputs.values():
        state.update(np.ascontiguousarray(value).tobytes())
    return state.hexdigest()[:16]


def relative_error(outputs: Sequence[Array], expected: Sequence[Array]) -> float:
    """Largest max|a - b| / max|b| over the outputs, taken in order; infinite where a shape differs or a value is not finite."""
    if len(outputs) != len(expected):
        return math.inf
    worst = 0.0
    for found, wanted in zip(outputs, expected, strict=True):
        a, b = (v.astype(np.int64) if v.dtype.kind in "bi" else v for v in (found, wanted))  # truth values have no difference
        if a.shape != b.shape or not (np.isfinite(a).all() and np.isfinite(b).all()):
            return math.inf
        scale = float(np.abs(b).max(initial=0.0))
        difference = float(np.abs(a - b).max(initial=0.0))
        worst = max(worst, difference / scale if scale else (0.0 if difference == 0 else math.inf))
    return worst
