"""Layers and lines between bytes: in eight bits where sums of products are exact, else in single precision; by each kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from byte_models import TYPES, Drawing, Layer, computed, layers, made
from hypothesis import example, given, settings
from hypothesis import strategies as st

from depth import MANY
from edgeplan.graph.steps import INT8_KINDS, INT8_LINE, INT8_POOL
from edgeplan.runtime.candidates import exact_kernels
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED, HOMES
from edgeplan.support.machine import cpu_info

LANE = "numerics"
_IMAGE, _ROWS = (2, 19, 5, 4), (2, 5, 33)


@settings(max_examples=1500 if MANY else 120, deadline=None)
@example(layer=Layer("Gemm", (3, 16), written="", source="int8"), seed=0, extreme=True, home=BLOCKED)
@example(layer=Layer(shape=(1, 32, 9, 7), groups=4, channels=32), seed=0, extreme=False, home=BLOCKED)
@given(layers(), st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(HOMES))
def test_each_kernel_of_any_layer_is_within_a_step_of_the_reference(
    dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory, layer: Layer, seed: int, extreme: bool, home: str
) -> None:
    """Sums of the largest bytes do not saturate in between."""
    given_by = made(layer, seed, extreme=extreme)
    for lowered, (found,), how in computed(dnnl, given_by.model, given_by.inputs, tmp_path_factory.mktemp("layer"), (home,)):
        assert (found.dtype, found.shape) == (given_by.wanted.dtype, given_by.wanted.shape)
        if given_by.step:
            assert np.abs(found.astype(int) - given_by.wanted.astype(int)).max() <= 1, how
        else:
            np.testing.assert_allclose(found, given_by.wanted, rtol=1e-4, atol=1e-4, err_msg=how)
        assert ([step.kind in INT8_KINDS for step in lowered.steps] == [True]) == dnnl.info.exact_bytes
        assert "ref" not in how


def test_kernels_without_instructions_for_bytes_are_not_among_the_exact_ones(dnnl: Dnnl) -> None:
    exact = exact_kernels()
    older = (":avx512_core", ":avx2", *(() if "avx_vnni" in cpu_info()["flags"] else (":sse41",)))  # these use what there is
    assert not [kernel for kernel in exact if kernel.endswith(older)]
    assert any("vnni" in kernel or "amx" in kernel for kernel in exact) == dnnl.info.exact_bytes


@pytest.mark.parametrize("dtype", TYPES)
def test_the_largest_of_bytes_is_found_among_bytes(dnnl: Dnnl, tmp_path: Path, dtype: str) -> None:
    drawing = Drawing(np.random.default_rng(3))
    by = drawing.scaling(0.1, dtype, 3)
    numbers = drawing.node("DequantizeLinear", drawing.bytes_by(by, (2, 19, 9, 8)), *by)
    pooled = drawing.node("MaxPool", numbers, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1])
    values = drawing.constant(drawing.rng.integers(-127, 128, (8, 19, 1, 1)).astype(np.int8))
    weight = drawing.node("DequantizeLinear", values, *drawing.scaling(0.1, "int8", 0))
    outputs = drawing.node("Sigmoid", pooled), drawing.node("Conv", pooled, weight)
    for lowered, found, how in computed(dnnl, drawing.model(*outputs), drawing.inputs, tmp_path):
        assert any(step.kind == INT8_POOL for step in lowered.steps) == dnnl.info.exact_bytes
        for value, expected in zip(found, drawing.wanted(*outputs), strict=True):
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-4, err_msg=how)


# Lines: sums, products, means, joins and tables


class Line(NamedTuple):
    """What is computed between bytes.

    Attributes:
        nodes: operators with their operands and attributes; 0 and so on are numbers of what is read, -1 is what was last
            computed; the last is rounded.
        shapes: of what is read.
        steps: kinds of the steps that it becomes.
    """

    nodes: tuple[tuple[str, tuple[int, ...], dict[str, Any]], ...]
    shapes: tuple[tuple[int, ...], ...]
    steps: tuple[str, ...] = (INT8_LINE,)


def _of_two(kind: str, *shapes: tuple[int, ...], behind: str = "", **attributes: Any) -> Line:
    reads = tuple(range(len(shapes)))
    return Line(((kind, reads, attributes), *(((behind, (-1,), {}),) if behind else ())), shapes)


def _of_one(shape: tuple[int, ...], kind: str, **attributes: Any) -> Line:
    return Line(((kind, (0,), attributes),), (shape,))


_CURVES = ("Relu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh", "Elu", "Softplus", "Mish", "Gelu", "Abs", "Exp")
_GATES = (_IMAGE, (2, 19, 1, 1))
_LINES = {
    "sum": _of_two("Add", _IMAGE, _IMAGE),
    "sum of rows": _of_two("Add", _ROWS, _ROWS),
    "sum, relu": _of_two("Add", _IMAGE, _IMAGE, behind="Relu"),
    "difference": _of_two("Sub", _IMAGE, _IMAGE),
    "product": _of_two("Mul", _IMAGE, _IMAGE),
    "gated": _of_two("Mul", *_GATES),
    "gate first": _of_two("Mul", *reversed(_GATES)),
    "sum by channel": _of_two("Add", *_GATES),
    "sum of rows and one": _of_two("Add", _ROWS, (33,)),
    "join": _of_two("Concat", (1, 3, 4, 5), (1, 40, 4, 5), (1, 16, 4, 5), axis=1),
    "join of rows": _of_two("Concat", (2, 3, 4, 5), (2, 3, 2, 5), axis=2),
    "join with itself": Line((("Concat", (0, 1, 0), {"axis": -1}),), ((3, 5), (3, 4))),
    "join, relu": _of_two("Concat", _IMAGE, _IMAGE, behind="Relu", axis=1),
    "mean of an image": _of_one(_IMAGE, "GlobalAveragePool"),
    "mean of a signal": _of_one((1, 7, 40), "GlobalAveragePool"),
    "mean of axes": _of_one(_IMAGE, "ReduceMean", axes=[2, 3], keepdims=0),
    "mean of tokens": _of_one(_ROWS, "ReduceMean", axes=[1], keepdims=0),
    "mean of features": _of_one(_ROWS, "ReduceMean", axes=[-1], keepdims=1),
    **{kind: _of_one(_IMAGE, kind) for kind in _CURVES},
    "LeakyRelu": _of_one(_IMAGE, "LeakyRelu", alpha=0.2),
    "curve after curve": Line((("Sigmoid", (0,), {}), ("Relu", (-1,), {}), ("Tanh", (-1,), {})), (_ROWS,)),
    "swish of rounded gates": Line((("HardSigmoid", (0,), {}), ("rounded", (-1,), {}), ("Mul", (0, -1), {})), (_IMAGE,)),
    "another scale": Line((), (_ROWS,)),
    "largest, another scale": Line((("MaxPool", (0,), {"kernel_shape": [2, 2]}),), (_IMAGE,), (INT8_POOL, INT8_LINE)),
}  # fmt: skip


def _steps(dnnl: Dnnl, line: Line, folder: Path, seed: int = 0, *, images: bool = False) -> list[str]:
    """Hold a line to ONNX's reference; kinds of its steps. `images`: channels lie side by side in what is read."""
    drawing, numbers = Drawing(np.random.default_rng(seed)), list[str]()
    for shape in line.shapes:
        by = drawing.any_scaling(0.03)
        read = drawing.bytes_by(by, shape, extreme=seed % 4 == 3)
        numbers.append(drawing.node("DequantizeLinear", read, *by))
        if images and len(shape) == 4:
            pooled = drawing.node("MaxPool", numbers[-1], kernel_shape=[1, 1])
            numbers[-1] = drawing.node("DequantizeLinear", drawing.node("QuantizeLinear", pooled, *by), *by)
    last = numbers[0]
    for kind, places, attributes in line.nodes:
        reads = [last if place < 0 else numbers[place] for place in places]
        if kind == "rounded":
            by = drawing.any_scaling(0.006)
            last = drawing.node("DequantizeLinear", drawing.node("QuantizeLinear", last, *by), *by)
            continue
        reads += [drawing.constant(np.array(attributes["axes"]))] if kind == "ReduceMean" else []
        last = drawing.node(kind, *reads, **{key: value for key, value in attributes.items() if key != "axes"})
    last = drawing.node("QuantizeLinear", last, *drawing.any_scaling(0.05))
    (wanted,) = drawing.wanted(last)
    runs = [*computed(dnnl, drawing.model(last), drawing.inputs, folder, (BLOCKED,))]
    for _, (found,), how in runs:
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert np.abs(found.astype(int) - wanted.astype(int)).max() <= 1, (seed, how)
    return sorted(step.kind for step in runs[0][0].steps)


@pytest.mark.parametrize("form", _LINES)
def test_a_line_of_bytes_is_within_a_step_of_the_reference(dnnl: Dnnl, tmp_path: Path, form: str) -> None:
    line = _LINES[form]
    for seed in range(48 if MANY else 9):
        images = seed % 3 == 2
        before = [INT8_POOL] * sum(images and len(shape) == 4 for shape in line.shapes)
        steps = _steps(dnnl, line, tmp_path, seed, images=images)
        assert steps == sorted([*before, *line.steps]) or not dnnl.info.exact_bytes, seed


def test_a_mean_that_makes_an_image_of_something_else_is_no_step_of_bytes(dnnl: Dnnl, tmp_path: Path) -> None:
    """Images may lie with channels last, and what they are made of does not."""
    assert INT8_LINE not in _steps(dnnl, _of_one((1, 3, 8, 8, 4), "ReduceMean", axes=[4], keepdims=0), tmp_path)


@pytest.mark.parametrize("length", [5, 40])
def test_differences_of_a_byte_and_itself_take_no_longer_than_their_number(dnnl: Dnnl, tmp_path: Path, length: int) -> None:
    """Each doubles the terms of the one before, as a tree; a table of too many is none."""
    chain = tuple(("Sub" if k % 2 else "Add", (-1, -1) if k else (0, 0), {}) for k in range(length))
    assert _steps(dnnl, Line((*chain, ("Add", (0, -1), {})), ((3, 5),)), tmp_path)


_MOVES: dict[str, dict[str, Any]] = {
    "Transpose": {"perm": [0, 3, 1, 2]},
    "Flatten": {"axis": 2},
    "Reshape": {"more": [[2, 19, 20]]},
    "Slice": {"more": [[1], [17], [1], [2]]},
    "Unsqueeze": {"more": [[1]]},
    "Gather": {"more": [[3, 0, 2]], "axis": 2},
    "Split": {"axis": 1, "num_outputs": 2},
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", _MOVES)
@pytest.mark.parametrize("images", [False, True])
def test_bytes_are_moved_as_they_are(dnnl: Dnnl, tmp_path: Path, kind: str, dtype: str, images: bool) -> None:
    """Scales and zero points before and behind are equal and have names of their own."""
    drawing, attributes = Drawing(np.random.default_rng(7)), dict(_MOVES[kind])
    a, b, c = (drawing.scaling(0.1, dtype, 3) for _ in range(3))
    more = [drawing.constant(np.array(value)) for value in attributes.pop("more", [])]
    read = drawing.node("DequantizeLinear", drawing.bytes_by(a, _IMAGE), *a)
    if images:
        pooled = drawing.node("MaxPool", read, kernel_shape=[1, 1])
        read = drawing.node("DequantizeLinear", drawing.node("QuantizeLinear", pooled, *a), *b)
    parts = [drawing.node(kind, read, *more, **attributes)]
    if kind == "Split":
        parts.append("second")
        drawing.nodes[-1].output.append("second")
    outputs = [drawing.node("QuantizeLinear", part, *c) for part in parts]
    runs, expected = [*computed(dnnl, drawing.model(*outputs), drawing.inputs, tmp_path, (BLOCKED,))], drawing.wanted(*outputs)
    for _, found, how in runs:
        for value, wanted in zip(found, expected, strict=True):
            np.testing.assert_array_equal(value, wanted, err_msg=how)
    lowered = runs[0][0]
    members = [name for step in lowered.steps for name in step.members]
    assert members == [made.name for made in drawing.nodes]
    if dnnl.info.exact_bytes:
        assert all(lowered.types.get(name) == dtype for step in lowered.steps for name in (*step.reads, *step.outputs))


def test_what_something_else_reads_is_no_part_of_a_table(dnnl: Dnnl, tmp_path: Path) -> None:
    """Numbers within a chain that are an output, too, are made."""
    drawing = Drawing(np.random.default_rng(0))
    by = drawing.scaling(0.02, "uint8", 100)
    read = drawing.node("DequantizeLinear", drawing.given(np.arange(256, dtype=np.uint8).reshape(4, 64)), *by)
    inner = drawing.node("Sigmoid", read)
    outputs = drawing.node("QuantizeLinear", drawing.node("Mul", read, inner), *by), inner
    for lowered, found, _ in computed(dnnl, drawing.model(*outputs), drawing.inputs, tmp_path, (BLOCKED,)):
        assert not any(step.kind == INT8_LINE for step in lowered.steps)
        for value, wanted, most in zip(found, drawing.wanted(*outputs), (1, 1e-5), strict=True):
            assert np.abs(value.astype(float) - wanted.astype(float)).max() <= most
