"""Heads of an attention are read and written where they lie: fewer steps, the same numbers under every layout."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from edgeplan.chapters.cold_start.api import read_model
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import make_kernel
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.program import build_program, step_candidates
from edgeplan.runtime.session import SequentialSession
from edgeplan.runtime.weights import locate_weights

Shape = Sequence[int]
_TOLERANCE = 1e-4


class _Model:
    """A model of nodes added one by one."""

    def __init__(self, **inputs: Shape) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []
        self._inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, list(s)) for n, s in inputs.items()]

    def node(self, op_type: str, *reads: str, **attributes: object) -> str:
        name = f"{op_type.lower()}{len(self._nodes)}"
        self._nodes.append(helper.make_node(op_type, reads, [name], name=name, **attributes))
        return name

    def reshape(self, x: str, shape: Shape) -> str:
        name = f"shape{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.array(shape, np.int64), name))
        return self.node("Reshape", x, name)

    def transpose(self, x: str, perm: Shape) -> str:
        return self.node("Transpose", x, perm=list(perm))

    def saved(self, path: Path, *outputs: str) -> Path:
        infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
        body = helper.make_graph(self._nodes, "views", self._inputs, infos, self._constants)
        onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path


def _check(dnnl: Dnnl, path: Path) -> tuple[Graph, Lowered]:
    """Every candidate of the products under every layout against ONNX Runtime; the graph and its steps."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    inputs = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    wanted = session.run(None, inputs)
    graph, lowered = read_model(path)
    weights = locate_weights(path, lowered)
    dnnl.set_threads(1)
    for home in HOMES:
        offered = step_candidates(dnnl, lowered, home)
        for k in range(max(map(len, offered))):
            choices = [found[min(k, len(found) - 1)] for found in offered]
            session_ = SequentialSession(dnnl, build_program(dnnl, lowered, home, choices, weights), path.parent)
            found = session_.run(inputs)
            for name, expected in zip(graph.outputs, wanted, strict=True):
                assert found[name].shape == expected.shape
                error = np.abs(found[name] - expected).max() / np.abs(expected).max()
                assert error <= _TOLERANCE, f"{name} is off by {error} under {home}: {[c.name for c in choices]}"
    return graph, lowered


def _attention(path: Path, batch: int, tokens: int, heads: int, each: int, *, twice: bool = False) -> Path:
    """Attention as exporters write it, with or without the two transpositions of keys made one."""
    shape = (batch, tokens, heads * each)
    m = _Model(q=shape, k=shape, v=shape)
    query, key, value = (m.reshape(m.node("Relu", x), (batch, tokens, heads, each)) for x in "qkv")
    query, value = (m.transpose(x, (0, 2, 1, 3)) for x in (query, value))
    key = m.transpose(m.transpose(key, (0, 2, 1, 3)), (0, 1, 3, 2)) if twice else m.transpose(key, (0, 2, 3, 1))
    scores = m.node("Softmax", m.node("MatMul", query, key), axis=-1)
    found = m.transpose(m.node("MatMul", scores, value), (0, 2, 1, 3))
    return m.saved(path, m.node("Neg", m.reshape(found, shape)))


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 3), tokens=st.integers(1, 20), heads=st.integers(1, 4), each=st.integers(1, 33))
def test_attention_of_any_size(
    dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory, batch: int, tokens: int, heads: int, each: int
) -> None:
    path = tmp_path_factory.mktemp("attention") / "m.onnx"
    graph, lowered = _check(dnnl, _attention(path, batch, tokens, heads, each))
    assert [step.kind for step in lowered.steps] == ["eltwise", "eltwise", "eltwise", "matmul", "softmax", "matmul"]
    # all operators run in some step, each once
    assert Counter(name for step in lowered.steps for name in step.members) == Counter(op.name for op in graph.operators)
    order = {op.name: place for place, op in enumerate(graph.operators)}
    for step in lowered.steps:
        assert list(step.members) == sorted(step.members, key=order.__getitem__)
        kinds = {"eltwise": "relu", "matmul": "matmul", "softmax": "softmax"}
        assert make_kernel(graph, step.members).kind == kinds[step.kind]


def test_large_products_are_not_of_the_reference_implementation(dnnl: Dnnl, tmp_path: Path) -> None:
    _, lowered = read_model(_attention(tmp_path / "m.onnx", 1, 128, 12, 64))
    for home in HOMES:
        for step, offered in zip(lowered.steps, step_candidates(dnnl, lowered, home), strict=True):
            assert step.kind != "matmul" or not any(choice.kernel.startswith("ref") for choice in offered), home


def test_of_two_transpositions_the_last_is_a_view(dnnl: Dnnl, tmp_path: Path) -> None:
    _, lowered = _check(dnnl, _attention(tmp_path / "m.onnx", 2, 5, 3, 4, twice=True))
    # what the first one writes is an image, which may lie otherwise than row-major
    assert [step.kind for step in lowered.steps].count("transpose") == 2


def test_axes_without_a_reshape_and_of_one_side_alone(dnnl: Dnnl, tmp_path: Path) -> None:
    m = _Model(x=(3, 4, 5), z=(3, 6, 5))
    _, lowered = _check(dnnl, m.saved(tmp_path / "m.onnx", m.node("MatMul", "x", m.transpose("z", (0, 2, 1)))))
    (step,) = lowered.steps
    assert step.inputs == ("x", "z")
    assert dict(step.settings) == {"read_1": (3, 5, 6, 30, 1, 5)}


def test_heads_of_five_axes(dnnl: Dnnl, tmp_path: Path) -> None:
    m = _Model(x=(2, 3, 24), z=(2, 3, 24))
    left, right = (m.reshape(x, (2, 3, 2, 3, 4)) for x in "xz")
    product = m.node("MatMul", m.transpose(left, (0, 2, 3, 1, 4)), m.transpose(right, (0, 2, 3, 4, 1)))
    _, lowered = _check(dnnl, m.saved(tmp_path / "m.onnx", m.reshape(m.transpose(product, (3, 0, 1, 2, 4)), (3, 36))))
    assert [step.kind for step in lowered.steps] == ["matmul"]


def test_what_others_read_too_is_still_written(dnnl: Dnnl, tmp_path: Path) -> None:
    m = _Model(x=(2, 3, 8), z=(2, 3, 8))
    left = m.transpose(m.reshape("x", (2, 3, 2, 4)), (0, 2, 1, 3))
    split = m.reshape("z", (2, 3, 2, 4))
    right = m.transpose(split, (0, 2, 3, 1))
    product = m.node("MatMul", left, right)
    joined = m.transpose(product, (0, 2, 1, 3))
    outputs = (m.node("Relu", left), m.node("Neg", split), m.node("Relu", product), m.node("Neg", joined))
    _, lowered = _check(dnnl, m.saved(tmp_path / "m.onnx", *outputs, right, joined))
    (step,) = [step for step in lowered.steps if step.kind == "matmul"]
    assert not step.settings


def test_a_product_of_a_tensor_with_itself(dnnl: Dnnl, tmp_path: Path) -> None:
    m = _Model(x=(2, 3, 15))
    first = m.node("MatMul", "x", m.transpose("x", (0, 2, 1)))
    _, lowered = _check(dnnl, m.saved(tmp_path / "m.onnx", m.node("MatMul", first, first)))
    assert [step.inputs for step in lowered.steps] == [("x", "x"), (first, first)]


def test_between_two_products_one_of_them_takes_the_axes(dnnl: Dnnl, tmp_path: Path) -> None:
    m = _Model(x=(2, 3, 4, 5, 6), z=(2, 3, 4, 6, 5), u=(2, 3, 4, 5, 7))
    turned = m.transpose(m.node("MatMul", "x", "z"), (0, 1, 2, 4, 3))
    _, lowered = _check(dnnl, m.saved(tmp_path / "m.onnx", m.node("MatMul", turned, "u")))
    assert [step.kind for step in lowered.steps] == ["matmul", "matmul"]
