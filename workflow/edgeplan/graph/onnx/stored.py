"""Weights that a file holds in fewer bytes than the numbers that operators read: halves behind a Cast, bytes behind scales.

Preparation leaves them so, and a graph knows them by the name of the numbers. Bytes are int8 and stand for themselves times
a scale: a zero point that leaves them within int8 has been taken off.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeplan.graph.ir import StoredWeight, Tensor
from edgeplan.graph.onnx.constants import is_stored_as, take_as
from edgeplan.graph.onnx.contents import Contents
from edgeplan.graph.onnx.rewriting import names_in
from edgeplan.graph.operators.base import attributes_of, input_of
from edgeplan.graph.operators.quantising import check_scale
from edgeplan.graph.shapes import free

#: Where operators read weights that may be stored in fewer bytes: all kernels of these widen them when they are prepared.
_PLACES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {**dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), (1,)), **dict.fromkeys(("LSTM", "GRU", "RNN"), (1, 2))}
)
_ONE_FOR_ALL = ((), (1,))


def read_as_weights(graph: onnx.GraphProto, constants: Collection[str]) -> frozenset[str]:
    """Return the names of constants that operators with an activation read as their weights, and nothing else reads."""
    return _weights(graph.node, {value.name for value in graph.output}, constants)


def _weights(nodes: Iterable[onnx.NodeProto], outputs: Collection[str], constants: Collection[str]) -> frozenset[str]:
    readers: defaultdict[str, list[bool]] = defaultdict(list)
    for node in nodes:
        places = () if input_of(node, 0) in constants else _PLACES.get(node.op_type, ())
        for place, name in enumerate(node.input):
            readers[name].append(place in places)
    return frozenset(name for name, as_weight in readers.items() if all(as_weight) and name not in outputs)


def narrow_to_halves(model: onnx.ModelProto) -> None:
    """Store weights of a model that was of half precision as float16 behind a Cast, where no value changes by that.

    Of those that lie in other files these are such that are float16 there.
    """
    constants = {tensor.name for tensor in model.graph.initializer}
    weights, casts = read_as_weights(model.graph, constants), list[onnx.NodeProto]()
    taken = names_in(model.graph)
    for tensor in model.graph.initializer:
        if tensor.name not in weights or tensor.data_type != TensorProto.FLOAT:
            continue
        name = tensor.name
        if tensor.data_location == TensorProto.EXTERNAL:
            if is_stored_as(tensor, TensorProto.FLOAT16):
                take_as(tensor, TensorProto.FLOAT16)
                tensor.name = free(f"{name}:half", taken)
                casts.append(_widening(tensor.name, name))
            continue
        values = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is left
            halves = values.astype(np.float16)
        if np.array_equal(halves.astype(np.float32), values):
            tensor.CopyFrom(numpy_helper.from_array(halves, free(f"{name}:half", taken)))
            casts.append(_widening(tensor.name, name))
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _widening(half: str, name: str) -> onnx.NodeProto:
    return helper.make_node("Cast", [half], [name], name=f"{name}:single", to=TensorProto.FLOAT)


def stored_weights(contents: Contents, source: str) -> tuple[Contents, Mapping[str, StoredWeight]]:
    """Return contents whose stored weights are constants of float32, their values elsewhere, and how they are stored."""
    weights = _weights(contents.nodes, contents.outputs, contents.constants)
    found: dict[str, StoredWeight] = {}
    for node in contents.nodes:
        if node.output[0] in weights and (stored := _stored(node, contents)) is not None:
            found[node.output[0]] = stored
            if stored.scale is not None:
                check_scale(contents.constants[stored.scale.name], node, source)
    if not found:
        return contents, MappingProxyType({})
    numbers = {name: Tensor(name, stored.values.shape) for name, stored in found.items()}
    # their values are not at hand, as those of weights in another file
    hollow = {
        name: TensorProto(name=name, data_type=TensorProto.FLOAT, dims=tensor.shape, data_location=TensorProto.EXTERNAL)
        for name, tensor in numbers.items()
    }
    return (
        replace(
            contents,
            nodes=tuple(node for node in contents.nodes if node.output[0] not in found),
            constants=MappingProxyType({**contents.constants, **hollow}),
            tensors=MappingProxyType({**contents.tensors, **numbers}),
        ),
        MappingProxyType(found),
    )


def _stored(node: onnx.NodeProto, contents: Contents) -> StoredWeight | None:
    """Return how a node's output is stored, if the node only widens a constant."""
    given, attributes = [contents.tensors.get(name) for name in node.input if name], attributes_of(node)
    if not given or given[0] is None or not contents.constants.keys() >= {*filter(None, node.input)}:
        return None
    values = given[0]
    if node.op_type == "Cast" and values.dtype == "float16" and attributes.get("to") == TensorProto.FLOAT:
        return StoredWeight(values)
    if node.op_type != "DequantizeLinear" or len(given) != 2 or values.dtype != "int8" or attributes.get("block_size"):
        return None
    scale, axis = given[1], int(attributes.get("axis", 1))
    if scale is None or scale.dtype != "float32" or not -len(values.shape) <= axis < len(values.shape):
        return None
    axis %= len(values.shape)
    return StoredWeight(values, scale, axis) if scale.shape in (*_ONE_FOR_ALL, values.shape[axis : axis + 1]) else None
