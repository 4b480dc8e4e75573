"""Builds models of copies of one executed node, which ONNX Runtime runs as they stand: a description is enough.

Weights are drawn, equal ones for each copy in memory of its own: floats from [0.05, 1), so that nothing becomes a denormal,
overflows or is no number. Integers that steer a node follow from its shapes, by the names that ONNX Runtime's schemas give
its inputs.
"""

from __future__ import annotations

import base64
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.capi.onnxruntime_pybind11_state import get_all_operator_schema

from edgeplan.engines.base import Array
from edgeplan.engines.copies import apart
from edgeplan.errors import ModelError
from edgeplan.graph.nodes import NodeConfig, Operand

_IR_VERSION = 10
#: Weights of fewer bytes stand in the model itself, where ONNX Runtime reads shapes and axes.
_INSIDE_BYTES = 1024
_DRAWN = 1 << 20  # values drawn of a type; what is larger repeats them


@dataclass(frozen=True, slots=True)
class CopiesModel:
    """A model of copies, its large weights beside it: they are handed over without a copy in between.

    Attributes:
        model: the model, as bytes.
        weights: values of the initialisers that it names as external.
        inputs: values of its inputs.
    """

    model: bytes
    weights: Mapping[str, Array] = field(default_factory=dict)
    inputs: Mapping[str, Array] = field(default_factory=dict)


def copies_model(config: NodeConfig, copies: int) -> CopiesModel:
    """Make a model of copies of a node: small activations are shared, large ones and weights are each copy's own.

    Raises:
        ModelError: this version of ONNX Runtime has no such node.
    """
    schema, graph, separate = _schema(config), onnx.GraphProto(name="copies"), apart(config)
    weights, inputs = dict[str, Array](), dict[str, Array]()
    attributes = [helper.make_attribute(name, value) for name, value in config.attributes if value != ()]
    attributes += _body(config)
    for copy in range(copies):
        node = graph.node.add(op_type=config.op, domain=config.domain, name=f"copy{copy}", attribute=attributes)
        for place, operand in enumerate(config.inputs):
            name = f"in{place}" + (f"@{copy}" if separate or (operand and operand.constant) else "") if operand else ""
            node.input.append(name)
            if not operand or name in inputs:
                continue
            values = _values(config, operand, place, _role(schema, place))
            if not operand.constant:
                inputs[name] = values
                graph.input.append(helper.make_tensor_value_info(name, _element_type(operand), operand.shape))
            elif operand.bytes < _INSIDE_BYTES:
                graph.initializer.append(numpy_helper.from_array(values, name))
            else:
                weights[name] = values
                graph.initializer.append(_outside(name, operand))
        node.output.extend(f"out{place}@{copy}" if operand else "" for place, operand in enumerate(config.outputs))
        written = [(name, one) for name, one in zip(node.output, config.outputs, strict=True) if one]
        for name, operand in written if separate else written[: not copy]:  # copies that nobody reads are run all the same
            graph.output.append(helper.make_tensor_value_info(name, _element_type(operand), None))
    opset = helper.make_opsetid(config.domain, schema.since_version)
    model = onnx.ModelProto(ir_version=_IR_VERSION, graph=graph, opset_import=[opset])
    return CopiesModel(model.SerializeToString(), weights, inputs)


def _body(config: NodeConfig) -> list[onnx.AttributeProto]:
    """Return the attributes that hold tensors and graphs."""
    return list(onnx.NodeProto.FromString(base64.b64decode(config.body)).attribute)


def _outside(name: str, operand: Operand) -> TensorProto:
    told = TensorProto(name=name, dims=operand.shape, data_type=_element_type(operand), data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "given"), ("offset", "0"), ("length", str(operand.bytes))):
        told.external_data.add(key=key, value=value)
    return told


def _element_type(operand: Operand) -> int:
    return TensorProto.STRING if operand.dtype == "str" else int(helper.np_dtype_to_tensor_dtype(np.dtype(operand.dtype)))


@cache
def _schemas() -> Mapping[tuple[str, str], list[Any]]:
    """Return ONNX Runtime's schemas of each operator, the newest first."""
    found: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for schema in sorted(get_all_operator_schema(), key=lambda one: -one.since_version):
        found[schema.domain, schema.name].append(schema)
    return found


def _schema(config: NodeConfig) -> Any:
    """Return the newest schema that a node fits: its description does not tell the opset of its model."""
    given = {name for name, _ in config.attributes} | {one.name for one in _body(config)}
    for schema in _schemas().get((config.domain, config.op), ()):
        fits = schema.min_input <= len(config.inputs) <= schema.max_input and len(config.outputs) <= schema.max_output
        if fits and given <= schema.attributes.keys() and not schema.deprecated:
            return schema
    raise ModelError(
        f"this version of ONNX Runtime has no node {config.op} with such attributes and inputs",
        where=f"domain {config.domain or 'ai.onnx'}",
        next_step="leave it out, or use the version that told it",
    )


def _role(schema: Any, place: int) -> str:
    """Return the name that a schema gives an input; the last name stands for all of a list."""
    return str(schema.inputs[min(place, len(schema.inputs) - 1)].name)


@cache
def _block(dtype: str) -> Array:
    rng = np.random.default_rng(0)
    values: Array = np.ones(_DRAWN, dtype)  # divides, and is an index, a length, and true
    if dtype in ("int8", "uint8"):  # around the usual zero point
        values = rng.integers(-28, 28, _DRAWN).astype(dtype) + np.array(_zero_point(dtype), dtype)
    elif values.dtype.kind == "f":
        values = (rng.random(_DRAWN, dtype=np.float32) * np.float32(0.95) + np.float32(0.05)).astype(dtype)
    return values


def _zero_point(dtype: str) -> int:
    return 128 if dtype == "uint8" else 0


def _values(config: NodeConfig, operand: Operand, place: int, role: str) -> Array:
    """Return values of an input that its node can run with, as fast as usual."""
    if operand.dtype == "str":
        return np.full(operand.shape, "a", object)
    known: npt.ArrayLike | None = operand.values
    if known is None:
        known = _zero_point(operand.dtype) if "zero_point" in role else _steering(config, role)
    if known is not None:
        return np.resize(np.array(known, operand.dtype), operand.shape)
    if limit := _limit(config, role):
        return np.random.default_rng(place).integers(0, limit, operand.shape, operand.dtype)
    return np.resize(_block(operand.dtype)[: operand.elements], operand.shape)


def _steering(config: NodeConfig, role: str) -> npt.ArrayLike | None:
    """Return the values of an input that shapes what a node writes, by what it writes; None of any other input."""
    first, last = config.inputs[0], config.outputs[0]
    read, written = first.shape if first else (), last.shape if last else ()
    found: npt.ArrayLike | None = None
    match config.op, role:
        case ("Reshape" | "Expand", "shape") | ("ConstantOfShape", "input") | ("Resize", "sizes"):
            found = written
        case "Tile", "repeats":
            found = [new // old for new, old in zip(written, read, strict=True)]
        case "Resize" | "Upsample", "scales":
            found = [new / old for new, old in zip(written, read, strict=True)]
        case "Range", ("start" | "limit" | "delta"):
            found = {"start": 0, "limit": written[0], "delta": 1}[role]
        case ("TopK", "K") | ("OneHot", "depth"):
            found = written[_integer(config, "axis", -1)]
        case "LSTM" | "GRU" | "RNN" | "DynamicQuantizeLSTM", "sequence_lens":
            found = read[0]
        case "Pow", "Y":
            found = 2  # the one exponent that models have; ONNX Runtime multiplies for it
    return found


def _limit(config: NodeConfig, role: str) -> int:
    """Return what the integers of an input stay below, as they are places of another; 0 of any other input."""
    if role == "input_ids" and len(config.inputs) > 2 and (table := config.inputs[2]):
        return table.shape[0]
    data = config.inputs[0]
    if role != "indices" or data is None:
        return 0
    if config.op.endswith("ND") and (indices := config.inputs[1]):
        begin = _integer(config, "batch_dims", 0)
        return min(data.shape[begin : begin + indices.shape[-1]])
    return data.shape[_integer(config, "axis", 0)]


def _integer(config: NodeConfig, name: str, default: int) -> int:
    value = config.attribute(name, default)
    assert isinstance(value, int)  # noqa: S101  by the schema
    return value
