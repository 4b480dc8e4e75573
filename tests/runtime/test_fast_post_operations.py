"""A post-operation is taken only where oneDNN has more than its reference for the primitive with it: each operator, over each
number of axes, with each operation behind it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from model_file_runs import assert_runs, made, node, values

from edgeplan.graph.onnx.read import from_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import step_candidates

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


@pytest.mark.parametrize("base", BASES)
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
