"""Recipes of raw weights make what planning makes, bit for bit; whatever cannot be made so is cached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgeplan.graph.steps import Step
from edgeplan.runtime.linking import Instruction, LinkedStep, RawWeight, can_be_raw, recipes_of
from edgeplan.runtime.program_file import STORED, Operation
from edgeplan.runtime.transform import SCALE, folded, values_of, widened

LANE = "fast"  # see tests/conftest.py

_BY = {
    Operation.ADD: np.add, Operation.SUBTRACT: np.subtract, Operation.MULTIPLY: np.multiply, Operation.DIVIDE: np.divide,
    Operation.ADD_NUMBER: np.add, Operation.MULTIPLY_NUMBER: np.multiply,
}  # fmt: skip
Values = np.ndarray[Any, Any]


def _cooked(recipe: Sequence[Instruction], file: bytes) -> Values:
    """What native code does with a recipe."""
    stack: list[Values] = []
    for row in recipe:
        if row.operation == Operation.LOAD:
            stored = np.ndarray(row.values, STORED[row.dtype], file, row.offset, (row.stride,))
            stack.append(stored.astype(np.float32))
        elif row.operation == Operation.BYTES:
            stack.append(np.frombuffer(file, np.uint8, row.values, row.offset))
        elif row.operation == Operation.FILL:
            assert stack[-1].size == 1
            stack[-1] = np.repeat(stack[-1], row.values)
        elif row.operation in (Operation.ADD_NUMBER, Operation.MULTIPLY_NUMBER):
            stack[-1] = _BY[row.operation](stack[-1], np.float32(row.number))
        elif row.operation == Operation.ROOT:
            stack[-1] = np.sqrt(stack[-1])
        elif row.operation == Operation.NEGATE:
            stack[-1] = -stack[-1]
        else:
            by = stack.pop()
            stack[-1] = _BY[row.operation](stack[-1], by[np.arange(stack[-1].size) // row.values % by.size])
    (found,) = stack
    return found


class _Model:
    """A file of drawn weights."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw, self.file = draw, bytearray()
        self._numbers = np.random.default_rng(draw(st.integers(0, 99)))
        self.raw: list[RawWeight] = []

    def one_of(self, *values: Any) -> Any:
        """Draw one of some values."""
        return self._draw(st.sampled_from(values))

    def some(self, *values: int) -> int:
        """Draw a small number, or one of those given."""
        return int(self._draw(st.sampled_from(values) if values else st.integers(1, 5)))

    def given(self) -> bool:
        """Draw whether there is something."""
        return bool(self._draw(st.booleans()))

    def weight(self, role: str, *shape: int, axis: int = 0) -> None:
        """A weight more, stored in one of the ways that there are."""
        dtype = self.one_of("float32", "float16", "int8", "uint8")
        self._put(role, dtype, shape, axis)
        if dtype in ("int8", "uint8"):
            count = self.some(1, shape[axis]) if shape else 1
            self._put(role + SCALE, "float32", (count,), 0)

    def _put(self, role: str, dtype: str, shape: tuple[int, ...], axis: int) -> None:
        stride = np.dtype(dtype).itemsize + (self.some(0, 1) if dtype == "float32" else 0)  # a tag may stand between
        self.file += bytes(self.some(0, 3))
        raw = np.ascontiguousarray(self._numbers.uniform(0.1, 9, int(np.prod(shape, dtype=int))).astype(dtype))
        content = b"".join(value.tobytes().ljust(stride, b"\n") for value in raw)[: (raw.size - 1) * stride + raw.itemsize]
        self.raw.append(RawWeight(role, 0, len(self.file), len(content), shape, stride, dtype, axis))
        self.file += content

    def values(self) -> Mapping[str, Values]:
        """The weights as planning reads them."""
        found = {}
        for one in self.raw:
            data = np.frombuffer(bytes(self.file), np.uint8, one.size, one.offset)
            found[one.role] = np.array(values_of(data, one.stride, one.dtype)).reshape(one.shape)
        return widened(found, {one.role: one.axis for one in self.raw})


def _normalised(model: _Model, channels: int, settings: dict[str, Any]) -> None:
    for role in ("bn_scale", "bn_bias", "bn_mean", "bn_variance"):
        model.weight(role, channels)
    settings["epsilon"] = model.one_of(1e-5, 1e-3, 0)


def _convolution(model: _Model, kind: str) -> tuple[str, dict[str, Any]]:
    settings: dict[str, Any] = {}
    shape = (model.some(), model.some(), *[model.some(1, 3)] * model.some(1, 2))
    channels = shape[0]
    if kind == "deconv":
        settings["groups"] = model.some(1, 2)
        channels = shape[1] * settings["groups"]
    model.weight("weight", *shape, axis=model.some(0, 1))
    if model.given():
        model.weight("bias", channels)
    if kind == "conv" and model.given():
        _normalised(model, channels, settings)
    if kind == "conv" and model.given():
        model.weight("factor", *model.one_of((1,), (channels, 1, 1)))
    if model.given():
        model.weight("summand", *model.one_of((), (1,), (channels, 1, 1)))
    return kind, settings


def _connected(model: _Model, kind: str) -> tuple[str, dict[str, Any]]:
    shape = (model.some(), model.some())
    settings = {"alpha": model.one_of(1.0, 0.3), "beta": model.one_of(1.0, 1.7), "transposed": model.some(0, 1)}
    model.weight("weight", *shape, axis=model.some(0, 1))
    if model.given():
        model.weight("bias", *model.one_of((), (1,), (1, shape[0 if settings["transposed"] else 1])))
    return kind, settings


def _simple(model: _Model, kind: str) -> tuple[str, dict[str, Any]]:
    settings: dict[str, Any] = {}
    if kind == "scale":
        _normalised(model, model.some(), settings)
    elif kind == "binary":
        model.weight("operand", model.some(), model.some(), axis=1)
        settings |= {"beta": model.one_of(0.7, -1)} if model.given() else {}
    elif kind == "concat":
        for place in sorted(range(model.some(1, 12)), key=str):
            model.weight(f"part_{place}", model.some())
    elif kind == "layer_norm":
        roles = ["scale", "shift"][model.some(0, 1) :]
        for role in reversed(roles):
            model.weight(role, 4)
    else:
        model.weight("value", model.some(), model.some())
    return kind, settings


_KINDS = {"conv": _convolution, "deconv": _convolution, "fc": _connected}
_RAW = (*_KINDS, "scale", "binary", "concat", "layer_norm", "constant")


@st.composite
def _steps(draw: st.DrawFn) -> tuple[_Model, LinkedStep, tuple[Values, ...]]:
    model = _Model(draw)
    kind = draw(st.sampled_from(_RAW))
    kind, settings = _KINDS.get(kind, _simple)(model, kind)
    wanted = folded(Step("one", kind, (), (), (), settings=settings), model.values())
    places = [0, *accumulate(values.nbytes for values in wanted)]
    slots = tuple((0, 0, at, values.nbytes, -1) for at, values in zip(places, wanted, strict=False))
    return model, LinkedStep("one", "raw", (), slots, places[-1], tuple(model.raw), kind, settings), wanted


@given(_steps())
def test_recipes_make_the_same_bits(drawn: tuple[_Model, LinkedStep, tuple[Values, ...]]) -> None:
    model, step, wanted = drawn
    assert can_be_raw(Step("one", step.kind, (), (), ()), {})
    for recipe, values in zip(recipes_of(step), wanted, strict=True):
        assert _cooked(recipe, bytes(model.file)).tobytes() == values.astype(np.float32).tobytes()


def _constant(count: int, dtype: str = "int64") -> LinkedStep:
    slots = ((0, 0, 0, 8, -1),) * count
    return LinkedStep("one", "raw", (), slots, 8, (RawWeight("value", 0, 3, 8, (8,), 1, dtype),), "constant", {})


@pytest.mark.parametrize("dtype", ["int64", "bool", "uint8"])
def test_other_numbers_are_handed_on_as_they_are(dtype: str) -> None:
    assert recipes_of(_constant(1, dtype)) == ((Instruction(Operation.BYTES, 0, 3, 8),),)
    weights = MappingProxyType({"value": "w"})
    assert can_be_raw(Step("one", "constant", (), (), (), weights), {"w": dtype})
    assert not can_be_raw(Step("one", "binary", (), (), (), weights), {"w": dtype})


@pytest.mark.parametrize("kind", ["lstm", "gru", "mix", "compiled", "int8_conv"])
def test_weights_of_other_kinds_are_cached(kind: str) -> None:
    assert not can_be_raw(Step("one", kind, (), (), ()), {})


def test_what_does_not_fit_the_slots_is_a_mistake() -> None:
    with pytest.raises(ValueError, match="has 2 weights, 1 are made"):
        recipes_of(_constant(2))
