"""ONNX files, which are untrusted, to graphs."""

from __future__ import annotations

from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper, shape_inference

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Attribute, Graph, Operator, Tensor
from edgeplan.graph.kinds import KNOWN_ONNX_TYPES
from edgeplan.graph.onnx_forms import FORMS
from edgeplan.graph.onnx_meaning import Known, embed_values, meant, opset_of, require_inference

_DTYPES = MappingProxyType(
    {
        TensorProto.FLOAT: "float32",
        TensorProto.FLOAT16: "float16",
        TensorProto.BFLOAT16: "bfloat16",
        TensorProto.DOUBLE: "float64",
        TensorProto.INT64: "int64",
        TensorProto.INT32: "int32",
        TensorProto.INT8: "int8",
        TensorProto.UINT8: "uint8",
        TensorProto.BOOL: "bool",
    }
)

#: Operators that pass their input on unchanged at inference.
_TRANSPARENT = frozenset({"Identity", "Dropout"})
#: Which inputs of an operator are constants that the graph keeps as attributes.
_CONSTANT_INPUTS = MappingProxyType(
    {
        "Reshape": ("", "shape"),
        "Split": ("", "split"),
        "Clip": ("", "min", "max"),
        "ReduceMean": ("", "axes"),
        "Squeeze": ("", "axes"),
        "Unsqueeze": ("", "axes"),
        "Resize": ("", "roi", "scales", "sizes"),
    }
)
_SMALL_CONSTANT_ELEMENTS = 64


def load_onnx(path: Path) -> Graph:
    """Read a static-shape ONNX file.

    Args:
        path: the model file; weights in external files are not read, only their shapes.

    Raises:
        ModelError: the file is missing, corrupt or truncated, a shape is dynamic, or an operator is not known.
    """
    if not path.is_file():
        raise ModelError(f"no model file {path}", next_step="check the path; the file must be an ONNX model")
    try:
        model = onnx.load(path, load_external_data=False)
        if not model.graph.node:
            raise ModelError("the model holds no operators", where=str(path), next_step="export the model again")
        embed_values(model, path.parent, str(path))
        model = shape_inference.infer_shapes(model, strict_mode=False, data_prop=True)
    except (DecodeError, OSError, ValueError, shape_inference.InferenceError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ModelError(
            f"not a readable ONNX model: {reason}",
            where=str(path),
            next_step="the file may be corrupt or truncated: copy or export it again",
        ) from error
    return from_onnx(model, source=str(path))


def from_onnx(model: onnx.ModelProto, source: str = "") -> Graph:
    """A graph from an ONNX model whose shapes have been inferred (see `load_onnx`).

    Raises:
        ModelError: a shape is dynamic or unknown, or an operator is not known.
    """
    g = model.graph
    unknown = {f"{n.domain + '::' if n.domain else ''}{n.op_type}": n.name or n.output[0] for n in g.node if not _known(n)}
    if unknown:
        listed = ", ".join(f"{op} (node {name!r})" for op, name in unknown.items())
        raise ModelError(
            f"unknown operator: {listed}",
            where=source,
            next_step="known operators are " + ", ".join(sorted(KNOWN_ONNX_TYPES | _TRANSPARENT)),
        )
    constants = {i.name: i for i in g.initializer}
    alias: dict[str, str] = {}
    for node in g.node:
        if node.op_type == "Constant":
            value = next((a.t for a in node.attribute if a.name == "value"), None)
            if value is None:
                raise ModelError(
                    "a Constant node without a tensor value",
                    where=f"{source}, node {node.name!r}",
                    next_step="simplify the model",
                )
            constants[node.output[0]] = value
        elif node.op_type in _TRANSPARENT:
            alias[node.output[0]] = alias.get(node.input[0], node.input[0])
    tensors = {name: Tensor(name, tuple(c.dims), _DTYPES.get(c.data_type, "float32")) for name, c in constants.items()}
    for value in [*g.value_info, *g.input, *g.output]:
        if value.name not in tensors:
            tensors[value.name] = _tensor(value)
    inputs = tuple(i.name for i in g.input if i.name not in constants)
    read = {name for n in g.node for name in n.input} | {o.name for o in g.output}
    operators = []
    used: set[str] = set()
    known = Known(source, opset_of(model), constants, tensors, alias)
    for index, given in enumerate(g.node):
        if given.op_type in _TRANSPARENT or given.op_type == "Constant":
            require_inference(given, known)
            continue
        node, form = meant(given, known), FORMS.get(given.op_type)
        operators.append(_operator(form(node, constants, read, source) if form else node, index, constants, alias, used))
    graph = Graph(
        g.name or "model",
        tuple(operators),
        inputs,
        tuple(alias.get(o.name, o.name) for o in g.output),
        MappingProxyType(tensors),
    )
    _check_static(graph, source)
    return graph


def _known(node: onnx.NodeProto) -> bool:
    if node.domain not in ("", "ai.onnx"):
        return False
    if node.op_type == "ReduceMean":
        return True
    return node.op_type in KNOWN_ONNX_TYPES or node.op_type in _TRANSPARENT or node.op_type == "Constant"


def _tensor(value: onnx.ValueInfoProto) -> Tensor:
    """Shape of an activation; a dynamic axis is -1 and reported by `_check_static`."""
    kind = value.type.tensor_type
    shape = tuple(d.dim_value if d.HasField("dim_value") and d.dim_value > 0 else -1 for d in kind.shape.dim)
    return Tensor(value.name, shape, _DTYPES.get(kind.elem_type, "float32"))


def _attribute(attribute: onnx.AttributeProto) -> Attribute:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, int | float):
        return value
    return tuple(value)


def _operator(
    node: onnx.NodeProto, index: int, constants: dict[str, TensorProto], alias: dict[str, str], used: set[str]
) -> Operator:
    attributes: dict[str, Attribute] = {
        a.name: _attribute(a) for a in node.attribute if a.type not in (onnx.AttributeProto.TENSOR, onnx.AttributeProto.GRAPH)
    }
    inputs: list[str] = []
    weights: list[str] = []
    roles = _CONSTANT_INPUTS.get(node.op_type, ())
    for position, given in enumerate(node.input):
        if not given:
            continue
        name = alias.get(given, given)
        role = roles[position] if position < len(roles) else ""
        if role and name in constants:
            values = numpy_helper.to_array(constants[name])
            if values.size <= _SMALL_CONSTANT_ELEMENTS:
                numbers = tuple(v.item() for v in np.ravel(values))
                attributes[role] = numbers[0] if node.op_type == "Clip" else numbers
        elif name in constants:
            weights.append(name)
        else:
            inputs.append(name)
    name = node.name or f"{node.op_type.lower()}_{index}"
    if name in used:  # ONNX allows repeated names; here they identify operators
        name = f"{name}_{index}"
    used.add(name)
    outputs = tuple(o for o in node.output if o)
    return Operator(name, node.op_type, tuple(inputs), outputs, tuple(weights), MappingProxyType(attributes))


def _check_static(graph: Graph, source: str) -> None:
    for op in graph.operators:
        for name in (*op.inputs, *op.outputs):
            tensor = graph.tensors.get(name)
            if tensor is None or any(size < 1 for size in tensor.shape):
                raise ModelError(
                    f"tensor {name!r} has no static shape" + (f" ({tensor.shape}, -1 is dynamic)" if tensor else ""),
                    where=f"{source}, operator {op.name!r}",
                    next_step="fix the input shape: python -m onnxruntime.tools.make_dynamic_shape_fixed",
                )
