"""Ranges of channels: where the weights of a part lie in the file, and what is read from there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeplan.graph.onnx.read import load_onnx
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Executable
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import Split, partition, program_of
from edgeplan.runtime.program import activation_layouts
from edgeplan.runtime.ranges import cut
from edgeplan.runtime.transform import values_of

RNG = np.random.default_rng(3)
WEIGHTS = {
    "kernel": RNG.standard_normal((40, 16, 3, 3)),
    "factor": RNG.standard_normal((1, 40, 1, 1)),
    "summand": RNG.standard_normal((40, 1, 1)),
    "stored": RNG.standard_normal((40, 48)),
    "transposed": RNG.standard_normal((56, 48)),
    "bias": RNG.standard_normal((1, 56)),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A convolution with a factor and a summand behind it, and linear layers of stored and of transposed weights."""
    nodes = [
        helper.make_node("Conv", ["x", "kernel"], ["a"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("Mul", ["a", "factor"], ["b"], "scaled"),
        helper.make_node("Add", ["b", "summand"], ["c"], "shifted"),
        helper.make_node("GlobalAveragePool", ["c"], ["d"], "mean"),
        helper.make_node("Flatten", ["d"], ["e"], "flat"),
        helper.make_node("MatMul", ["e", "stored"], ["f"], "first"),
        helper.make_node("Gemm", ["f", "transposed", "bias"], ["y"], "second", transB=1),
    ]
    graph = helper.make_graph(
        nodes,
        "ranges",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 16, 6, 6))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 56))],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in WEIGHTS.items()],
    )
    path = tmp_path / "ranges.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_parts_of_weights_are_read_from_the_file(dnnl: Dnnl, model: Path) -> None:
    """Rows of the file, or a piece of each row of it: of factors and summands those along their own axis of channels."""
    lowered, block = lower(load_onnx(model)), dnnl.info.block
    assignments = [Split(block) if step.weights else 0 for step in lowered.steps]
    found = partition(lowered, activation_layouts(lowered, BLOCKED), block, assignments)
    axes = {"kernel": 0, "factor": 1, "summand": 0, "stored": 1, "transposed": 0, "bias": 1}
    seen = set()
    with Executable(dnnl, program_of(dnnl, found, model), model.parent) as executable:
        for index, step in enumerate(found.ranged.lowered.steps):
            for role, values in executable.read(index).items():
                part = found.ranged.weights[step.weights[role]]
                index_ = [slice(None)] * WEIGHTS[part.whole].ndim
                index_[axes[part.whole]] = slice(part.start, part.stop)
                wanted = WEIGHTS[part.whole][tuple(index_)].astype(np.float32)
                np.testing.assert_array_equal(values, wanted)
                assert values.flags.c_contiguous
                seen.add((part.whole, part.start))
    assert seen == {(name, start) for name in WEIGHTS for start in (0, block)}


def test_streamed_parts_of_factors_are_of_their_channels(dnnl: Dnnl, model: Path) -> None:
    """Also where they have an axis before that of the channels."""
    lowered = lower(load_onnx(model))
    found = cut(lowered, activation_layouts(lowered, BLOCKED), 8, lambda _: 1)
    parts = [part for part in found.weights.values() if part.whole == "factor"]
    assert [(part.axis, part.start, part.stop) for part in parts] == [(1, 8 * k, 8 * k + 8) for k in range(5)]
    assert dnnl.info.block in (8, 16)


@pytest.mark.parametrize("stride", [4, 5, 8])
def test_pieces_of_rows_are_joined(stride: int) -> None:
    """Whatever lies between the values of the file, and behind the last one nothing."""
    values = np.arange(24, dtype=np.float32).reshape(4, 6)
    data = np.zeros((24, stride), np.uint8)
    data[:, :4] = values.reshape(-1, 1).view(np.uint8)
    span = data.reshape(-1)[2 * stride : (3 * 6 + 5) * stride - stride + 4]
    np.testing.assert_array_equal(values_of(span, stride, rows=(3, 6)).reshape(4, 3), values[:, 2:5])
