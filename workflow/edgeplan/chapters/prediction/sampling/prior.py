"""Counts the convolutions of published models, and holds the sample space of the paper (section 5.2)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from edgeplan.graph.ir import Graph
from edgeplan.graph.kinds import kind

#: Table 5 of the paper: the sample space of Conv++bn++relu.
TABLE5_SIZES = (224, 112, 56, 32, 28, 27, 14, 13, 8, 7, 1)
TABLE5_KERNELS = (1, 3, 5, 7, 9)
TABLE5_STRIDES = (1, 2, 4)
TABLE5_IN_CHANNELS = (3, 2160)
TABLE5_OUT_CHANNELS = (16, 2048)


@dataclass(frozen=True, order=True, slots=True)
class ConvShape:
    """Describes a convolution: input size (height = width), channels, kernel, stride; depthwise when `depthwise`."""

    size: int
    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    depthwise: bool = False


def conv_shapes(graphs: Iterable[Graph]) -> Counter[ConvShape]:
    """Count every square convolution of the graphs."""
    found: Counter[ConvShape] = Counter()
    for graph in graphs:
        for op in graph.operators:
            if op.op_type != "Conv":
                continue
            _, cin, height, width = graph.shape(op.inputs[0])
            kh, kw = op.integers("kernel_shape", (1, 1))
            if height == width and kh == kw:
                cout = graph.shape(op.outputs[0])[1]
                stride = op.integers("strides", (1, 1))[0]
                found[ConvShape(height, cin, cout, kh, stride, kind(graph, op) == "dwconv")] += 1
    return found
