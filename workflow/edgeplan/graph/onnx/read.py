"""ONNX files, which are untrusted, to graphs.

A file is looked through (`contents`), held against ONNX's schemas and its shape inference (`shapes`), and brought to
the forms that the graph knows (`operators`); the graph is held against what kernels take for granted (`checks`). What passes
is safe to compute with: nothing behind this border checks a model again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import checker, helper, numpy_helper, shape_inference

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Attribute, Graph, Operator, Tensor
from edgeplan.graph.model_file import read_message
from edgeplan.graph.onnx.constants import MOST_BYTES, constant_values, element_type
from edgeplan.graph.onnx.contents import TRANSPARENT, Contents, contents_of
from edgeplan.graph.onnx.forms import modern, over_one_axis, recognised
from edgeplan.graph.onnx.rewriting import INFERRED, NEXT
from edgeplan.graph.onnx.stored import stored_weights
from edgeplan.graph.operators.base import AGAIN, Beside, Problem, input_of, is_zero, refuse
from edgeplan.graph.operators.registry import SPECS
from edgeplan.graph.shapes import free

#: What the bindings raise: their own errors, and those that they make of C++'s.
_ERRORS = (
    shape_inference.InferenceError, checker.ValidationError, ValueError, TypeError, RuntimeError, LookupError, OverflowError,
    MemoryError,
)  # fmt: skip
#: How the messages of ONNX's checker name the node, behind what is wrong.
_CHECKED = re.compile(r"Name: (?P<name>.*) OpType: (?P<type>\w+)")
_TAG = re.compile(r"\[\w+Error\] ")
#: Some engines overlook that, but then the file says two things.
_NEXT_DECLARED = "the shapes in the file may be of an earlier version of the model: remove its value_info, or export it again"
#: The roles of a `Resize` before opset 11.
_OPSET_10_RESIZE = ("", "scales")
#: What operators became in opsets 10 and 11.
_LATER_NAMES = MappingProxyType({"Upsample": "Resize", "Scatter": "ScatterElements"})


def load_onnx(path: Path) -> Graph:
    """Read a static-shape ONNX file.

    Of external files only constants that decide shapes are read: weights need not be there.

    Raises:
        ModelError: the file is missing, corrupt, truncated or of an opset that is not known, it contradicts itself, a shape is
            dynamic, or an operator or a form of it is not known.
    """
    return from_onnx(read_message(path), str(path), path)


def from_onnx(model: onnx.ModelProto, source: str = "", path: Path | None = None) -> Graph:
    """Return a graph from an ONNX model, which is not changed, as `load_onnx`; external data lie beside `path`."""
    contents = contents_of(model, source)
    check_nodes(contents, source)
    contents, stored = stored_weights(modern(contents, source), source)
    alias = dict(_equal_scalings(contents))
    read = {name for n in contents.nodes for name in n.input} | set(contents.outputs)
    nodes, taken, beside = [], contents.names, Beside(contents.constants, read, source)
    for given in contents.nodes:
        for place, name in enumerate(given.input):
            given.input[place] = alias.get(name, name)
        spec = SPECS.get(given.op_type)
        before = set(given.output)
        node = spec.form(given, beside) if spec and spec.form else given
        for place, name in enumerate(node.output):
            if name and name not in before:  # the form asks for what nothing reads
                node.output[place] = free(name, taken)
                taken.add(node.output[place])
        if given.op_type == "Dropout" and input_of(given, 2) and not is_zero(given.input[2], contents.constants):
            refuse(given, source, "in training mode", "export the model for inference")
        if node.op_type in TRANSPARENT:
            alias[node.output[0]] = node.input[0]
        nodes.append(node)
    values = _values(nodes, contents, path, source)
    tensors = inferred(contents, nodes, values, source)
    operators = tuple(
        op
        for node in nodes
        if node.op_type not in TRANSPARENT
        for op in over_one_axis(_operator(node, contents, values, tensors, source), contents.opset, tensors, taken)
    )
    copies = tuple(_copies(contents, alias, {name for op in operators for name in op.outputs}, tensors, taken))
    operators += copies
    copied = {op.outputs[0] for op in copies}
    named = [(name, name if name in copied else alias.get(name, name)) for name in contents.outputs]
    constants = {name: held for name, held in named if held in contents.constants}
    outputs = tuple(held for name, held in named if name not in constants)
    operators = recognised(operators, tensors, contents.constants, outputs)
    tensors |= {name: replace(contents.tensors[held], name=name) for name, held in constants.items()}
    inputs, handed_out = tuple(i.name for i in contents.inputs), MappingProxyType(constants)
    graph = Graph(contents.name, operators, inputs, outputs, MappingProxyType(tensors), handed_out, stored)
    if not any(op.outputs and set(op.outputs) & set(outputs) for op in operators):
        raise ModelError("the model computes nothing", where=source, next_step="export the model again")
    check_graph(graph, source)
    return graph


def _equal_scalings(contents: Contents) -> Iterator[tuple[str, str]]:
    """Yield scales and zero points of one number with the first that is equal: what is between bytes then shows."""
    known: dict[tuple[object, ...], str] = {}
    between = [node for node in contents.nodes if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    for name in dict.fromkeys(name for node in between for name in node.input[1:] if name in contents.constants):
        tensor = contents.constants[name]
        if tensor.data_location != onnx.TensorProto.EXTERNAL and math.prod(tensor.dims) == 1:
            value = onnx.numpy_helper.to_array(tensor)
            first = known.setdefault((value.dtype.str, value.shape, value.tobytes()), name)
            if first != name:
                yield name, first


def _values(nodes: Iterable[onnx.NodeProto], contents: Contents, path: Path | None, source: str) -> dict[str, npt.NDArray[Any]]:
    found: dict[str, npt.NDArray[Any]] = {}
    for node in nodes:
        for role, name in zip(_roles(node), node.input, strict=False):
            if not role or not name:
                continue
            if name not in contents.constants:
                if role in SPECS[node.op_type].computed:
                    continue
                refuse(node, source, f"whose {role} is no constant", "fix the input shape and fold constants")
            if name not in found:
                found[name] = constant_values(name, contents.constants[name], path, source)
            integers, several = role in SPECS[node.op_type].integers, node.op_type == "Clip" and found[name].size != 1
            if several or (integers and found[name].dtype not in (np.int64, np.int32)):
                what = f"whose {role} is {found[name].size} numbers of type {found[name].dtype}"
                refuse(node, source, what, "export it with " + ("integers" if integers else "one number for each bound"))
    return found


def _copies(
    contents: Contents,
    alias: Mapping[str, str],
    written: AbstractSet[str],
    tensors: Mapping[str, Tensor],
    names: AbstractSet[str],
) -> Iterator[Operator]:
    """Yield outputs that are inputs, or other outputs, under a name of their own: reshapes to the same shape."""
    taken = {name for name in contents.outputs if name not in alias}
    for name in contents.outputs:
        source = alias.get(name, name)
        beside = name != source and (source in taken or source not in written)
        if beside and name in tensors and source not in contents.constants:
            shape = MappingProxyType({"shape": tensors[source].shape})
            yield Operator(free(f"{name}:copy", names), "Reshape", (source,), (name,), (), shape)
        taken.add(source)


def _roles(node: onnx.NodeProto) -> tuple[str, ...]:
    if node.op_type == "Resize" and len(node.input) == len(_OPSET_10_RESIZE):
        return _OPSET_10_RESIZE
    spec = SPECS.get(node.op_type)
    return spec.constants if spec else ()


def _attribute(attribute: onnx.AttributeProto) -> Attribute:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, float):
        return float(str(np.float32(value)))  # files hold single precision: 1e-05 is read as it was written, not 9.99999975e-06
    if isinstance(value, int):
        return value
    if value and isinstance(value[0], bytes):
        return b" ".join(value).decode(errors="backslashreplace")
    return tuple(value)


def _operator(
    node: onnx.NodeProto, contents: Contents, values: Mapping[str, npt.NDArray[Any]], tensors: Mapping[str, Tensor], source: str
) -> Operator:
    attributes: dict[str, Attribute] = {a.name: _attribute(a) for a in node.attribute}
    inputs: list[str] = []
    weights: list[str] = []
    roles, places = _roles(node), []
    for position, name in enumerate(node.input):
        role = roles[position] if position < len(roles) else ""
        if role and name in values:
            numbers = tuple(v.item() for v in np.ravel(values[name]))  # all: what is left out makes unequal operators equal
            attributes[role] = numbers[0] if node.op_type == "Clip" else numbers
        elif name in contents.constants:
            places.append(len(inputs) + len(weights))
            weights.append(name)
        elif name:
            inputs.append(name)
    where = f"{source}, operator {node.name!r}"
    if not inputs:
        raise ModelError(f"{node.op_type} reads constants alone", where=where, next_step="fold constants")
    if inputs[0] not in tensors:
        raise no_static_shape(inputs[0], None, where)
    if SPECS[node.op_type].ordered and places and places[0] < len(inputs):
        attributes["constants"] = tuple(places)
    attributes |= _meant(node, tensors[inputs[0]].shape, attributes, where)
    outputs = tuple(o for o in node.output if o)
    op_type = _LATER_NAMES.get(node.op_type, node.op_type)
    return Operator(node.name, op_type, tuple(inputs), outputs, tuple(weights), MappingProxyType(attributes))


def _meant(node: onnx.NodeProto, shape: tuple[int, ...], given: Mapping[str, Attribute], where: str) -> dict[str, Attribute]:
    """Return attributes that the graph spells out where ONNX's defaults depend on the shape or on the opset."""
    if node.op_type == "Transpose" and "perm" not in given:
        return {"perm": tuple(reversed(range(len(shape))))}
    if node.op_type == "Upsample":  # so ONNX brings it to later opsets
        return {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if node.op_type == "Resize" and len(node.input) == len(_OPSET_10_RESIZE):
        scales = given["scales"]
        assert isinstance(scales, tuple)  # noqa: S101  `_operator` has read it
        if min(scales) < 1 < max(scales) and given.get("mode", "nearest") == "nearest":
            next_step = "export with opset 13 or later"
            raise ModelError("Resize of opset 10 that shrinks one axis and enlarges another", where=where, next_step=next_step)
        # as ONNX Runtime reads it; the specification leaves the pixel open
        return {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil" if min(scales) < 1 else "floor"}
    return {}


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
    """Shape and type of every tensor, by the constants that decide shapes; sizes that are not known are -1."""
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
    found = INFERRED.search(said) or _CHECKED.search(said)
    reason = said[found.end() :] if found and found.re is INFERRED else said
    reason = _TAG.sub("", reason.splitlines()[0]) if reason else type(error).__name__
    operator = f"{found['type']}: " if found else ""
    return ModelError(
        f"not a valid ONNX model: {operator}{reason}",
        where=source + (f", node {found['name']!r}" if found and found["name"] else ""),
        next_step=_NEXT_DECLARED if "existing" in reason else NEXT,
    )


def check_graph(graph: Graph, source: str) -> None:
    """Hold a graph that came from outside, its operators sorted, against what costs and predictors take for granted of it."""
    known = set(graph.inputs)
    for op in graph.operators:
        where = f"{source}, operator {op.name!r}"
        for name in (*op.inputs, *op.weights, *op.outputs):
            tensor = graph.tensors.get(name)
            if tensor is None or any(size < 1 for size in tensor.shape):
                raise no_static_shape(name, tensor, where)
        known.update(op.outputs)
        if lost := next((name for name in op.inputs if name not in known), None):
            raise ModelError(f"tensor {lost!r} is computed in training alone", where=where, next_step="export it for inference")
        check = SPECS[op.op_type].check
        if problem := _axis(graph, op) or (check and check(graph, op)):
            what, next_step = problem
            raise ModelError(f"{op.op_type} {what}", where=where, next_step=next_step)
    total = sum(tensor.size_bytes for tensor in graph.tensors.values())
    if total > MOST_BYTES:
        what = f"the tensors of the model take {total / 1e12:.0f} TB"
        raise ModelError(what, where=source, next_step="check the shapes and export it again")


def _axis(graph: Graph, op: Operator) -> Problem:
    rank = len(graph.shape(op.operands[0]))
    (axis,) = op.integers("axis", (0,))[:1] or (rank,)
    behind = op.op_type == "Flatten"  # which may join no axis
    return None if -rank <= axis < rank + behind or not axis else (f"along axis {axis} of {rank}", AGAIN)
