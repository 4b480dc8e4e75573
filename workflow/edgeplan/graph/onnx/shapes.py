"""Shapes of all tensors of an ONNX file, by ONNX's own checker and shape inference.

Both see weights as inputs of the same shape: they need the values of shapes, axes and the like alone, and copying a hundred
megabytes of weights back and forth takes a second.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
import onnx
from onnx import checker, helper, numpy_helper, shape_inference

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Tensor
from edgeplan.graph.onnx.constants import element_type
from edgeplan.graph.onnx.contents import Contents

#: What the bindings raise: their own errors, and those that they make of C++'s.
_ERRORS = (
    shape_inference.InferenceError, checker.ValidationError, ValueError, TypeError, RuntimeError, LookupError, OverflowError,
    MemoryError,
)  # fmt: skip
#: How ONNX's messages name the node: the checker behind its message, the inference before it.
_CHECKED = re.compile(r"Name: (?P<name>.*) OpType: (?P<type>\w+)")
_INFERRED = re.compile(r"\(op_type:(?P<type>\w+)(?:, node name: (?P<name>.*?))?\): ")
_TAG = re.compile(r"\[\w+Error\] ")
_NEXT = "correct the node, or export the model again: the file may be corrupt"
#: Some engines overlook that, but then the file says two things.
_NEXT_DECLARED = "the shapes in the file may be of an earlier version of the model: remove its value_info, or export it again"


def check_nodes(contents: Contents, source: str) -> None:
    """Hold every node against the schema of its operator: how many inputs and outputs, which attributes of which types."""
    for value in contents.inputs:
        tensor = _tensor(value, source)
        if tensor is None or any(size < 1 for size in tensor.shape):
            reader = next((f"operator {n.name!r}" for n in contents.nodes if value.name in n.input), "an input")
            raise no_static_shape(value.name, tensor, f"{source}, {reader}")
    try:
        checker.check_model(_bare(contents, contents.nodes, {}, ()))
    except _ERRORS as error:
        raise _refusal(error, source) from error


def inferred(
    contents: Contents, nodes: Sequence[onnx.NodeProto], values: Mapping[str, npt.NDArray[Any]], source: str
) -> dict[str, Tensor]:
    """Shape and type of every tensor; sizes that are not known are -1.

    Args:
        contents: the model.
        nodes: its nodes, as the graph knows them.
        values: the constants that decide shapes.
        source: where the model comes from.
    """
    written = {name for node in nodes for name in node.output}
    inner, outer = written - set(contents.outputs), written & set(contents.outputs)  # an output may also be an input as it is
    given = [_inferable(node) for node in nodes]
    model = _bare(contents, given, values, [v for v in contents.declared if v.name in inner])
    model.graph.output.extend(v for v in contents.declared if v.name in outer)
    try:
        body = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True).graph
    except _ERRORS as error:
        raise _refusal(error, source) from error
    tensors = dict(contents.tensors)
    for value in [*body.value_info, *body.input, *body.output]:
        if value.name not in tensors and (tensor := _tensor(value, source)) is not None:
            tensors[value.name] = tensor
    return tensors


def no_static_shape(name: str, tensor: Tensor | None, where: str) -> ModelError:
    """Return the error for a tensor of which a size is not known, or is none."""
    shape = f" ({tensor.shape}, -1 is dynamic)" if tensor else ""
    computed = tensor is not None and any(size < 1 and size != -1 for size in tensor.shape)
    return ModelError(
        f"tensor {name!r} has no static shape{shape}",
        where=where,
        next_step="fix the input shape: python -m onnxruntime.tools.make_dynamic_shape_fixed"
        + ("; an image that is smaller than a window leaves sizes below 1" if computed else ""),
    )


def _bare(
    contents: Contents,
    nodes: Iterable[onnx.NodeProto],
    values: Mapping[str, npt.NDArray[Any]],
    declared: Iterable[onnx.ValueInfoProto],
) -> onnx.ModelProto:
    """Return the model without outputs; constants without values are inputs."""
    body = onnx.GraphProto(name="model", node=nodes, input=contents.inputs, value_info=declared)
    read = {name for node in body.node for name in node.input}
    for name, constant in contents.constants.items():
        if name in values:
            body.initializer.append(numpy_helper.from_array(values[name], name))
        elif name in read:
            body.input.append(helper.make_tensor_value_info(name, constant.data_type, list(constant.dims)))
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", contents.opset)], ir_version=onnx.IR_VERSION)


def _inferable(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node, or one that writes the same shape where ONNX's inference does not know what the node writes."""
    if node.op_type != "GroupNormalization":
        return node
    return helper.make_node("Relu", node.input[:1], node.output, name=node.name)


def _tensor(value: onnx.ValueInfoProto, source: str) -> Tensor | None:
    """Shape and type of an activation, None if it is no tensor or nothing is known of its shape."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        return None
    shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
    return Tensor(value.name, shape, element_type(kind.elem_type, value.name, source))


def _refusal(error: Exception, source: str) -> ModelError:
    said = str(error).strip()
    found = _INFERRED.search(said) or _CHECKED.search(said)
    reason = said[found.end() :] if found and found.re is _INFERRED else said
    reason = _TAG.sub("", reason.splitlines()[0]) if reason else type(error).__name__
    operator = f"{found['type']}: " if found else ""
    return ModelError(
        f"not a valid ONNX model: {operator}{reason}",
        where=source + (f", node {found['name']!r}" if found and found["name"] else ""),
        next_step=_NEXT_DECLARED if "existing" in reason else _NEXT,
    )
