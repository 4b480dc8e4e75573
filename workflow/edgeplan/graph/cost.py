"""This module counts the costs of operators and graphs on paper: multiply-adds, parameters, bytes moved.

FLOPs means multiply-adds, as in nn-Meter (footnote 1), and only convolutions, matrix products and recurrent layers do any:
biases, batch normalisation, activations, pooling, additions and data movement count nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.operators.registry import SPECS

# BatchNormalization also stores the running mean and variance: statistics, not learnt, and left out of published counts.
_LEARNABLE_BN_WEIGHTS = 2


def operator_macs(graph: Graph, op: Operator) -> int:
    """Multiply-adds of one operator: those of convolutions, products of matrices and recurrent layers, 0 for all else.

    A convolution does (in / groups) x kernel_h x kernel_w multiply-adds per output element, a fully connected layer as many as
    it has inputs, an LSTM 4 x hidden x (input + hidden) per step, sequence and direction (its gates' products; what joins the
    gates is element-wise).
    """
    macs = SPECS[op.op_type].macs
    return macs(graph, op) if macs else 0


def operator_parameters(graph: Graph, op: Operator) -> int:
    """Learnable parameters of one operator, in elements: weights and biases, no running mean and variance."""
    weights = op.weights[:_LEARNABLE_BN_WEIGHTS] if op.op_type == "BatchNormalization" else op.weights
    return sum(graph.tensors[name].elements for name in weights)


def graph_macs(graph: Graph) -> int:
    """Return the multiply-adds of the whole graph (the paper's FLOPs)."""
    return sum(operator_macs(graph, op) for op in graph.operators)


def graph_parameters(graph: Graph) -> int:
    """Learnable parameters of the whole graph, in elements."""
    return sum(operator_parameters(graph, op) for op in graph.operators)


def graph_memory_access_bytes(graph: Graph) -> int:
    """Memory access cost in bytes: every operator's feature maps, read and written, and its weights (nn-Meter, section 7.1).

    A map that an operator reads twice counts twice; of a batch normalisation's weights the mean and variance count, too.
    """
    return sum(_size_bytes(graph, (*op.inputs, *op.weights, *op.outputs)) for op in graph.operators)


def _size_bytes(graph: Graph, names: Iterable[str]) -> int:
    return sum(graph.tensors[name].size_bytes for name in names)


def footprint_bytes(graph: Graph) -> int:
    """Return the bytes that one run moves: all weights, and all that operators other than element-wise ones write.

    Rounded to a quarter of an octave, so that models of about one size share it.
    """
    return _kept(graph, "footprint_bytes", _footprint)


def arena_bytes(graph: Graph) -> int:
    """Return the most bytes of activations alive at one time, those of element-wise operators in place of their input.

    Rounded as `footprint_bytes` is.
    """
    return _kept(graph, "arena_bytes", _arena)


def _kept(graph: Graph, name: str, computed: Callable[[Graph], int]) -> int:
    """Compute a figure that each kernel of a graph asks for once, and keep it with the graph, as its cached properties are."""
    if name not in vars(graph):
        vars(graph)[name] = _quarter_octaves(computed(graph))
    found: int = vars(graph)[name]
    return found


def _quarter_octaves(size: int) -> int:
    return round(2 ** (round(4 * math.log2(max(1, size))) / 4))


def _footprint(graph: Graph) -> int:
    weights = sum(graph.tensors[w].size_bytes for op in graph.operators for w in op.weights)
    written = sum(graph.tensors[o].size_bytes for op in graph.operators if SPECS[op.op_type].moves for o in op.outputs)
    return weights + written


def _arena(graph: Graph) -> int:
    root = {name: name for name in graph.inputs}
    last = dict.fromkeys(graph.inputs, -1)
    for index, op in enumerate(graph.operators):
        for name in op.inputs:
            last[root[name]] = index
        for output in op.outputs:
            root[output] = output if SPECS[op.op_type].moves or not op.inputs else root[op.inputs[0]]
            last[root[output]] = index
    born: dict[str, None] = dict.fromkeys(graph.inputs)
    live = sum(graph.tensors[name].size_bytes for name in born)
    ending: dict[int, list[str]] = {}
    for name, index in last.items():
        ending.setdefault(index, []).append(name)
    peak = live
    for index, op in enumerate(graph.operators):
        for output in op.outputs:
            if root[output] == output:
                live += graph.tensors[output].size_bytes
        peak = max(peak, live)
        live -= sum(graph.tensors[name].size_bytes for name in ending.get(index, ()))
    return peak
