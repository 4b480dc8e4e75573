"""Casts to half precision round to the nearest, ties to even; files of half precision are computed in single."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from model_file_runs import made, node, write
from onnx import TensorProto, helper

from edgeplan import predict
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.graph import blocks
from edgeplan.graph.onnx.compare import largest_difference
from edgeplan.graph.onnx.prepare import Preparation, needs_preparation, prepare_file, prepared
from edgeplan.runtime import kernels
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import NCHW
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession

_Array = npt.NDArray[Any]
_HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_ONNX = {"float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}


def _converted(kernel: str, x: _Array, written: npt.DTypeLike, kinds: tuple[str, str]) -> _Array:
    y = np.zeros(x.shape, written)
    block = np.array(blocks.element_wise(x.shape, [(x.shape, kinds[0])], kinds[1]), np.int64)
    at = np.array([x.ctypes.data, y.ctypes.data], np.int64)
    assert kernels.function(kernel)(block.ctypes.data, None, 2, at.ctypes.data) == 0
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


def _run(dnnl: Dnnl, path: Path, x: _Array) -> _Array:
    graph, _ = read_model(path)
    return SequentialSession(dnnl, default_program(dnnl, path, graph, NCHW), path.parent).run({"x": x})["y"]


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
    np.testing.assert_array_equal(_run(dnnl, ready, x), wanted)
    again = prepared(onnx.load(ready), Preparation(), "again")
    assert len(again.graph.node) == len(onnx.load(ready).graph.node)


@pytest.mark.parametrize("kind", _HALVES)
def test_a_file_of_half_precision_runs_and_is_predicted(dnnl: Dnnl, tmp_path: Path, kind: str) -> None:
    """As converters write it that keep the types of inputs and outputs: what is read is rounded, the rest is single."""
    rng = np.random.default_rng(2)
    weight = rng.standard_normal((5, 3, 3, 3)).astype(_HALVES[kind])
    nodes = [
        node("Cast", "x", "h", to=_ONNX[kind]),
        node("Conv", "h w", "c"),
        node("Relu", "c", "r"),
        node("Cast", "r", to=TensorProto.FLOAT),
    ]
    model = made(nodes, {"x": (1, 3, 8, 8)}, opset=22)
    model.graph.initializer.append(helper.make_tensor("w", _ONNX[kind], weight.shape, weight.tobytes(), raw=True))
    path = write(model, tmp_path / "m.onnx")
    ready = prepare_file(path, Preparation(), tmp_path / "ready.onnx")
    if kind == "float16":
        assert largest_difference(path, ready, Preparation()) < 1e-5
    x = rng.standard_normal((1, 3, 8, 8)).astype(np.float32)
    plain = made([node("Conv", "x w", "c"), node("Relu", "c")], {"x": x.shape}, {"w": weight.astype(np.float32)})
    wanted = _run(dnnl, write(plain, tmp_path / "plain.onnx"), x.astype(_HALVES[kind]).astype(np.float32))
    np.testing.assert_allclose(_run(dnnl, ready, x), wanted, rtol=1e-5, atol=1e-5)
    assert predict(path, "cpu-onednn").latency_ms
