"""Chooses kernels for steps that compute each element by itself: one activation, two, or one and a factor a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from edgeplan.graph.steps import PostOp, Step
from edgeplan.opencl.launch import Argument, DeviceNumbers, Dispatch, Launch, Memory, Packing
from edgeplan.opencl.post_ops import ELTWISE
from edgeplan.opencl.spaces import (
    DeviceTensor,
    LackingError,
    Layouts,
    Shapes,
    Space,
    Strides,
    activation_tensor,
    dispatched,
    walked,
)

#: Operations of a launch; further ones are another launch, in place.
MOST = 3
#: Codes of `sources/pointwise.cl`.
BINARY: Mapping[str, int] = MappingProxyType({"add": 64, "mul": 65, "sub": 66, "div": 67, "min": 68, "max": 69})
_FLAT: Strides = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class _Operation:
    """A step's own operation, or one behind it; an operand is an activation, or lies in the weights from an element on."""

    code: int
    alpha: float = 0.0
    beta: float = 0.0
    operand: DeviceTensor | None = None


def pointwise_dispatch(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Return the kernels of a step of kind eltwise, binary or scale."""
    source, out = activation_tensor(step, "input:0", shapes, layouts), activation_tensor(step, "output", shapes, layouts)
    own, packing = _own(step, shapes, layouts, numbers.block)
    operations = [*own, *(_behind(step, index, post, shapes, layouts) for index, post in enumerate(step.post_ops))]
    others = [(one.operand.shape, one.operand.layout) for one in operations if one.operand is not None]
    space, (written, read, *rest) = walked(out, [(source.shape, source.layout), *others], numbers.block)
    strides = iter(rest)
    given = [(one, next(strides) if one.operand is not None else _FLAT) for one in operations]
    launches: list[Launch] = []
    for start in range(0, len(given), MOST):
        begins, steps = (source, read) if start == 0 else (out, written)
        launches.append(_launch(space, numbers, (begins, steps), (out, written), given[start : start + MOST]))
    found = dispatched(f"{step.kind}.pointwise", space, launches, numbers, len(operations))
    return replace(found, packing=packing)


def _own(step: Step, shapes: Shapes, layouts: Layouts, block: int) -> tuple[list[_Operation], Packing]:
    if step.kind == "eltwise":
        return [_eltwise(step.text("algorithm"), step.number("alpha"), step.number("beta"))], Packing()
    out = shapes[step.outputs[0]]
    if step.kind == "scale":
        channels = -(-out[1] // block) * block
        shape, sizes = (1, out[1], *[1] * (len(out) - 2)), MappingProxyType({"block": block})
        pair = [DeviceTensor(Memory.weights, place, shape, "nchw") for place in (0, channels)]
        codes = (BINARY["mul"], BINARY["add"])
        both = [_Operation(code, operand=one) for code, one in zip(codes, pair, strict=True)]
        return both, Packing("by_channel", 2 * channels, sizes)
    code = BINARY.get(step.text("algorithm"))
    if code is None:
        raise LackingError(f"the operation {step.text('algorithm')}")
    if "operand" not in step.weights:
        return [_Operation(code, operand=activation_tensor(step, "input:1", shapes, layouts))], Packing()
    shape = step.sizes("shape") if "shape" in step.settings else shapes[step.weights["operand"]]
    operand = DeviceTensor(Memory.weights, 0, (1,) * (len(out) - len(shape)) + tuple(shape), "nchw")
    elements = operand.elements(block)
    return [_Operation(code, operand=operand)], Packing("as_it_is", -(-elements // block) * block)


def _behind(step: Step, index: int, post: PostOp, shapes: Shapes, layouts: Layouts) -> _Operation:
    if post.kind == "eltwise":
        return _eltwise(post.algorithm, post.alpha, post.beta)
    code = BINARY.get(post.algorithm or "add")
    if code is None:
        raise LackingError(f"the post-operation {post.algorithm}")
    return _Operation(code, operand=activation_tensor(step, f"operand:{index}", shapes, layouts))


def _eltwise(algorithm: str, alpha: float, beta: float) -> _Operation:
    if algorithm not in ELTWISE:
        raise LackingError(f"the operation {algorithm}")
    return _Operation(ELTWISE[algorithm], alpha, beta)


def _launch(
    space: Space,
    numbers: DeviceNumbers,
    source: tuple[DeviceTensor, Strides],
    out: tuple[DeviceTensor, Strides],
    operations: Sequence[tuple[_Operation, Strides]],
) -> Launch:
    arguments: list[Argument] = [Memory.arena, Memory.weights]
    for tensor, strides in (source, out):
        arguments += [tensor.place, *strides]
    arguments += [space.width, space.height, space.blocks, space.lanes, int(space.padded)]
    for operation, strides in [*operations, *[(_Operation(0), _FLAT)] * (MOST - len(operations))]:
        operand = operation.operand
        arguments += [operation.code, operation.alpha, operation.beta]
        arguments += [int(operand is not None and operand.memory == Memory.weights), operand.place if operand else 0, *strides]
    return space.launch("pointwise", "pointwise", numbers, arguments)
