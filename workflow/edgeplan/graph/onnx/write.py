"""Graphs to ONNX models with seeded random weights."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from edgeplan.graph.ir import Attribute, Graph, Operator, Tensor
from edgeplan.graph.operators.registry import SPECS

OPSET = 17
IR_VERSION = 9

#: protobuf refuses messages of 2 GiB; weights above this many bytes go to a file beside the model.
EXTERNAL_DATA_THRESHOLD_BYTES = 1_500_000_000

Array = npt.NDArray[np.float32]


def weight_values(tensor: Tensor, role: str, seed: int) -> Array:
    """Seeded values of one weight: uniform, scaled so that activations neither vanish nor overflow; never zero or denormal.

    Args:
        tensor: the weight.
        role: `weight`, `bias`, `scale`, `mean` or `variance`; of an LSTM `input_weight`, `recurrence_weight` or `bias`.
        seed: seed of the whole model; each tensor draws from a stream of its own.
    """
    rng = np.random.default_rng((seed, zlib.crc32(tensor.name.encode())))
    values = rng.random(tensor.elements, dtype=np.float32)
    if role in ("scale", "variance"):
        values = values * np.float32(0.5) + np.float32(0.75)
    elif role in ("input_weight", "recurrence_weight"):  # small: an LSTM's states shall not depend chaotically on rounding
        values = (values - np.float32(0.5)) * np.float32(2 / tensor.shape[-1] ** 0.5)
        values[values == 0] = np.float32(1e-6)
    else:
        fan_in = max(1, tensor.elements // tensor.shape[0]) if role == "weight" else 100
        bound = np.float32((6.0 / fan_in) ** 0.5)
        values = (values - np.float32(0.5)) * (2 * bound)
        values[values == 0] = np.float32(1e-6)
    return values.reshape(tensor.shape)


def _opset(graph: Graph) -> int:
    """The opset to write: `OPSET`, or a newer one with an operator that has come since."""
    newest = OPSET
    for op_type in {op.op_type for op in graph.operators}:
        if not onnx.defs.has(op_type, max_inclusive_version=OPSET):
            newest = max(newest, onnx.defs.get_schema(op_type).since_version)
    return newest


def _constant_inputs(op: Operator, opset: int) -> tuple[dict[str, Attribute], list[tuple[str, npt.NDArray[Any]]]]:
    """Split attributes into those ONNX keeps and those it passes as constant tensors; a name "" stands for an absent input."""
    attributes = {key: value for key, value in op.attributes.items() if key != "constants"}
    spec, constants = SPECS[op.op_type], list[tuple[str, npt.NDArray[Any]]]()
    for role in spec.constants[1:] if spec.inputs_since <= opset else ():
        value = attributes.pop(role, None)
        kind = np.int64 if role in spec.integers else np.float32
        constants.append(("", np.empty(0, kind)) if value is None else (role, np.array(value, kind)))
    while constants and not constants[-1][0]:
        constants.pop()
    return attributes, constants


def to_onnx(graph: Graph, seed: int = 0) -> onnx.ModelProto:
    """A valid ONNX model of the graph, with seeded weights.

    Args:
        graph: the graph; weight tensors are named `<operator>.<role>`.
        seed: seed of the weights.
    """
    opset = _opset(graph)
    model = helper.make_model(
        helper.make_graph([], graph.name, [], []), opset_imports=[helper.make_opsetid("", opset)], producer_name="edgeplan"
    )
    model.ir_version = IR_VERSION
    body = model.graph
    for op in graph.operators:
        attributes, constants = _constant_inputs(op, opset)
        given, names = list(op.operands), []
        for key, value in constants:
            names.append(key and f"{op.name}.{key}")
            if key:
                _add_initializer(body, names[-1], np.asarray(value))
        for weight in op.weights:
            role = weight.rsplit(".", 1)[-1]
            _add_initializer(body, weight, weight_values(graph.tensors[weight], role, seed))
        body.node.append(helper.make_node(op.op_type, [*given, *names], list(op.outputs), name=op.name, **attributes))
    for infos, tensors in ((body.input, graph.inputs), (body.output, graph.outputs)):
        infos.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(graph.shape(name))) for name in tensors)
    return model


def _add_initializer(body: onnx.GraphProto, name: str, values: npt.NDArray[Any]) -> None:
    """Write an initializer in place: `make_graph` and `make_model` would copy hundreds of megabytes, several times."""
    tensor = body.initializer.add(name=name, data_type=helper.np_dtype_to_tensor_dtype(values.dtype), raw_data=values.tobytes())
    tensor.dims.extend(values.shape)


def weight_bytes(graph: Graph) -> int:
    """Bytes of all weights of the graph."""
    return sum(graph.tensors[w].size_bytes for op in graph.operators for w in op.weights)


def save_onnx(graph: Graph, path: Path, seed: int = 0) -> Path:
    """Write the graph as an ONNX file; weights near protobuf's limit go to `<path>.data` beside it."""
    model = to_onnx(graph, seed)
    external = weight_bytes(graph) > EXTERNAL_DATA_THRESHOLD_BYTES
    onnx.save(
        model,
        path,
        save_as_external_data=external,
        all_tensors_to_one_file=True,
        location=f"{path.name}.data" if external else None,
    )
    return path
