"""Keeps the context of a lowering to TFLite: the graph, its values, the file being built, and fusion of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.kinds import kind
from edgeplan.support.tensors import Array

_FILE_IDENTIFIER = b"TFL3"
_SCHEMA_VERSION = 3
#: Operator codes above this are written only in the newer, wider field.
_LAST_DEPRECATED_CODE = 127
_INITIAL_BYTES = 1 << 20
_TYPES = {np.dtype(np.float32): schema.TensorType.FLOAT32, np.dtype(np.int32): schema.TensorType.INT32}


class TfliteFile:
    """A file is built tensor by tensor and operator by operator, then written once."""

    def __init__(self) -> None:
        self._tensors: list[Any] = []
        self._buffers: list[Any] = [schema.BufferT()]  # buffer 0 is empty by convention
        self._operators: list[Any] = []
        self._codes: dict[int, int] = {}

    def tensor(self, name: str, shape: Sequence[int]) -> int:
        """Declare an f32 activation; returns its index."""
        return self._add(name, shape, schema.TensorType.FLOAT32, 0)

    def constant(self, name: str, value: npt.NDArray[Any]) -> int:
        """Store an f32 or int32 constant; returns its index."""
        buffer = schema.BufferT()
        buffer.data = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        self._buffers.append(buffer)
        return self._add(name, value.shape, _TYPES[value.dtype], len(self._buffers) - 1)

    def integers(self, name: str, values: Sequence[int]) -> int:
        """Store a vector of int32 values."""
        return self.constant(name, np.array(values, np.int32))

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(self._tensors[index].shape)

    def operator(self, code: str, inputs: Sequence[int], outputs: Sequence[int], options: str = "", **values: Any) -> None:
        """Append a builtin operator to the file: of tensor indices, -1 for an optional one that is absent.

        Its table of options is named without `Options`, "" for none; `values` are fields of that table.
        """
        operator = schema.OperatorT()
        operator.opcodeIndex = self._codes.setdefault(getattr(schema.BuiltinOperator, code), len(self._codes))
        operator.inputs, operator.outputs = list(inputs), list(outputs)
        if options:
            table = getattr(schema, f"{options}OptionsT")()
            for key, value in values.items():
                setattr(table, key, value)
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, f"{options}Options")
            operator.builtinOptions = table
        self._operators.append(operator)

    def write(self, path: Path, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> None:
        """Write the file with one signature of the given names."""
        graph = schema.SubGraphT()
        graph.tensors, graph.operators = self._tensors, self._operators
        graph.inputs, graph.outputs = list(inputs.values()), list(outputs.values())
        signature = schema.SignatureDefT()
        signature.signatureKey, signature.subgraphIndex = "serving_default", 0
        signature.inputs = [_named(name, index) for name, index in inputs.items()]
        signature.outputs = [_named(name, index) for name, index in outputs.items()]
        model = schema.ModelT()
        model.version, model.description = _SCHEMA_VERSION, "edgeplan"
        model.operatorCodes = [_code(code) for code in self._codes]
        model.subgraphs, model.buffers, model.signatureDefs = [graph], self._buffers, [signature]
        builder = flatbuffers.Builder(_INITIAL_BYTES)
        builder.Finish(model.Pack(builder), _FILE_IDENTIFIER)
        path.write_bytes(builder.Output())

    def _add(self, name: str, shape: Sequence[int], kind: int, buffer: int) -> int:
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.type, tensor.buffer = name, list(shape), kind, buffer
        self._tensors.append(tensor)
        return len(self._tensors) - 1


def _code(builtin: int) -> Any:
    code = schema.OperatorCodeT()
    code.builtinCode, code.version = builtin, 1
    code.deprecatedBuiltinCode = min(builtin, _LAST_DEPRECATED_CODE)
    return code


def _named(name: str, index: int) -> Any:
    entry = schema.TensorMapT()
    entry.name, entry.tensorIndex = name, index
    return entry


#: Stored axis i of a tensor holds this ONNX axis, by rank: channels last.
_LAYOUTS: Mapping[int, tuple[int, ...]] = MappingProxyType({4: (0, 2, 3, 1), 5: (0, 3, 4, 1, 2)})
NONE, RELU, RELU6 = 0, 1, 3
FUSED = MappingProxyType({"relu": RELU, "relu6": RELU6})


def layout(rank: int) -> tuple[int, ...]:
    """Return the ONNX axis that each stored axis of a tensor holds."""
    return _LAYOUTS.get(rank, tuple(range(rank)))


class LoweringContext:
    """A context holds a graph while it is lowered; operators that were fused into an earlier one are `_done`."""

    def __init__(self, graph: Graph, values: Mapping[str, Any]) -> None:
        self._graph, self._values, self._file = graph, values, TfliteFile()
        self._index: dict[str, int] = {name: self._declare(name) for name in graph.inputs}
        self._done: set[str] = set()

    def _declare(self, name: str) -> int:
        shape = self._graph.shape(name)
        return self._file.tensor(name, [shape[axis] for axis in layout(len(shape))])

    def _out(self, name: str) -> int:
        self._index[name] = self._declare(name)
        return self._index[name]

    def _weights(self, op: Operator) -> list[Array]:
        return [np.asarray(self._values[name], np.float32) for name in op.weights]

    def _scratch(self, op: Operator, role: str, shape: Sequence[int]) -> int:
        return self._file.tensor(f"{op.name}/{role}", shape)

    def _emit_reshape(self, op: Operator, x: int, out: int) -> None:
        shape = self._file.shape(out)
        index = self._file.integers(f"{op.name}/shape", shape)
        self._file.operator("RESHAPE", [x, index], [out], "Reshape", newShape=list(shape))

    def _only_reader(self, name: str, op_type: str = "") -> Operator | None:
        readers = self._graph.consumers.get(name, ())
        if len(readers) != 1 or name in self._graph.outputs or readers[0].inputs.count(name) != 1:
            return None
        return readers[0] if not op_type or readers[0].op_type == op_type else None

    def _fused_activation(self, name: str) -> tuple[int, str]:
        """Return the activation that follows a tensor and can be fused, and the name of what it writes."""
        reader = self._only_reader(name)
        code = FUSED.get(kind(self._graph, reader)) if reader is not None else None
        if reader is None or code is None:
            return NONE, name
        self._done.add(reader.name)
        return code, reader.outputs[0]

    def _scale_and_shift(self, bn: Operator) -> tuple[Array, Array]:
        gamma, beta, mean, variance = self._weights(bn)
        scale = (gamma / np.sqrt(variance + np.float32(bn.number("epsilon", 1e-5)))).astype(np.float32)
        return scale, (beta - mean * scale).astype(np.float32)
