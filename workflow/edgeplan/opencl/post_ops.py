"""Encodes post-operations for kernels: up to four, given by integers and floats when a kernel is launched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.graph.steps import PostOp, Step
from edgeplan.opencl.launch import ArenaOffset, Argument
from edgeplan.opencl.spaces import LackingError, Layouts, Shapes
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


def arguments(step: Step, shapes: Shapes, layouts: Layouts, block: int) -> tuple[Argument, ...]:
    """Return the kernel's arguments for the post-operations of a step (`POSTS_PARAMETERS`); `LackingError` if it has none."""
    if len(step.post_ops) > MOST:
        raise LackingError(f"{len(step.post_ops)} post-operations, more than {MOST}")
    kinds, given = 0, []
    for index in range(MOST):
        post = step.post_ops[index] if index < len(step.post_ops) else PostOp("none")
        operand = ArenaOffset(f"operand:{index}") if post.tensor else 0
        kinds |= _code(step, post, shapes, layouts, block) << _CODE_BITS * index
        given += [float(post.alpha), float(post.beta), operand]
    return (kinds, *given)


def _code(step: Step, post: PostOp, shapes: Shapes, layouts: Layouts, block: int) -> int:
    if post.kind == "none":
        return 0
    known = ELTWISE if post.kind == "eltwise" else SAME
    if post.kind != "sum" and post.algorithm not in known:
        raise LackingError(f"the post-operation {post.algorithm}")
    if post.kind == "eltwise":
        return ELTWISE[post.algorithm]
    output = step.outputs[0]
    shape, own = shapes[post.tensor], shapes[output]
    per_channel = len(shape) == len(own) > 1 and math.prod(shape) == shape[1] == own[1]
    if shape != own and not per_channel:
        raise LackingError(f"a post-operation's operand {shape} of an output {own}")
    if not same_bytes(shape, layouts[post.tensor], layouts[output], block):
        raise LackingError(f"a post-operation's operand in the layout {layouts[post.tensor]}")
    return (SAME if shape == own else PER_CHANNEL)[post.algorithm or "add"]
