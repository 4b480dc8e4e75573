"""Chooses kernels for steps that compute each element by itself: one activation, two, or one and a factor a channel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from edgeplan.graph.steps import PostOp, Step
from edgeplan.opencl.launch import Argument, DeviceNumbers, Dispatch, Launch, Memory, Packing
from edgeplan.opencl.post_ops import ELTWISE
from edgeplan.opencl.spaces import (
    DeviceTensor,
    LackingError,
    LaunchChain,
    Layouts,
    Shapes,
    Space,
    Strides,
    ceil,
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
    chain = LaunchChain(step, shapes, layouts, numbers)
    source, out = chain.ends()
    operations = [*_own(chain), *(_behind(chain, index, post) for index, post in enumerate(step.post_ops))]
    others = [(one.operand.shape, one.operand.layout) for one in operations if one.operand is not None]
    space, (written, read, *rest) = walked(out, [(source.shape, source.layout), *others], numbers.block)
    strides = iter(rest)
    given = [(one, next(strides) if one.operand is not None else _FLAT) for one in operations]
    for start in range(0, len(given), MOST):
        begins, steps = (source, read) if start == 0 else (out, written)
        chain.launches.append(_launch(space, numbers, (begins, steps), (out, written), given[start : start + MOST]))
    return chain.done(f"{step.kind}.pointwise", space.work(chain.launches[-1], numbers.block, len(operations)))


def _own(chain: LaunchChain) -> list[_Operation]:
    step, shapes, block = chain.step, chain.shapes, chain.numbers.block
    if step.kind == "eltwise":
        return [_eltwise(step.text("algorithm"), step.number("alpha"), step.number("beta"))]
    out = shapes[step.outputs[0]]
    if step.kind == "scale":
        channels = ceil(out[1], block) * block
        shape = (1, out[1], *[1] * (len(out) - 2))
        pair = [DeviceTensor(Memory.weights, place, shape, "nchw") for place in (0, channels)]
        chain.packing = Packing.of("by_channel", 2 * channels, block=block)
        return [_Operation(BINARY[name], operand=one) for name, one in zip(("mul", "add"), pair, strict=True)]
    code = BINARY.get(step.text("algorithm"))
    if code is None:
        raise LackingError(f"the operation {step.text('algorithm')}")
    if "operand" not in step.weights:
        return [_Operation(code, operand=chain.tensor("input:1"))]
    shape = step.sizes("shape") if "shape" in step.settings else shapes[step.weights["operand"]]
    operand = DeviceTensor(Memory.weights, 0, (1,) * (len(out) - len(shape)) + tuple(shape), "nchw")
    chain.packing = Packing("as_it_is", ceil(operand.elements(block), block) * block)
    return [_Operation(code, operand=operand)]


def _behind(chain: LaunchChain, index: int, post: PostOp) -> _Operation:
    if post.kind == "eltwise":
        return _eltwise(post.algorithm, post.alpha, post.beta)
    code = BINARY.get(post.algorithm or "add")
    if code is None:
        raise LackingError(f"the post-operation {post.algorithm}")
    return _Operation(code, operand=chain.tensor(f"operand:{index}"))


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
