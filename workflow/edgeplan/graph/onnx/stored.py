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
from edgeplan.graph.model_file import messages_of
from edgeplan.graph.onnx.constants import held_value, is_stored_as, take_as
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
_HALVES = frozenset({TensorProto.FLOAT16, TensorProto.BFLOAT16})
_STORED = frozenset({TensorProto.INT64, TensorProto.INT32, TensorProto.INT8, TensorProto.UINT8, TensorProto.BOOL})


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


def is_half(model: onnx.ModelProto) -> bool:
    """Tell whether any tensor that is stored, or inputs or outputs, are of half precision."""
    declared = (value.type.tensor_type.elem_type for value in (*model.graph.input, *model.graph.output))
    return not _HALVES.isdisjoint((*declared, *(tensor.data_type for tensor in messages_of(model, TensorProto))))


def has_odd_output(model: onnx.ModelProto) -> bool:
    """Tell whether an output is a constant whose integers do not stand as bytes in the file."""
    names = {output.name for output in model.graph.output}
    for node in reversed(model.graph.node):
        if names.isdisjoint(node.output):
            continue
        if node.op_type == "Identity":
            names.update(node.input)
        if node.op_type == "Constant" and not any(a.HasField("t") for a in node.attribute):
            return True
    constants = (n for n in model.graph.node if n.op_type == "Constant" and not names.isdisjoint(n.output))
    held = [tensor for tensor in model.graph.initializer if tensor.name in names]
    held += [a.t for node in constants for a in node.attribute if a.HasField("t")]
    return any(map(_is_unstored, held))


def _is_unstored(tensor: onnx.TensorProto) -> bool:
    """Tell whether integers do not stand as bytes in the file, where kernels would find them."""
    return tensor.data_type in _STORED and not tensor.HasField("raw_data") and tensor.data_location != TensorProto.EXTERNAL


def store_constants_as_bytes(model: onnx.ModelProto) -> None:
    """Store the integers of constants as bytes; those that are outputs stay nodes."""
    for tensor in model.graph.initializer:
        _store_as_bytes(tensor)
    for node in model.graph.node:
        value = held_value(node) if node.op_type == "Constant" else None
        if value is not None:
            _store_as_bytes(value)
            held = helper.make_attribute("value", value)
            del node.attribute[:]
            node.attribute.append(held)


def _store_as_bytes(tensor: onnx.TensorProto) -> None:
    """Have integers stand as bytes in the file."""
    if _is_unstored(tensor):
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor), tensor.name))


def _rounding(graph: onnx.GraphProto) -> frozenset[str]:
    """Write casts to half precision, but those that casts alone read, such that they round and write single; halves' names."""
    readers, taken = dict[str, list[onnx.NodeProto]](), names_in(graph)
    for node in graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    written, nodes, stored = {value.name for value in graph.output}, list[onnx.NodeProto](), set[str]()
    for node in graph.node:
        nodes.append(node)
        kind = next((a.i for a in node.attribute if a.name == "to"), 0) if node.op_type == "Cast" else 0
        if kind not in _HALVES:
            continue
        (name,) = node.output
        if name not in written and all(map(_is_cast_to_single, readers.get(name, ()))):
            stored.add(name)
            continue
        single, half = free(f"{name}:single", taken), free(f"{name}:half", taken)
        stored.add(half)
        nodes[-1:] = [
            helper.make_node("Cast", [node.input[0]], [single], name=f"{node.name or name}:single", to=TensorProto.FLOAT),
            helper.make_node("Cast", [single], [half], name=f"{node.name or name}:half", to=kind),
            helper.make_node("Cast", [half], [name], name=node.name or name, to=TensorProto.FLOAT),
        ]
    del graph.node[:]
    graph.node.extend(nodes)
    return frozenset(stored)


def _is_cast_to_single(node: onnx.NodeProto) -> bool:
    return node.op_type == "Cast" and any(a.name == "to" and a.i == TensorProto.FLOAT for a in node.attribute)


def widen(model: onnx.ModelProto) -> str:
    """Make all of half precision single, casts to it round, and integers be stored as bytes; the names of what was half."""
    found: set[int] = set()
    for tensor in messages_of(model, TensorProto):
        _store_as_bytes(tensor)
        if tensor.data_type not in _HALVES:
            continue
        found.add(tensor.data_type)
        if tensor.data_location == TensorProto.EXTERNAL:
            take_as(tensor, TensorProto.FLOAT)
        else:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), tensor.name))
    for graph in messages_of(model, onnx.GraphProto):
        stored = _rounding(graph)
        for value in (*graph.input, *graph.output, *graph.value_info):
            kind = value.type.tensor_type
            if kind.elem_type in _HALVES and value.name not in stored:
                found.add(kind.elem_type)
                kind.elem_type = TensorProto.FLOAT
    return " and ".join(sorted(TensorProto.DataType.Name(kind).lower() for kind in found))


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
