"""Heads of an attention are read and written where they lie: fewer steps, the same numbers under every layout."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_file_runs import assert_runs, made, node, write

from edgeplan.chapters.cold_start.api import read_model
from edgeplan.graph.kernels import make_kernel
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.program import step_candidates


def _attention(batch: int, tokens: int, heads: int, each: int, *, twice: bool = False) -> onnx.ModelProto:
    """Attention as exporters write it, with or without the two transpositions of keys made one."""
    shape, turned = (batch, tokens, heads * each), (0, 2, 1, 3)
    nodes = []
    for x, perm in {"q": turned, "k": turned if twice else (0, 2, 3, 1), "v": turned}.items():
        nodes += [node("Relu", x, f"{x}0"), node("Reshape", f"{x}0 split", f"{x}1")]
        nodes.append(node("Transpose", f"{x}1", f"{x}2", perm=perm))
    nodes += [node("Transpose", "k2", "k3", perm=(0, 1, 3, 2))] * twice
    nodes += [
        node("MatMul", "q2 k3" if twice else "q2 k2", "scores"),
        node("Softmax", "scores", "shares", axis=-1),
        node("MatMul", "shares v2", "heads"),
        node("Transpose", "heads", "beside", perm=turned),
        node("Reshape", "beside whole", "joined"),
        node("Neg", "joined"),
    ]
    return made(nodes, dict.fromkeys("qkv", shape), {"split": (batch, tokens, heads, each), "whole": shape})


def _kinds(lowered: Lowered) -> list[str]:
    return [step.kind for step in lowered.steps]


@settings(max_examples=15, deadline=None)
@given(batch=st.integers(1, 3), tokens=st.integers(1, 20), heads=st.integers(1, 4), each=st.integers(1, 33))
def test_attention_of_any_size(
    dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory, batch: int, tokens: int, heads: int, each: int
) -> None:
    path = write(_attention(batch, tokens, heads, each), tmp_path_factory.getbasetemp() / "attention.onnx")
    lowered, (graph, _) = assert_runs(dnnl, path, most=None), read_model(path)
    assert _kinds(lowered) == ["eltwise", "eltwise", "eltwise", "matmul", "softmax", "matmul"]
    # all operators run in some step, each once
    assert Counter(name for step in lowered.steps for name in step.members) == Counter(op.name for op in graph.operators)
    order = {op.name: place for place, op in enumerate(graph.operators)}
    for step in lowered.steps:
        assert list(step.members) == sorted(step.members, key=order.__getitem__)
        kinds = {"eltwise": "relu", "matmul": "matmul", "softmax": "softmax"}
        assert make_kernel(graph, step.members).kind == kinds[step.kind]


def test_large_products_are_not_of_the_reference_implementation(dnnl: Dnnl, tmp_path: Path) -> None:
    _, lowered = read_model(write(_attention(1, 128, 12, 64), tmp_path / "m.onnx"))
    for home in HOMES:
        for step, offered in zip(lowered.steps, step_candidates(dnnl, lowered, home), strict=True):
            assert step.kind != "matmul" or not any(choice.kernel.startswith("ref") for choice in offered), home


def test_of_two_transpositions_the_last_is_a_view(dnnl: Dnnl, tmp_path: Path) -> None:
    lowered = assert_runs(dnnl, write(_attention(2, 5, 3, 4, twice=True), tmp_path / "m.onnx"), most=None)
    # what the first one writes is an image, which may lie otherwise than row-major
    assert _kinds(lowered).count("transpose") == 2


def test_axes_without_a_reshape_and_of_one_side_alone(dnnl: Dnnl, tmp_path: Path) -> None:
    nodes = [node("Transpose", "z", "t", perm=(0, 2, 1)), node("MatMul", "x t")]
    path = write(made(nodes, {"x": (3, 4, 5), "z": (3, 6, 5)}), tmp_path / "m.onnx")
    (step,) = assert_runs(dnnl, path, most=None).steps
    assert step.inputs == ("x", "z")
    assert dict(step.settings) == {"read_1": (3, 5, 6, 30, 1, 5)}


def test_what_others_read_too_is_still_written(dnnl: Dnnl, tmp_path: Path) -> None:
    nodes = [
        node("Reshape", "x split", "0"), node("Transpose", "0", "left", perm=(0, 2, 1, 3)),
        node("Reshape", "z split", "parts"), node("Transpose", "parts", "right", perm=(0, 2, 3, 1)),
        node("MatMul", "left right", "product"), node("Transpose", "product", "joined", perm=(0, 2, 1, 3)),
        node("Relu", "left", "a"), node("Neg", "parts", "b"), node("Relu", "product", "c"), node("Neg", "joined", "d"),
    ]  # fmt: skip
    model = made(nodes, {"x": (2, 3, 8), "z": (2, 3, 8)}, {"split": (2, 3, 2, 4)}, output="a b c d right joined")
    steps = assert_runs(dnnl, write(model, tmp_path / "m.onnx"), most=None).steps
    assert not next(step for step in steps if step.kind == "matmul").settings


_FIVE = [
    node("Reshape", "x split", "0"), node("Transpose", "0", "left", perm=(0, 2, 3, 1, 4)),
    node("Reshape", "z split", "1"), node("Transpose", "1", "right", perm=(0, 2, 3, 4, 1)),
    node("MatMul", "left right", "2"), node("Transpose", "2", "3", perm=(3, 0, 1, 2, 4)), node("Reshape", "3 whole"),
]  # fmt: skip
_TWICE = [node("Transpose", "x", "t", perm=(0, 2, 1)), node("MatMul", "x t", "first"), node("MatMul", "first first")]
_BETWEEN = [node("MatMul", "x z", "0"), node("Transpose", "0", "1", perm=(0, 1, 2, 4, 3)), node("MatMul", "1 u")]
_PRODUCTS: dict[str, tuple[onnx.ModelProto, list[tuple[str, ...]]]] = {
    "heads of five axes": (
        made(_FIVE, {"x": (2, 3, 24), "z": (2, 3, 24)}, {"split": (2, 3, 2, 3, 4), "whole": (3, 36)}),
        [("x", "z")],
    ),
    "a tensor with itself": (made(_TWICE, {"x": (2, 3, 15)}), [("x", "x"), ("first", "first")]),
    "between two products one of them takes the axes": (
        made(_BETWEEN, {"x": (2, 3, 4, 5, 6), "z": (2, 3, 4, 6, 5), "u": (2, 3, 4, 5, 7)}),
        [("x", "z"), ("1", "u")],
    ),
}


@pytest.mark.parametrize("name", _PRODUCTS)
def test_products_alone_are_left(dnnl: Dnnl, tmp_path: Path, name: str) -> None:
    model, read = _PRODUCTS[name]
    lowered = assert_runs(dnnl, write(model, tmp_path / "m.onnx"), most=None)
    assert _kinds(lowered) == ["matmul"] * len(read)
    assert [step.inputs for step in lowered.steps] == read
