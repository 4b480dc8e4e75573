"""ONNX files, which are untrusted, to graphs.

A file is looked through (`contents`), held against ONNX's schemas and its shape inference (`shapes`), and brought to
the forms that the graph knows (`operators`); the graph is held against what kernels take for granted (`checks`). What passes
is safe to compute with: nothing behind this border checks a model again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx

from edgeplan.errors import ModelError
from edgeplan.graph.checks import check_graph
from edgeplan.graph.ir import Attribute, Graph, Operator, Tensor
from edgeplan.graph.model_file import read_model
from edgeplan.graph.names import free
from edgeplan.graph.onnx.constants import constant_values
from edgeplan.graph.onnx.contents import TRANSPARENT, Contents, contents_of
from edgeplan.graph.onnx.old_softmax import over_one_axis
from edgeplan.graph.onnx.opsets import modern
from edgeplan.graph.onnx.patterns import recognised
from edgeplan.graph.onnx.shapes import check_nodes, inferred, no_static_shape
from edgeplan.graph.onnx.stored import stored_weights
from edgeplan.graph.operators.base import input_of, is_zero, refuse
from edgeplan.graph.operators.registry import SPECS

#: The roles of a `Resize` before opset 11.
_OPSET_10_RESIZE = ("", "scales")
#: What operators became in opsets 10 and 11.
_LATER_NAMES = MappingProxyType({"Upsample": "Resize", "Scatter": "ScatterElements"})


def load_onnx(path: Path) -> Graph:
    """Read a static-shape ONNX file.

    Args:
        path: the model file; of external files only constants that decide shapes are read, weights need not be there.

    Raises:
        ModelError: the file is missing, corrupt, truncated or of an opset that is not known, it contradicts itself, a shape is
            dynamic, or an operator or a form of it is not known.
    """
    return from_onnx(read_model(path), str(path), path)


def from_onnx(model: onnx.ModelProto, source: str = "", path: Path | None = None) -> Graph:
    """Return a graph from an ONNX model, whose shapes are inferred here.

    Args:
        model: the model; it is not changed.
        source: where it comes from, for messages.
        path: its file, beside which external data lie; small constants are read from there.

    Raises:
        ModelError: as `load_onnx`.
    """
    contents = contents_of(model, source)
    check_nodes(contents, source)
    contents, stored = stored_weights(modern(contents, source), source)
    alias = dict(_equal_scalings(contents))
    read = {name for n in contents.nodes for name in n.input} | set(contents.outputs)
    nodes, taken = [], contents.names
    for given in contents.nodes:
        for place, name in enumerate(given.input):
            given.input[place] = alias.get(name, name)
        spec = SPECS.get(given.op_type)
        before = set(given.output)
        node = spec.form(given, contents.constants, read, source) if spec and spec.form else given
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
    graph = Graph(
        contents.name,
        operators,
        tuple(i.name for i in contents.inputs),
        outputs,
        MappingProxyType(tensors),
        MappingProxyType(constants),
        stored,
    )
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
    """Return values of the constants that decide shapes or that the graph keeps."""
    found: dict[str, npt.NDArray[Any]] = {}
    for node in nodes:
        for role, name in zip(_roles(node), node.input, strict=False):
            if not role or not name:
                continue
            if name not in contents.constants:
                if role in SPECS[node.op_type].computed:
                    continue
                raise ModelError(
                    f"{node.op_type} whose {role} is no constant",
                    where=f"{source}, node {node.name!r}",
                    next_step="fix the input shape and fold constants",
                )
            if name not in found:
                found[name] = constant_values(name, contents.constants[name], path, source)
            integers, several = role in SPECS[node.op_type].integers, node.op_type == "Clip" and found[name].size != 1
            if several or (integers and found[name].dtype not in (np.int64, np.int32)):
                raise ModelError(
                    f"{node.op_type} whose {role} is {found[name].size} numbers of type {found[name].dtype}",
                    where=f"{source}, node {node.name!r}",
                    next_step="export it with " + ("integers" if integers else "one number for each bound"),
                )
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
        if (
            name != source
            and (source in taken or source not in written)
            and name in tensors
            and source not in contents.constants
        ):
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
    node: onnx.NodeProto,
    contents: Contents,
    values: Mapping[str, npt.NDArray[Any]],
    tensors: Mapping[str, Tensor],
    source: str,
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
