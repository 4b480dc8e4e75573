"""Operators and random graphs under every home layout and every candidate agree with ONNX Runtime; buffers are disjoint."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_models import meshes

from depth import examples
from edgeplan.graph.builder import GraphBuilder, conv_output_size
from edgeplan.graph.ir import Graph, Operator, Tensor
from edgeplan.runtime.layouts import HOMES, size_bytes
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import activation_layouts, plan_buffers, shared_buffers


def _act(which: str) -> Callable[[GraphBuilder, str], str]:
    return lambda b, x: b.activation(b.conv(x, b.channels(x), 3, bias=True), which)


def _lonely(which: str) -> Callable[[GraphBuilder, str], str]:
    return lambda b, x: b.conv(b.activation(b.maxpool(x, 3, 1, 1), which), 8, 1)


def _swish(b: GraphBuilder, x: str) -> str:
    y = b.bn(b.conv(x, 20, 3))
    y = b.mul(y, b.activation(y, "sigmoid"))
    y = b.maxpool(y, 3, 2, 1)
    return b.conv(b.mul(b.activation(y, "sigmoid"), y), 8, 1)  # and one that stands alone


def _residual(b: GraphBuilder, x: str) -> str:
    c = b.channels(x)
    x = b.relu(b.conv(x, c, 1))
    for kept in (False, True):  # the second sum's other operand is read again later
        y = b.relu(b.add(x, b.bn(b.conv(x, c, 3))))
        x = b.add(y, x) if kept else y
    return b.relu(b.add(b.conv(x, c, 1), b.conv(x, c, 3)))


def _gated(b: GraphBuilder, x: str) -> str:
    c = b.channels(x)
    gate = b.activation(b.conv(b.relu(b.conv(b.gap(x), 4, 1, bias=True)), c, 1, bias=True), "hsigmoid")
    return b.conv(b.activation(b.mul(gate, x), "hswish"), c, 1)


def _products(b: GraphBuilder, x: str) -> str:
    return b.mul(b.add(b.maxpool(x, 3, 1, 1), x), b.conv(x, b.channels(x), 1))


def _norms(b: GraphBuilder, x: str) -> str:
    y = b.relu(b.bn(x))
    return b.bn(b.concat([b.conv(y, 7, 3), b.bn(b.maxpool(y, 3, 1, 1))]))


def _pieces(b: GraphBuilder, x: str) -> str:
    c = b.channels(x)
    left, middle, right = b.split(b.relu(b.conv(x, c, 1)), (3, 5, c - 8))
    return b.conv(b.concat([right, b.relu(middle), left]), 9, 1)


def _shuffle(b: GraphBuilder, x: str) -> str:
    y = b.channel_shuffle(b.conv(x, 12, 1), 3)
    return b.conv(b.concat([y, b.channel_shuffle(b.conv(x, 32, 1), 2)]), 8, 1)


def _pools(b: GraphBuilder, x: str) -> str:
    pooled = [b.maxpool(x, 3, 2, 1), b.avgpool(x, 3, 2, 1), b.maxpool(x, 2, 2, ceil=True), b.avgpool(x, 2, 2, ceil=True)]
    return b.concat([b.conv(y, 5, 1) for y in pooled])


def _classifier(b: GraphBuilder, x: str) -> str:
    y = b.relu(b.fc(b.flatten(b.conv(x, 10, 1)), 33))
    return b.softmax(b.fc(y, 10, bias=False))


def _pooled_classifier(b: GraphBuilder, x: str) -> str:
    return b.fc(b.relu(b.flatten(b.gap(b.conv(x, 20, 3)))), 10)


def _transposed(b: GraphBuilder, x: str) -> str:
    y = b.transpose(b.conv(x, 6, 3), (0, 2, 3, 1))
    y = b.reshape(y, (b.shape(y)[1], b.shape(y)[2] * 6))
    z = b.transpose(b.conv(x, 6, 1), (0, 1, 3, 2))
    z = b.conv(b.reshape(z, (1, 12, b.shape(z)[2], b.shape(z)[3] // 2)) if b.shape(z)[3] % 2 == 0 else z, 3, 1)
    return b.concat([b.reshape(y, (1, b.shape(y)[0] * b.shape(y)[1])), b.flatten(z)])


CASES: dict[str, Callable[[GraphBuilder, str], str]] = {
    **{f"conv with {a or 'nothing'}": _act(a) for a in ("", "relu", "relu6", "hswish", "hsigmoid", "sigmoid")},
    **{f"{a} alone": _lonely(a) for a in ("relu", "relu6", "hswish", "hsigmoid", "sigmoid")},
    "swish": _swish,
    "residual": _residual,
    "gated": _gated,
    "products": _products,
    "norms": _norms,
    "pieces": _pieces,
    "shuffle": _shuffle,
    "pools": _pools,
    "classifier": _classifier,
    "pooled classifier": _pooled_classifier,
    "lrn": lambda b, x: b.conv(b.lrn(b.relu(b.conv(x, b.channels(x), 1))), 8, 1),
    "transposed": _transposed,
    "depthwise": lambda b, x: b.conv(b.activation(b.bn(b.dwconv(b.dwconv(x, 3), 5, 2)), "hswish"), 8, 1),
    "dilated and grouped": lambda b, x: b.conv(b.conv(b.conv(x, 12, 3, dilation=2), 18, 3, groups=3), 8, (1, 3)),
    "image": lambda b, x: b.conv(b.conv_bn(b.conv(x, 3, 1), 16, 7, 2), 24, 3),
}


@pytest.mark.parametrize("channels", [16, 19], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("case", CASES)
def test_operators_under_every_candidate(agrees: Callable[..., int], case: str, channels: int) -> None:
    b = GraphBuilder(case, (1, channels, 12, 12))
    entry = b.conv_bn(b.input, channels, 1)  # so that the case reads the home layout
    assert agrees(b.build(CASES[case](b, entry))) >= 1


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
    assert agrees(graph) >= 1


@st.composite
def _any_pools(draw: st.DrawFn) -> Graph:
    b = GraphBuilder("random", (1, draw(st.integers(1, 40)), *[draw(st.integers(5, 12))] * 2))
    x, kernel = b.conv(b.input, b.channels(b.input), 1), draw(st.integers(1, 4))
    pool = draw(st.sampled_from([b.maxpool, b.avgpool]))
    pad, stride = draw(st.integers(0, kernel // 2)), draw(st.integers(1, 3))
    # rounded up, a window may start behind the input: frameworks drop it, ONNX's formula for the shape counts it
    x = pool(x, kernel, stride, pad, ceil=pad == 0 and stride <= kernel and draw(st.booleans()))
    return b.build(b.conv(x, 5, 1))


@_SETTINGS
@given(_any_pools())
def test_random_pools(agrees: Callable[..., int], graph: Graph) -> None:
    assert agrees(graph) >= 1


@_SETTINGS
@given(meshes())
def test_random_meshes(agrees: Callable[..., int], graph: Graph) -> None:
    """In-place sums, post-operations with a second operand, buffers that are reused."""
    assert agrees(graph, most=3) >= 1


@settings(max_examples=examples(60), deadline=None)
@given(meshes(), st.sampled_from(HOMES), st.sampled_from([8, 16]))
def test_buffers_of_living_activations_are_disjoint(graph: Graph, home: str, block: int) -> None:
    lowered = lower(graph)
    layouts = activation_layouts(lowered, home)
    (offsets, total), root = plan_buffers(lowered, layouts, block), shared_buffers(lowered, layouts, block)
    last_read = {t: i for i, step in enumerate(lowered.steps) for t in step.reads}
    last_read |= dict.fromkeys(lowered.outputs, math.inf)  # type: ignore[arg-type]
    spans = {t: (offsets[t], offsets[t] + size_bytes(lowered.shapes[t], layouts[t], block)) for t in offsets}
    assert all(stop <= total for _, stop in spans.values())
    written: dict[str, int] = dict.fromkeys(lowered.inputs, -1)
    for index, step in enumerate(lowered.steps):
        for output in step.outputs:
            for tensor in written:
                if last_read.get(tensor, -1) >= index and root[tensor] != root[output]:
                    assert spans[output][1] <= spans[tensor][0] or spans[tensor][1] <= spans[output][0], (output, tensor)
            written[output] = index
