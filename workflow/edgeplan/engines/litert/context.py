"""Keeps the context of a lowering to TFLite: the graph, its values, the file being built, and fusion of operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from edgeplan.engines.litert.file import TfliteFile
from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.kinds import kind
from edgeplan.support.tensors import Array

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
