"""Kernels of graphs as executed nodes: their description, and graphs of copies that time one.

Engines that run our own graphs name the operators that run as one; a kernel is described by its anchor, as ONNX writes it,
and holds all that it takes to build it again.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from edgeplan.errors import FormatError
from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.ir import Attribute, Graph, Operator, Tensor
from edgeplan.graph.kernels import make_kernel, outputs_of
from edgeplan.graph.nodes import MOST_VALUES, AttributeValue, ExecutedModel, ExecutedNode, NodeConfig, Operand
from edgeplan.graph.onnx.write import weight_bytes
from edgeplan.graph.places import Constant, placed, plain_attributes
from edgeplan.graph.splitting import split_members

if TYPE_CHECKING:
    from edgeplan.engines.base import Engine, EngineNode
    from edgeplan.graph.fusion_rules import FusionRules

#: Type of a layout conversion, and the domain of kernels of several operators.
REORDER, FUSED = "Reorder", "fused"
#: What stands before operators and tensors that bring copies their inputs in the layout that they read.
LEAD = "lead."
#: Activations of so many bytes are not shared by copies: together they lie beyond a cache, as in a model.
LARGE_BYTES = 256 << 10
#: Channels that a convolution reads which hands on an activation in the engine's layout.
_LEAD_CHANNELS = 16
#: How weights are drawn (`weight_chunks`), by place; those of other operators are operands.
_ROLES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "BatchNormalization": ("scale", "bias", "mean", "variance"),
        **dict.fromkeys(("Conv", "ConvTranspose", "Gemm", "MatMul"), ("weight", "bias")),
        **dict.fromkeys(("LSTM", "GRU", "RNN"), ("input_weight", "recurrence_weight", "bias")),
        **dict.fromkeys(("LayerNormalization", "GroupNormalization", "InstanceNormalization"), ("scale", "bias")),
        **dict.fromkeys(("RMSNormalization", "QuantizeLinear", "DequantizeLinear"), ("scale",)),
    }
)


def node_config(graph: Graph, members: Sequence[str], input_layout: str = "", output_layout: str = "") -> NodeConfig:
    """Describe operators that run as one.

    Inputs are the operands of the anchor in ONNX's order, then what other members read beside. Attributes are the anchor's,
    `fused` with the types of the others, and the layouts that the engine tells.

    Args:
        graph: that they lie in.
        members: their names, in topological order.
        input_layout, output_layout: memory layouts, "" where they are not told.
    """
    kernel = make_kernel(graph, members)
    anchor = graph.by_name[kernel.name]
    fused = tuple(graph.by_name[name].op_type for name in members if name != kernel.name)
    attributes: dict[str, AttributeValue] = {**_plain(plain_attributes(anchor)), **({"fused": fused} if fused else {})}
    layouts = {"input_layout": input_layout, "output_layout": output_layout}
    attributes |= {key: layout for key, layout in layouts.items() if layout}
    beside = [Operand(graph.tensors[name].dtype, graph.shape(name)) for name in kernel.inputs if name not in anchor.inputs]
    return NodeConfig(
        anchor.op_type,
        FUSED if fused else "",
        tuple(sorted(attributes.items())),
        (*(_operand(graph, anchor, operand) for operand in placed(graph, anchor)), *beside),
        tuple(Operand(graph.tensors[name].dtype, graph.shape(name)) for name in kernel.outputs),
        _written(_cut(graph, members)),
    )


def reorder_config(tensor: Tensor, before: str, after: str) -> NodeConfig:
    """Describe the conversion of an activation from one memory layout to another."""
    operand, few = Operand(tensor.dtype, tensor.shape), _few(tensor)
    steps = (("first", "x0", few, tensor.shape[1:2] + few.shape[1:2]), ("k0", "first", replace(tensor, name="k0"), ()))
    del steps
    return NodeConfig(REORDER, "", (("from", before), ("to", after)), (operand,), (operand,), _written(_converting(tensor)))


def _plain(attributes: Mapping[str, Attribute]) -> Iterator[tuple[str, Attribute]]:
    for key, value in attributes.items():
        values = value if isinstance(value, tuple) else (value,)
        if len(values) <= MOST_VALUES and all(isinstance(one, str) or math.isfinite(one) for one in values):
            yield key, value
