"""Operators and random graphs under every home layout and every candidate agree with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_file_runs import assert_runs, made, node, values, write
from partition_models import meshes

from depth import examples
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.zoo import FAMILIES

_SETTINGS = settings(max_examples=examples(25), deadline=None)
Factory = pytest.TempPathFactory


@st.composite
def _convolutions(draw: st.DrawFn) -> onnx.ModelProto:
    """One convolution with asymmetric padding between two pointwise ones, so that its borders have the home layout."""
    groups = draw(st.sampled_from([1, 1, 2, 3, 0]))
    per_group = draw(st.integers(1, 20))
    channels = draw(st.integers(1, 40)) if groups == 0 else groups * per_group
    out = channels if groups == 0 else groups * draw(st.integers(1, 20))
    groups = groups or channels
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    strides, dilations = (draw(st.tuples(st.integers(1, 3), st.integers(1, 2))) for _ in range(2))
    size = [d * (k - 1) + 1 + draw(st.integers(0, 9)) for k, d in zip(kernel, dilations, strict=True)]
    how: dict[str, Any] = {"strides": strides, "dilations": dilations, "group": groups}
    how["pads"] = [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
    nodes = [node("Conv", "x first", "a"), node("Conv", "a middle bias", "b", **how), node("Conv", "b last")]
    constants = {
        "first": values(channels, 8, 1, 1), "middle": values(out, channels // groups, *kernel), "bias": values(out),
        "last": values(4, out, 1, 1),
    }  # fmt: skip
    return made(nodes, {"x": (1, 8, *size)}, constants)


@_SETTINGS
@given(_convolutions())
def test_random_convolutions(dnnl: Dnnl, tmp_path_factory: Factory, model: onnx.ModelProto) -> None:
    assert_runs(dnnl, write(model, tmp_path_factory.getbasetemp() / "convolution.onnx"), most=None)


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
@given(_any_pools() | meshes())
def test_random_pools_and_meshes(dnnl: Dnnl, tmp_path_factory: Factory, graph: Graph) -> None:
    """In-place sums, post-operations with a second operand, buffers that are reused."""
    assert_runs(dnnl, save_onnx(graph, tmp_path_factory.getbasetemp() / "random.onnx"), most=None)


@pytest.mark.parametrize("family", ["squeezenet", "mobilenetv2", "mobilenetv3", "shufflenetv2", "nasbench201"])
def test_families_agree(dnnl: Dnnl, tmp_path: Path, family: str) -> None:
    assert_runs(dnnl, save_onnx(FAMILIES[family].base(), tmp_path / "model.onnx"), most=1)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_base_models_under_every_candidate(dnnl: Dnnl, tmp_path: Path, family: str) -> None:
    assert_runs(dnnl, save_onnx(FAMILIES[family].base(), tmp_path / "model.onnx"), most=None)
