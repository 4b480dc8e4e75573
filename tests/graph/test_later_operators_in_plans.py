"""Operators that came later, bytes and casts to half precision: predicted whole, and run from plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from model_file_runs import assert_starts, node, values
from onnx import TensorProto, helper, numpy_helper
from tiny_profiled import own_state  # noqa: F401  a fixture

from edgeplan import plan_memory, predict
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.planning.document import Plan
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl

pytestmark = pytest.mark.usefixtures("own_state")


def _saved(folder: Path) -> Path:
    """An image of bytes, of which elements and slices are picked, pooled by roots, enlarged and rounded."""
    nodes = [
        node("Cast", "x", "f", to=TensorProto.FLOAT),
        node("Mul", "f k", "s"),
        node("Cast", "s", "h", to=TensorProto.BFLOAT16),
        node("Cast", "h", "r", to=TensorProto.FLOAT),
        node("GatherElements", "r i", "e", axis=2),
        node("GatherND", "e j", "g", batch_dims=1),
        node("LpPool", "g", "p", kernel_shape=[2, 2]),
        node("GlobalLpPool", "p", "q", p=3),
        node("Resize", "p - c", "z", mode="cubic"),
        node("Einsum", "z q w", "y", equation="nchw,ncab,oc->nohw"),
    ]
    constants = {
        "k": np.float32(1 / 255), "i": np.arange(5 * 8).reshape(1, 1, 5, 8).repeat(3, 1) % 6, "j": np.array([[[2], [0], [-1]]]),
        "c": np.array([1, 1, 1.5, 2], np.float32), "w": values(4, 3),
    }  # fmt: skip
    body = helper.make_graph(
        nodes,
        "later",
        [helper.make_tensor_value_info("x", TensorProto.UINT8, (1, 3, 6, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize("device", ["cpu-onednn", "cpu-onnxruntime", "cpu-openvino"])
def test_all_of_them_are_predicted(tmp_path: Path, device: str) -> None:
    assert predict(_saved(tmp_path), device).latency_ms


def test_all_of_them_start_cold(dnnl: Dnnl, tmp_path: Path, planned: Callable[..., Plan]) -> None:
    path = prepare_file(_saved(tmp_path), Preparation(), tmp_path / "ready.onnx")
    assert_starts(dnnl, planned, path, tmp_path)


def test_all_of_them_run_from_a_plan_of_memory(tmp_path: Path) -> None:
    path = prepare_file(_saved(tmp_path), Preparation(), tmp_path / "ready.onnx")
    plan_memory(path, tmp_path / "plan", "64MiB", threads=1)
    found = run(tmp_path / "plan", check=True)
    assert found.difference is not None
    found.require_checked()


def test_tables_of_a_step_without_weights_stay_whole_in_a_plan_of_memory(tmp_path: Path) -> None:
    """A triangle of 2,048 rows has a table of whole pages, which are no halves of anything."""
    body = helper.make_graph(
        [node("Trilu", "x", "t"), node("MatMul", "t w", "y")],
        "triangle",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2048, 16))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(values(16, 8), "w")],
    )
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    plan_memory(tmp_path / "m.onnx", tmp_path / "plan", "64MiB", threads=1)
    found = run(tmp_path / "plan", check=True)
    found.require_checked()
