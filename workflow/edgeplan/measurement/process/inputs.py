"""Draws the inputs of a run and compares its outputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from edgeplan.support.tensors import ModelInput

Array = npt.NDArray[Any]
JobInputs = dict[str, Any]
_BELOW = 2


def random_inputs(
    shapes: Mapping[str, Sequence[int]],
    seed: int,
    types: Mapping[str, str] = MappingProxyType({}),
    below: Mapping[str, int] = MappingProxyType({}),
) -> dict[str, Array]:
    """Draw seeded inputs in [0.05, 1): no zeros, no denormals. The values are those that measured engines get.

    Inputs of other `types` are 0 or 1, or `below` a limit where it is known: they are indices of an axis of that size.
    """
    rng = np.random.default_rng(seed)

    def values(name: str, shape: tuple[int, ...]) -> Array:
        if types.get(name, "float32") != "float32":
            return rng.integers(0, below.get(name, _BELOW), shape).astype(types[name])
        return rng.random(shape, dtype=np.float32) * np.float32(0.95) + np.float32(0.05)

    return {name: values(name, tuple(shape)) for name, shape in shapes.items()}


def random_inputs_of(borders: Iterable[ModelInput]) -> dict[str, Array]:
    """Draw seeded inputs of a program, see `random_inputs`."""
    return drawn(job_inputs(borders))


def drawn(told: JobInputs) -> dict[str, Array]:
    """Draw the inputs that a job tells of."""
    return random_inputs(told["inputs"], 0, told["types"], told["below"])


def job_inputs(borders: Iterable[ModelInput]) -> JobInputs:
    """Return the fields of a job that say which inputs a program takes: shapes, types, and what integers stay below."""
    known = tuple(borders)
    return {
        "inputs": {border.name: border.shape for border in known},
        "types": {border.name: border.dtype for border in known},
        "below": {border.name: border.below for border in known if border.below != _BELOW},
    }


def outputs_digest(outputs: Iterable[Array]) -> str:
    """Return the digest of the bytes of all outputs, in order."""
    state = hashlib.sha256()
    for value in outputs:
        state.update(np.ascontiguousarray(value).tobytes())
    return state.hexdigest()[:16]


def not_finite(inputs: Mapping[str, Array]) -> tuple[str, ...]:
    """Return the names of the inputs that hold infinities or what is no number."""
    return tuple(name for name, value in inputs.items() if value.dtype.kind == "f" and not np.isfinite(value).all())
