"""Recipes: how native code makes a step's raw weights from the model's file, operation by operation on arrays of float32.

They are in the order of `transform.folded`, so that both make the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from edgeplan.graph.shapes import FLOAT16, FLOAT32
from edgeplan.graph.steps import Step
from edgeplan.runtime.linking import LinkedStep, RawWeight
from edgeplan.runtime.program_file import STORED, Operation
from edgeplan.runtime.transform import SCALE


class Instruction(NamedTuple):
    """A row of `Section.RECIPES`, whose `count` is `values` here; see native/src/program/format.h."""

    operation: int
    file: int = 0
    offset: int = 0
    values: int = 0
    stride: int = 0
    dtype: int = 0
    number: float = 0.0


@dataclass(frozen=True)
class _Values:
    """Values that instructions leave on top of the stack, and how many they are."""

    made: tuple[Instruction, ...]
    count: int

    def then(self, operation: Operation, number: float = 0.0) -> _Values:
        """Each value taken by itself."""
        return _Values((*self.made, Instruction(operation, number=float(np.float32(number)))), self.count)

    def filled(self, count: int) -> _Values:
        """One value that stands for all of them."""
        return self if self.count == count else _Values((*self.made, Instruction(Operation.FILL, values=count)), count)

    def by(self, operation: Operation, other: _Values, inner: int = 1) -> _Values:
        """Each with one of others, which change after so many values."""
        left = self.filled(other.count) if self.count == 1 else self
        return _Values((*left.made, *other.made, Instruction(operation, values=inner)), left.count)


class _Weights:
    """The raw weights of a step, by their roles."""

    def __init__(self, step: LinkedStep) -> None:
        self._raw = {weight.role: weight for weight in step.raw}
        self._settings: Mapping[str, Any] = step.settings
        self.roles = tuple(role for role in self._raw if not role.endswith(SCALE))

    def __contains__(self, role: str) -> bool:
        return role in self._raw

    def number(self, name: str) -> float:
        """A setting, as a float32."""
        return float(np.float32(self._settings[name]))

    def integer(self, name: str) -> int:
        """Number of a setting of the step."""
        return int(self._settings[name])

    def set(self, name: str) -> bool:
        """Tell whether there is a setting."""
        return name in self._settings

    def shape(self, role: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return self._raw[role].shape

    def values(self, role: str) -> _Values:
        """A weight as numbers, as `transform.widened` gives it."""
        weight, scale = self._raw[role], self._raw.get(role + SCALE)
        found = _loaded(weight)
        return found if scale is None else found.by(Operation.MULTIPLY, _loaded(scale), prod(weight.shape[weight.axis + 1 :]))

    def is_numbers(self, role: str) -> bool:
        """Tell whether a weight is read as numbers of float32."""
        return self._raw[role].dtype in (FLOAT32, FLOAT16) or role + SCALE in self._raw

    def as_stored(self, role: str) -> _Values:
        """A weight as the file has it."""
        weight = self._raw[role]
        return _Values((Instruction(Operation.BYTES, weight.file, weight.offset, weight.size),), weight.size)


def _loaded(weight: RawWeight) -> _Values:
    count = prod(weight.shape)
    place = (weight.file, weight.offset, count, weight.stride, STORED.index(weight.dtype))
    return _Values((Instruction(Operation.LOAD, *place),), count)


def can_be_raw(step: Step, types: Mapping[str, str]) -> bool:
    """Tell whether native code can make the weights of a step from the model's file; those of others lie in the cache.

    Args:
        step: the step.
        types: of tensors that are not of float32.
    """
    return step.kind in _RECIPES and (step.kind == "constant" or not any(name in types for name in step.weights.values()))


def recipes_of(step: LinkedStep) -> tuple[tuple[Instruction, ...], ...]:
    """The recipe of each slot of a step that can be raw, as `transform.folded` makes its values."""
    found = _RECIPES[step.kind](_Weights(step))
    if len(found) != len(step.slots):
        raise ValueError(f"step {step.name!r} has {len(step.slots)} weights, {len(found)} are made")
    return tuple(values.made for values in found)


def _scale(raw: _Weights) -> Sequence[_Values]:
    scale = _normalising(raw)
    moved = raw.values("bn_mean").by(Operation.MULTIPLY, scale)
    return scale, raw.values("bn_bias").by(Operation.SUBTRACT, moved)


def _normalising(raw: _Weights) -> _Values:
    root = raw.values("bn_variance").then(Operation.ADD_NUMBER, raw.number("epsilon")).then(Operation.ROOT)
    return raw.values("bn_scale").by(Operation.DIVIDE, root)


def _conv(raw: _Weights) -> Sequence[_Values]:
    weight, channels = raw.values("weight"), raw.shape("weight")[0]
    inner = prod(raw.shape("weight")[1:])
    bias = raw.values("bias") if "bias" in raw else None
    if "bn_scale" in raw:
        scale, mean = _normalising(raw), raw.values("bn_mean")
        weight = weight.by(Operation.MULTIPLY, scale, inner)
        bias = mean.then(Operation.NEGATE) if bias is None else bias.by(Operation.SUBTRACT, mean)
        bias = bias.by(Operation.MULTIPLY, scale).by(Operation.ADD, raw.values("bn_bias"))
    if "factor" in raw:
        factor = raw.values("factor")
        weight = weight.by(Operation.MULTIPLY, factor, inner)
        bias = bias and bias.by(Operation.MULTIPLY, factor)
    return _shifted(raw, weight, bias, channels)


def _deconv(raw: _Weights) -> Sequence[_Values]:
    bias = raw.values("bias") if "bias" in raw else None
    return _shifted(raw, raw.values("weight"), bias, raw.shape("weight")[1] * raw.integer("groups"))


def _shifted(raw: _Weights, weight: _Values, bias: _Values | None, channels: int) -> Sequence[_Values]:
    if "summand" in raw:
        summand = raw.values("summand")
        added = summand.then(Operation.ADD_NUMBER) if bias is None else bias.by(Operation.ADD, summand)
        bias = added.filled(channels)
    return (weight,) if bias is None else (weight, bias)


def _fc(raw: _Weights) -> Sequence[_Values]:
    weight, alpha, beta = raw.values("weight"), raw.number("alpha"), raw.number("beta")
    if alpha != 1:
        weight = weight.then(Operation.MULTIPLY_NUMBER, alpha)
    if "bias" not in raw:
        return (weight,)
    bias = raw.values("bias").filled(raw.shape("weight")[0 if raw.integer("transposed") else 1])
    return weight, bias.then(Operation.MULTIPLY_NUMBER, beta) if beta != 1 else bias


def _binary(raw: _Weights) -> Sequence[_Values]:
    operand = raw.values("operand")
    return (operand.then(Operation.MULTIPLY_NUMBER, raw.number("beta")) if raw.set("beta") else operand,)


def _concat(raw: _Weights) -> Sequence[_Values]:
    return [raw.values(role) for role in sorted(raw.roles, key=lambda role: int(role.removeprefix("part_")))]


def _layer_norm(raw: _Weights) -> Sequence[_Values]:
    return [raw.values(role) for role in ("scale", "shift") if role in raw]


def _constant(raw: _Weights) -> Sequence[_Values]:
    return (raw.values("value") if raw.is_numbers("value") else raw.as_stored("value"),)


_RECIPES: Mapping[str, Callable[[_Weights], Sequence[_Values]]] = MappingProxyType(
    {
        "conv": _conv,
        "deconv": _deconv,
        "fc": _fc,
        "scale": _scale,
        "binary": _binary,
        "concat": _concat,
        "layer_norm": _layer_norm,
        "constant": _constant,
    }
)
