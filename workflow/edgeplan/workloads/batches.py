"""Builds networks of images for several images at once."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from edgeplan.errors import ParamsError
from edgeplan.graph.ir import Graph

#: Operators whose attributes and constants say nothing of how many images there are.
_FREE = frozenset({"Conv", "BatchNormalization", "Relu", "Clip", "LeakyRelu", "Sigmoid", "Add", "Mul", "Concat"}) | frozenset(
    {"MaxPool", "AveragePool", "GlobalAveragePool", "Flatten", "Gemm", "Resize", "Upsample"}
)


def batched(graph: Graph, name: str, batch: int) -> Graph:
    """Return a network for one image, for several.

    Raises:
        ParamsError: it reads no single image, or has an operator that says how many images there are.
    """
    fixed = sorted({op.op_type for op in graph.operators} - _FREE)
    made = {tensor for op in graph.operators for tensor in op.outputs} | set(graph.inputs)
    if fixed or any(graph.shape(tensor)[:1] != (1,) for tensor in made):
        what = f"operators {', '.join(fixed)}" if fixed else "more than one image"
        raise ParamsError(f"network {graph.name!r} has {what}", next_step="build it for a batch")
    tensors = {
        key: replace(tensor, shape=(batch, *tensor.shape[1:])) if key in made else tensor
        for key, tensor in graph.tensors.items()
    }
    return replace(graph, name=name, tensors=MappingProxyType(tensors))
