"""Writes TFLite files: tensors, constants and operators of one f32 subgraph, by the schema that LiteRT ships."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import numpy.typing as npt
from ai_edge_litert import schema_py_generated as schema

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
        """Append an operator to the file.

        Args:
            code: name of the builtin operator.
            inputs: tensor indices, -1 for an optional one that is absent.
            outputs: tensor indices.
            options: name of its table of options without `Options`, or "".
            values: fields of that table.
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
