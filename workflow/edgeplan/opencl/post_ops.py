"""Encodes post-operations for kernels: up to four, given by integers and floats when a kernel is launched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import PostOp, Step
from edgeplan.opencl.launch import ArenaOffset, Argument
from edgeplan.runtime.layouts import same_bytes

#: The most post-operations of a kernel.
MOST: int = 4
#: Codes of `sources/common.h`.
_ELTWISE = (
    *("relu", "clip", "logistic", "hardswish", "hardsigmoid", "swish", "tanh", "elu", "linear", "square"),
    *("abs", "sqrt", "exp", "log", "pow", "gelu_tanh", "gelu_erf", "soft_relu", "mish"),
)
ELTWISE: Mapping[str, int] = MappingProxyType({name: code for code, name in enumerate(_ELTWISE, 1)})
SAME: Mapping[str, int] = MappingProxyType({"add": 64, "mul": 65})
PER_CHANNEL: Mapping[str, int] = MappingProxyType({"add": 66, "mul": 67})
_CODE_BITS = 8


def posts_refusal(step: Step, shapes: Mapping[str, Shape], layouts: Mapping[str, str], block: int) -> str:
    """Return why kernels cannot do a step's post-operations, or ""."""
    if len(step.post_ops) > MOST:
        return f"{len(step.post_ops)} post-operations, more than {MOST}"
    return next((why for post in step.post_ops if (why := _refusal(step, post, shapes, layouts, block))), "")


def _refusal(step: Step, post: PostOp, shapes: Mapping[str, Shape], layouts: Mapping[str, str], block: int) -> str:
    if post.kind == "eltwise":
        return "" if post.algorithm in ELTWISE else f"the post-operation {post.algorithm}"
    if post.kind == "binary" and post.algorithm not in SAME:
        return f"the post-operation {post.algorithm}"
    output = step.outputs[0]
    shape, own = shapes[post.tensor], shapes[output]
    if shape != own and not _per_channel(shape, own):
        return f"a post-operation's operand {shape} of an output {own}"
    if not same_bytes(shape, layouts[post.tensor], layouts[output], block):
        return f"a post-operation's operand in the layout {layouts[post.tensor]}"
    return ""


def _per_channel(shape: Shape, output: Shape) -> bool:
    return len(shape) == len(output) > 1 and math.prod(shape) == shape[1] == output[1]


def arguments(step: Step, shapes: Mapping[str, Shape]) -> tuple[Argument, ...]:
    """Return the kernel's arguments for the post-operations of a step (`POSTS_PARAMETERS`)."""
    kinds, given = 0, []
    for index in range(MOST):
        post = step.post_ops[index] if index < len(step.post_ops) else PostOp("none")
        code, operand = _code(step, post, shapes), ArenaOffset(f"operand:{index}") if post.tensor else 0
        kinds |= code << _CODE_BITS * index
        given += [float(post.alpha), float(post.beta), operand]
    return (kinds, *given)


def _code(step: Step, post: PostOp, shapes: Mapping[str, Shape]) -> int:
    if post.kind == "none":
        return 0
    if post.kind == "eltwise":
        return ELTWISE[post.algorithm]
    codes = SAME if shapes[post.tensor] == shapes[step.outputs[0]] else PER_CHANNEL
    return codes[post.algorithm or "add"]
