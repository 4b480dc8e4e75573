"""Operators, views and random graphs under home layouts and candidates agree with ONNX Runtime, and keep to fast kernels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from model_file_runs import assert_runs, assert_starts, made, node, values, write
from partition_models import meshes

from depth import by_day, examples
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import make_kernel
from edgeplan.graph.onnx.read import from_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import step_candidates
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


@_SETTINGS
@given(meshes())
def test_random_meshes(dnnl: Dnnl, tmp_path_factory: Factory, graph: Graph) -> None:
    """In-place sums, post-operations with a second operand, buffers that are reused."""
    assert_runs(dnnl, save_onnx(graph, tmp_path_factory.getbasetemp() / "random.onnx"), most=None)


@pytest.mark.parametrize("family", ["squeezenet", "mobilenetv2", "mobilenetv3", "shufflenetv2", "nasbench201"])
def test_families_agree(dnnl: Dnnl, tmp_path: Path, family: str) -> None:
    assert_runs(dnnl, save_onnx(FAMILIES[family].base(), tmp_path / "model.onnx"), most=1)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_base_models_under_every_candidate(dnnl: Dnnl, tmp_path: Path, family: str) -> None:
    assert_runs(dnnl, save_onnx(FAMILIES[family].base(), tmp_path / "model.onnx"), most=None)


# Heads of an attention are read and written where they lie: fewer steps, the same numbers


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
    assert not {home for home, kind in _slow(dnnl, lowered) if kind == "matmul"}


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


# A primitive takes 32 post-operations: what is behind them begins a step of its own

Chain = Callable[[int], list[onnx.NodeProto]]
IMAGE = {"x": (1, 5, 6, 6)}


def _sums(count: int) -> list[onnx.NodeProto]:
    return [node("Add", f"a{i} z", f"a{i + 1}") for i in range(count)]


def _swishes(count: int) -> list[onnx.NodeProto]:
    pairs = [(node("Sigmoid", f"a{i}", f"s{i}"), node("Mul", f"a{i} s{i}", f"a{i + 1}")) for i in range(count)]
    return [one for pair in pairs for one in pair]


def _mixed(count: int) -> list[onnx.NodeProto]:
    kinds = (("Tanh", "a{}"), ("Add", "a{} z"), ("LeakyRelu", "a{}"), ("Mul", "z a{}"))
    return [node(kinds[i % 4][0], kinds[i % 4][1].format(i), f"a{i + 1}") for i in range(count)]


CHAINS: dict[str, Chain] = {"sums": _sums, "swishes": _swishes, "all": _mixed}
_NORM = {"s": values(5), "o": values(5, seed=1), "m": values(5, seed=2), "v": values(5, seed=3) + 1}
#: What a chain begins with: the node, the constants, the shape of `x` and `z`.
STARTS: dict[str, tuple[list[onnx.NodeProto], Mapping[str, Any], tuple[int, ...]]] = {
    "conv": ([node("Conv", "x w", "a0", pads=[1] * 4)], {"w": values(5, 5, 3, 3)}, IMAGE["x"]),
    "fc": ([node("Gemm", "x w", "a0")], {"w": values(7, 7)}, (2, 7)),
    "binary": ([node("Relu", "x", "r"), node("Add", "r x", "a0")], {}, IMAGE["x"]),
    "scale": ([node("BatchNormalization", "x s o m v", "a0")], _NORM, IMAGE["x"]),
    "residual": (
        [node("Conv", "x w", "r"), node("Conv", "x u", "q"), node("Add", "r q", "a0")],
        {"w": values(5, 5, 1, 1), "u": values(5, 5, 1, 1, seed=1)},
        IMAGE["x"],
    ),
}


#: A sum, or a scale, is one of them: there the last that fits is one earlier.
_COUNTS = {"conv": (32, 33, 70), "residual": (31, 32), "scale": (31, 32)}


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize(("start", "count"), [(start, count) for start in STARTS for count in _COUNTS.get(start, (32, 33))])
def test_more_than_a_primitive_takes(dnnl: Dnnl, tmp_path: Path, start: str, chain: str, count: int) -> None:
    nodes, constants, shape = STARTS[start]
    model = made([*nodes, *CHAINS[chain](count)], {"x": shape, "z": shape}, constants, output=f"a{count}")
    lowered = assert_runs(dnnl, write(model, tmp_path / "m.onnx"))
    assert max(len(step.post_ops) + (step.kind == "scale") for step in lowered.steps) <= 32
    if chain == "sums" and start == "conv":
        assert len(lowered.steps) == -(-(count + 1) // 33)  # a new step takes one itself


def test_a_plan_starts_with_as_many_as_a_primitive_takes(dnnl: Dnnl, planned: object, tmp_path: Path) -> None:
    nodes, constants, shape = STARTS["conv"]
    model = made([*nodes, *_mixed(70)], {"x": shape, "z": shape}, constants, output="a70")
    assert_starts(dnnl, planned, write(model, tmp_path / "m.onnx"), tmp_path / "plans")


def test_one_value_a_channel_behind_a_full_step(dnnl: Dnnl, tmp_path: Path) -> None:
    nodes, constants, shape = STARTS["conv"]
    chain = [*nodes, *_sums(32), node("Mul", "a32 c", "y")]
    assert_runs(dnnl, write(made(chain, {"x": shape, "z": shape, "c": (1, 5, 1, 1)}, constants), tmp_path / "m.onnx"))


Constants = Mapping[str, npt.ArrayLike]
#: An operator that writes `c`, what else it reads, and its constants.
Base = tuple[onnx.NodeProto, dict[str, tuple[int, ...]], dict[str, npt.ArrayLike]]
SIZES = {1: (24,), 2: (8, 6), 3: (6, 5, 4)}


def _conv(axes: int, inner: int, groups: int, window: int, **more: object) -> Base:
    weights = values(inner * groups, inner, *[window] * axes)
    made_of = node("Conv", "x w", "c", group=groups, pads=[window // 2] * 2 * axes, **more)
    return made_of, {"x": (1, inner * groups, *SIZES[axes])}, {"w": weights}


def _bases() -> Iterator[tuple[str, Base]]:
    for axes, size in SIZES.items():
        for inner, groups in ((16, 1), (3, 1), (1, 16), (1, 5), (2, 5), (4, 4), (7, 3), (8, 2), (16, 2)):
            for window in (1, 3):
                yield f"conv{axes}-{inner}x{groups}-{window}", _conv(axes, inner, groups, window)
        yield f"conv{axes}-strides", _conv(axes, 16, 1, 3, strides=[2] * axes)
        yield f"conv{axes}-dilations", _conv(axes, 16, 1, 3, dilations=[2] * axes)
        image, norm = (1, 16, *size), {name: np.ones(16, np.float32) for name in ("ns", "nb", "nm", "nv")}
        for groups in (1, 4):
            turned = node("ConvTranspose", "x w", "c", group=groups)
            yield f"deconv{axes}-{groups}", (turned, {"x": image}, {"w": values(16, 16 // groups, *[3] * axes)})
        yield f"maxpool{axes}", (node("MaxPool", "x", "c", kernel_shape=[2] * axes), {"x": image}, {})
        yield f"norm{axes}", (node("BatchNormalization", "x ns nb nm nv", "c"), {"x": image}, norm)
        yield f"difference{axes}", (node("Sub", "x o", "c"), {"x": image, "o": image}, {})
        yield f"shifted{axes}", (node("Sub", "x o", "c"), {"x": image, "o": (1, 16, *[1] * axes)}, {})
        yield f"products{axes}", (node("MatMul", "x o", "c"), {"x": (2,) * axes + (5, 7), "o": (2,) * axes + (7, 6)}, {})
        yield f"rows{axes}", (node("MatMul", "x w", "c"), {"x": (2,) * axes + (8,)}, {"w": values(8, 6)})
    yield "layer", (node("Gemm", "x w b", "c"), {"x": (4, 16)}, {"w": values(16, 8), "b": values(8)})
    yield "one-row", (node("MatMul", "x w", "c"), {"x": (1, 16)}, {"w": values(16, 8)})


_BY_ALPHA = ("LeakyRelu", "Elu")
_ALONE = ("Relu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish", "Softplus", "Mish", "Gelu", "Exp", "Log", "Sqrt", "Abs", "Neg")
ALONE = (*_BY_ALPHA, *_ALONE, "Reciprocal")


def _behind(shape: tuple[int, ...]) -> Iterator[tuple[str, list[onnx.NodeProto], dict[str, tuple[int, ...]], Constants]]:
    """What stands behind `c`, of that shape: nodes, and further inputs and constants."""
    for op in ALONE:
        yield op, [node(op, "c")], {}, {}
    yield "Clip", [node("Clip", "c low high")], {}, {"low": np.float32(0), "high": np.float32(6)}
    yield "Pow", [node("Pow", "c p")], {}, {"p": np.float32(3)}
    yield "swish", [node("Sigmoid", "c", "g"), node("Mul", "c g")], {}, {}
    for op in ("Add", "Mul"):
        yield op, [node(op, "c z")], {"z": shape}, {}
        yield f"{op}, Relu", [node(op, "z c", "s"), node("Relu", "s")], {"z": shape}, {}
        if len(shape) > 1:
            yield f"{op} of channels", [node(op, "c z")], {"z": (1, shape[1], *[1] * (len(shape) - 2))}, {}


def _slow(dnnl: Dnnl, lowered: Lowered) -> set[tuple[str, str]]:
    """Home layouts and kinds of steps for which oneDNN offers its reference alone."""
    return {
        (home, step.kind)
        for home in HOMES
        for step, offered in zip(lowered.steps, step_candidates(dnnl, lowered, home), strict=True)
        if all(one.kernel.startswith("ref") for one in offered)
    }


def _lowered(nodes: list[onnx.NodeProto], inputs: dict[str, tuple[int, ...]], constants: Constants, output: str) -> Lowered:
    return lower(simplify(from_onnx(made(nodes, inputs, constants, output=output, opset=20), "made")))


BASES = dict(_bases())
_OTHER_AXES = [base for base in BASES if re.search("[13]", base.split("-")[0])]
_IMAGES = [base for base in BASES if base not in _OTHER_AXES]  # over two axes, or of matrices


@pytest.mark.parametrize("base", by_day([*_IMAGES, *_OTHER_AXES], least=len(_IMAGES)))
def test_nothing_behind_an_operator_leaves_the_reference_alone(dnnl: Dnnl, base: str) -> None:
    operator, inputs, constants = BASES[base]
    alone = _lowered([operator], inputs, constants, "c")
    known = _slow(dnnl, alone)
    for name, nodes, more, others in _behind(alone.shapes["c"]):
        lowered = _lowered([operator, *nodes], inputs | more, constants | others, "y")  # type: ignore[operator]
        assert _slow(dnnl, lowered) <= known, name
