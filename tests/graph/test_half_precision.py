"""Casts to half precision round to the nearest, ties to even; files of half precision are computed in single."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from model_file_runs import assert_starts, made, node, own_outputs, values, write
from onnx import TensorProto, helper
from tiny_profiled import own_state  # noqa: F401  a fixture

from edgeplan import native, plan_memory, predict
from edgeplan.graph import blocks
from edgeplan.graph.onnx.prepare import Preparation, needs_preparation, prepare_file, prepared_model
from edgeplan.planning.document import Plan
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl

_Array = npt.NDArray[Any]
_HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_ONNX = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def _converted(kernel: str, x: _Array, written: npt.DTypeLike, kinds: tuple[str, str]) -> _Array:
    y = np.zeros(x.shape, written)
    block = np.array(blocks.element_wise(x.shape, [(x.shape, kinds[0])], kinds[1]), np.int64)
    at = np.array([x.ctypes.data, y.ctypes.data], np.int64)
    types = (ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
    assert native.function(f"kernel_{kernel}", *types)(block.ctypes.data, None, 2, at.ctypes.data) == 0
    return y


def _numbers() -> _Array:
    """Random bits, numbers about the borders of half precision, and half-way cases."""
    rng = np.random.default_rng(0)
    bits = rng.integers(-(2**31), 2**31, 200_000).astype(np.int32).view(np.float32)
    sizes = rng.standard_normal(100_000) * 10.0 ** rng.uniform(-9, 5, 100_000)
    borders = [0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, 2**-24, 2**-25, 3 * 2**-25, 6.1e-5]
    half_way = [1 + 2**-11, 1 + 3 * 2**-11, *(1 + np.arange(64) / 256)]
    return np.concatenate([bits, *(np.array(more, np.float32) for more in (sizes, borders, half_way))])


@pytest.mark.parametrize("kind", _HALVES)
def test_numbers_are_rounded_to_half_precision_bit_for_bit(kind: str) -> None:
    x = _numbers()
    found = _converted(f"to_{kind}_float32", x, np.uint16, ("float32", kind))
    with np.errstate(all="ignore"):
        wanted = x.astype(_HALVES[kind])
    numbers = ~np.isnan(x)
    np.testing.assert_array_equal(found[numbers], wanted.view(np.uint16)[numbers])
    assert np.isnan(found.view(_HALVES[kind])[~numbers].astype(np.float32)).all()


@pytest.mark.parametrize("kind", _HALVES)
def test_every_number_of_half_precision_is_read(kind: str) -> None:
    bits = np.arange(1 << 16).astype(np.uint16)
    np.testing.assert_array_equal(
        _converted(f"of_{kind}_to_float32", bits, np.float32, (kind, "float32")), bits.view(_HALVES[kind]).astype(np.float32)
    )


@pytest.mark.parametrize("kind", _HALVES)
@pytest.mark.parametrize("behind", [True, False])
def test_a_cast_within_a_model_rounds(dnnl: Dnnl, tmp_path: Path, kind: str, behind: bool) -> None:
    """Between other operators, and as a model's last operator, whose output is single."""
    more = [node("Cast", "h", "s", to=TensorProto.FLOAT), node("Mul", "s two")] if behind else []
    model = made(
        [node("Cast", "x", "h" if behind else "y", to=_ONNX[kind]), *more], {"x": (3, 1000)}, {"two": np.float32(2)}, opset=17
    )
    if not behind:
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", _ONNX[kind], None))
    path = write(model, tmp_path / "m.onnx")
    assert needs_preparation(onnx.load(path))
    ready = prepare_file(path, Preparation(), tmp_path / "ready.onnx")
    x = np.random.default_rng(1).standard_normal((3, 1000)).astype(np.float32)
    wanted = x.astype(_HALVES[kind]).astype(np.float32) * np.float32(2 if behind else 1)
    np.testing.assert_array_equal(own_outputs(dnnl, ready, {"x": x})["y"], wanted)
    again = prepared_model(onnx.load(ready), Preparation(), "again")
    assert len(again.graph.node) == len(onnx.load(ready).graph.node)


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
    model = made(nodes, {"x": (1, 3, 6, 8)}, constants)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.UINT8
    return write(model, folder / "m.onnx")


@pytest.mark.parametrize("device", ["cpu-onednn", "cpu-onnxruntime", "cpu-openvino"])
def test_all_of_them_are_predicted(tmp_path: Path, device: str) -> None:
    assert predict(_saved(tmp_path), device).latency_ms


def test_all_of_them_start_cold_and_run_from_a_plan_of_memory(dnnl: Dnnl, tmp_path: Path, planned: Callable[..., Plan]) -> None:
    path = prepare_file(_saved(tmp_path), Preparation(), tmp_path / "ready.onnx")
    assert_starts(dnnl, planned, path, tmp_path)
    plan_memory(path, tmp_path / "plan", "64MiB", threads=1)
    run(tmp_path / "plan", check=True).require_checked()


def test_tables_of_a_step_without_weights_stay_whole_in_a_plan_of_memory(tmp_path: Path) -> None:
    """A triangle of 2,048 rows has a table of whole pages, which are no halves of anything."""
    model = made([node("Trilu", "x", "t"), node("MatMul", "t w")], {"x": (2048, 16)}, {"w": values(16, 8)})
    plan_memory(write(model, tmp_path / "m.onnx"), tmp_path / "plan", "64MiB", threads=1)
    run(tmp_path / "plan", check=True).require_checked()
