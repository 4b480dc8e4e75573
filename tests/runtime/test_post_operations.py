"""A primitive of oneDNN takes 32 post-operations: what is behind them begins a step of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from model_file_runs import assert_runs, assert_starts, made, node, values, write

from depth import by_day
from edgeplan.graph.onnx.read import from_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import step_candidates

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


@pytest.mark.parametrize("base", ["conv1-16x1-3", "conv1-1x16-3", "conv2-4x4-3", "conv3-16x1-3", "conv3-1x5-1"])
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_sums_and_products_of_whole_tensors_are_right(dnnl: Dnnl, tmp_path: Path, base: str, op: str) -> None:
    """A residual block: the sum's other operand is the block's input, and more lies behind it."""
    operator, inputs, constants = BASES[base]
    nodes = [operator, node(op, "c x", "s"), node("Relu", "s", "r"), node("Add", "r z")]
    path = tmp_path / "m.onnx"
    path.write_bytes(made(nodes, inputs | {"z": inputs["x"]}, constants).SerializeToString())
    lowered = assert_runs(dnnl, path)
    assert not _slow(dnnl, lowered)
