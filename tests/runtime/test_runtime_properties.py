"""Random convolutions and poolings agree with ONNX Runtime under every candidate; living buffers are disjoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.graph.builder import GraphBuilder, conv_output_size
from edgeplan.graph.ir import Graph, Operator, Tensor
from edgeplan.runtime.layouts import HOMES, size_bytes
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import activation_layouts, plan_buffers

_SETTINGS = settings(max_examples=examples(25), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def _convolutions(draw: st.DrawFn) -> Graph:
    """One convolution with asymmetric padding between two pointwise ones, so that its borders have the home layout."""
    groups = draw(st.sampled_from([1, 1, 2, 3, 0]))
    per_group = draw(st.integers(1, 20))
    channels = draw(st.integers(1, 40)) if groups == 0 else groups * per_group
    out = channels if groups == 0 else groups * draw(st.integers(1, 20))
    groups = groups or channels
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    strides, dilations = (draw(st.tuples(st.integers(1, 3), st.integers(1, 2))) for _ in range(2))
    pads = tuple(draw(st.integers(0, k - 1)) for k in (*kernel, *kernel))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    size = tuple(draw(st.integers(span, span + 9)) for span in spans)
    after = tuple(
        conv_output_size(s, k, t, a + b, d)
        for s, k, t, a, b, d in zip(size, kernel, strides, pads[:2], pads[2:], dilations, strict=True)
    )
    b = GraphBuilder("random", (1, 8, *size))
    x = b.conv(b.input, channels, 1)
    before = b.build(x)
    attributes = {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads, "group": groups}
    shape = (out, channels // groups, *kernel)
    tensors = {
        **before.tensors,
        "middle": Tensor("middle", (1, out, *after)),
        "middle.weight": Tensor("middle.weight", shape),
        "middle.bias": Tensor("middle.bias", (out,)),
        "last": Tensor("last", (1, 4, *after)),
        "last.weight": Tensor("last.weight", (4, out, 1, 1)),
    }
    middle = Operator("middle", "Conv", (x,), ("middle",), ("middle.weight", "middle.bias"), MappingProxyType(attributes))
    last = Operator("last", "Conv", ("middle",), ("last",), ("last.weight",), MappingProxyType({"kernel_shape": (1, 1)}))
    return Graph("random", (*before.operators, middle, last), before.inputs, ("last",), MappingProxyType(tensors))


@_SETTINGS
@given(_convolutions())
def test_random_convolutions(agrees: Callable[..., int], graph: Graph) -> None:
    assert agrees(graph) >= len(HOMES)


@st.composite
def _pools(draw: st.DrawFn) -> Graph:
    b = GraphBuilder("random", (1, draw(st.integers(1, 40)), *[draw(st.integers(5, 12))] * 2))
    x, kernel = b.conv(b.input, b.channels(b.input), 1), draw(st.integers(1, 4))
    pool = draw(st.sampled_from([b.maxpool, b.avgpool]))
    pad, stride = draw(st.integers(0, kernel // 2)), draw(st.integers(1, 3))
    # rounded up, a window may start behind the input: frameworks drop it, ONNX's formula for the shape counts it
    x = pool(x, kernel, stride, pad, ceil=pad == 0 and stride <= kernel and draw(st.booleans()))
    return b.build(b.conv(x, 5, 1))


@_SETTINGS
@given(_pools())
def test_random_pools(agrees: Callable[..., int], graph: Graph) -> None:
    assert agrees(graph) >= len(HOMES)


@st.composite
def _meshes(draw: st.DrawFn) -> Graph:
    """A random net of convolutions, sums, products and concatenations."""
    b = GraphBuilder("mesh", (1, draw(st.sampled_from([5, 16])), 6, 6))
    values = [b.conv(b.input, b.channels(b.input), 1)]
    for _ in range(draw(st.integers(2, 10))):
        one, other = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        which = draw(st.sampled_from(["conv", "relu", "add", "mul", "pool", "concat"]))
        if which == "conv":
            values.append(b.conv(one, b.channels(b.input), 3))
        elif which == "relu":
            values.append(b.relu(one))
        elif which == "pool":
            values.append(b.maxpool(one, 3, 1, 1))
        elif which == "concat":
            values.append(b.conv(b.concat([one, other]), b.channels(b.input), 1))
        else:
            values.append((b.add if which == "add" else b.mul)(one, other))
    return b.build(*dict.fromkeys(values[-2:]))


@_SETTINGS
@given(_meshes())
def test_random_meshes(agrees: Callable[..., int], graph: Graph) -> None:
    """In-place sums, post-operations with a second operand, buffers that are reused."""
    assert agrees(graph, most=3) >= len(HOMES)


@settings(max_examples=examples(60), deadline=None)
@given(_meshes(), st.sampled_from(HOMES), st.sampled_from([8, 16]))
def test_buffers_of_living_activations_are_disjoint(graph: Graph, home: str, block: int) -> None:
    lowered = lower(graph)
    layouts = activation_layouts(lowered, home)
    offsets, total = plan_buffers(lowered, layouts, block)
    last_read = {t: i for i, step in enumerate(lowered.steps) for t in step.reads}
    last_read |= dict.fromkeys(lowered.outputs, math.inf)  # type: ignore[arg-type]
    spans = {t: (offsets[t], offsets[t] + size_bytes(lowered.shapes[t], layouts[t], block)) for t in offsets}
    assert all(stop <= total for _, stop in spans.values())
    written: dict[str, int] = dict.fromkeys(lowered.inputs, -1)
    for index, step in enumerate(lowered.steps):
        summed = {p.tensor for p in step.post_ops if p.kind == "sum"}
        for output in step.outputs:
            for tensor in written:
                if last_read.get(tensor, -1) >= index and tensor not in summed:
                    assert spans[output][1] <= spans[tensor][0] or spans[tensor][1] <= spans[output][0], (output, tensor)
            written[output] = index
