"""A primitive of oneDNN takes 32 post-operations: what is behind them begins a step of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from model_file_runs import assert_runs, assert_starts, made, node, values, write

from edgeplan.runtime.dnnl import Dnnl

Chain = Callable[[int], list[onnx.NodeProto]]
IMAGE = {"x": (1, 5, 6, 6)}


def _activations(count: int) -> list[onnx.NodeProto]:
    return [node(("Tanh", "LeakyRelu")[i % 2], f"a{i}", f"a{i + 1}") for i in range(count)]


def _sums(count: int) -> list[onnx.NodeProto]:
    return [node("Add", f"a{i} z", f"a{i + 1}") for i in range(count)]


def _products(count: int) -> list[onnx.NodeProto]:
    return [node("Mul", f"z a{i}", f"a{i + 1}") for i in range(count)]


def _swishes(count: int) -> list[onnx.NodeProto]:
    pairs = [(node("Sigmoid", f"a{i}", f"s{i}"), node("Mul", f"a{i} s{i}", f"a{i + 1}")) for i in range(count)]
    return [one for pair in pairs for one in pair]


def _mixed(count: int) -> list[onnx.NodeProto]:
    return [node("Add", f"a{i} z", f"a{i + 1}") if i % 3 else node("Tanh", f"a{i}", f"a{i + 1}") for i in range(count)]


CHAINS: dict[str, Chain] = {
    "activations": _activations, "sums": _sums, "products": _products, "swishes": _swishes, "all": _mixed,
}  # fmt: skip
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
