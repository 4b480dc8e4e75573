"""Weights that stay bytes or halves in the file, and casts that round: what preparation leaves so, and what is computed."""

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
from byte_models import Layer
from byte_models import made as made_layer
from model_file_runs import assert_starts, made, node, own_outputs, values, write
from onnx import TensorProto, helper, numpy_helper
from partition_models import cut_outputs, split_all
from plan_folders import start_right
from quantised_models import quantised
from tiny_profiled import own_state  # noqa: F401  a fixture

from depth import by_day
from edgeplan import native, plan_memory, predict
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.engines.base import random_inputs
from edgeplan.engines.onnxruntime.reference import onnxruntime_reference
from edgeplan.errors import ModelError
from edgeplan.graph import blocks
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.prepare import Preparation, load_prepared, needs_preparation, prepare_file, prepared_model
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.planning.document import Plan
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.sections import Dimension
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.streaming.build import build
from edgeplan.runtime.streaming.weights_file import write_weights

LANE = "numerics"
Array = npt.NDArray[Any]


def _types(path: Path) -> dict[str, int]:
    return {tensor.name: tensor.data_type for tensor in onnx.load(path).graph.initializer}


def _two_layers(kind: npt.DTypeLike, rng: np.random.Generator, channels: int = 16) -> dict[str, Array]:
    """Weights of a convolution of 3 channels to 16 or more, and of a layer of these to 40 columns."""
    shapes = {"w": (channels, 3, 3, 3), "v": (channels, 40)}
    if np.dtype(kind) == np.float16:
        return {name: rng.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    return {name: rng.integers(-127, 128, shape).astype(kind) for name, shape in shapes.items()}


def _weight_only(path: Path) -> tuple[Path, Path]:
    """A model of numbers whose weights are bytes, and the same of float32."""
    rng = np.random.default_rng(1)
    weights = _two_layers(np.int8, rng)
    scales = {"ws": (rng.random(16) / 100).astype(np.float32), "vs": (rng.random(40) / 100).astype(np.float32)}
    layers = [node("Conv", "x wf b", "1"), node("Relu", "1", "2"), node("GlobalAveragePool", "2", "3")]
    layers += [node("Flatten", "3", "4"), node("MatMul", "4 vf")]
    numbers = [node("DequantizeLinear", "w ws", "wf", axis=0), node("DequantizeLinear", "v vs", "vf", axis=-1)]
    bias = {"b": rng.standard_normal(16).astype(np.float32)}
    given = write(made([*numbers, *layers], {"x": (1, 3, 9, 9)}, weights | scales | bias, opset=21), path / "given.onnx")
    plain = {"wf": weights["w"] * scales["ws"][:, None, None, None], "vf": weights["v"] * scales["vs"]}
    return given, write(made(layers, {"x": (1, 3, 9, 9)}, plain | bias, opset=21), path / "plain.onnx")


def _halves(path: Path, channels: int = 16) -> tuple[Path, Path]:
    """A model of half precision, and the same of float32."""
    rng = np.random.default_rng(2)
    weights = _two_layers(np.float16, rng, channels)
    layers = [node("Conv", "x w", "1"), node("GlobalAveragePool", "1", "3"), node("Flatten", "3", "4"), node("MatMul", "4 v")]
    given = made(layers, {"x": (1, 3, 9, 9)}, weights, kind=TensorProto.FLOAT16)
    plain = made(layers, {"x": (1, 3, 9, 9)}, {name: value.astype(np.float32) for name, value in weights.items()})
    return write(given, path / "given.onnx"), write(plain, path / "plain.onnx")


_MODELS: dict[str, tuple[Callable[[Path], tuple[Path, Path]], int]] = {
    "bytes": (_weight_only, TensorProto.INT8),
    "halves": (_halves, TensorProto.FLOAT16),
}


@pytest.mark.parametrize("kind", _MODELS)
def test_prepared_weights_stay_as_they_are_stored(dnnl: Dnnl, tmp_path: Path, kind: str) -> None:
    make, stored = _MODELS[kind]
    given, plain = make(tmp_path)
    ready = prepare_file(given, Preparation(), tmp_path / "ready.onnx")
    assert sum(dtype == stored for dtype in _types(ready).values()) == 2
    graph, wanted = load_onnx(ready), load_onnx(plain)
    assert [op.op_type for op in graph.operators] == [op.op_type for op in wanted.operators]
    layers = ("Conv", "MatMul")
    assert {graph.tensors[op.weights[0]].dtype for op in graph.operators if op.op_type in layers} == {"float32"}
    inputs = random_inputs(graph)
    np.testing.assert_allclose(
        own_outputs(dnnl, ready, inputs)["y"], own_outputs(dnnl, plain, inputs)["y"], rtol=1e-6, atol=1e-6
    )
    again = prepare_file(ready, Preparation(), tmp_path / "again.onnx")  # to the same
    told = [
        [(op.op_type, op.inputs, len(op.weights), op.outputs) for op in one.operators]
        for one in (graph, load_onnx(again), load_prepared(given, Preparation()))
    ]
    assert told[0] == told[1] == told[2]
    assert sorted(_types(again).values()) == sorted(_types(ready).values())
    assert len(load_onnx(again).stored) == 2


@pytest.mark.parametrize("kind", [*_MODELS, "quantised"])
@pytest.mark.usefixtures("own_state")
def test_every_chapter_that_executes_widens_them(dnnl: Dnnl, tmp_path: Path, planned: Callable[..., Plan], kind: str) -> None:
    given = _MODELS[kind][0](tmp_path)[0] if kind in _MODELS else quantised(tmp_path, "qdq", per_channel=True)
    path = prepare_file(given, Preparation(), tmp_path / "ready.onnx")
    graph, _ = read_model(path)
    lowered, inputs = lower(graph, eight_bits=False), random_inputs(graph)  # as plans of pairs have it
    wanted = onnxruntime_reference(path, inputs)
    near = {"rtol": 1e-5, "atol": 1e-5 if kind in _MODELS else 0.0346}  # a step of its last scale
    for sources in (("raw",), ("cached_mmap",)):
        plan = planned(path, graph, sources=sources, model_sha256=model_sha256(path))
        start_right(build_plan_folder(dnnl, path, plan, tmp_path / sources[0]), graph, wanted)
    if kind != "halves":  # whose plans of memory are tried below
        plan_memory(path, tmp_path / "memory", "64MiB", threads=1)
        run(tmp_path / "memory", check=True).require_checked()
    dnnl.set_threads(1)
    for dimension in (Dimension.channels, Dimension.rows):
        assignments = split_all(lowered, BLOCKED, dnnl.info.block, dimension, 0.5)
        cut = cut_outputs(path, lowered, inputs, BLOCKED, assignments)
        np.testing.assert_allclose(cut["y"], wanted["y"], **near)


@pytest.mark.usefixtures("own_state")
def test_a_plan_of_memory_keeps_halves_in_half_their_bytes(dnnl: Dnnl, tmp_path: Path) -> None:
    """Nothing is lost by that: the file holds halves."""
    given, plain = _halves(tmp_path, 512)
    path, sizes = prepare_file(given, Preparation(), tmp_path / "ready.onnx"), dict[str, int]()
    inputs = random_inputs(load_onnx(path))
    for weights in ("f32", "f16", "bf16"):
        plan_memory(path, tmp_path / weights, "64MiB", threads=1, weights=weights)
        sizes[weights] = (tmp_path / weights / "weights.bin").stat().st_size
    found = run(tmp_path / "f16", inputs, check=True)
    found.require_checked()
    np.testing.assert_allclose(found.outputs["y"], own_outputs(dnnl, plain, inputs)["y"], rtol=1e-5, atol=1e-5)
    assert sizes["f16"] == sizes["bf16"] < 0.6 * sizes["f32"]


def test_parts_of_stored_weights_are_those_of_the_numbers(dnnl: Dnnl, tmp_path: Path) -> None:
    """A plan of memory cuts layers by channels, where scales have to be cut with the bytes."""
    given, plain = _weight_only(tmp_path)
    ready, files = prepare_file(given, Preparation(), tmp_path / "ready.onnx"), list[bytes]()
    for path in (ready, plain):
        lowered = lower(simplify(load_onnx(path)))
        built = build(dnnl, lowered, BLOCKED, 1)
        assert len(built.program.steps) > len(lowered.steps)
        write_weights(dnnl, path, lowered, built, tmp_path / "weights.bin")
        files.append((tmp_path / "weights.bin").read_bytes())
    assert len(files[0]) == len(files[1])
    np.testing.assert_allclose(np.frombuffer(files[0], np.float32), np.frombuffer(files[1], np.float32), rtol=1e-6)


def test_weights_take_a_quarter_in_the_files_and_the_memory_of_a_plan(dnnl: Dnnl, tmp_path: Path) -> None:
    given = write(made_layer(Layer(shape=(1, 64, 9, 9), channels=128)).model, tmp_path / "given.onnx")
    ready = prepare_file(given, Preparation(), tmp_path / "ready.onnx")
    assert sum(dtype == TensorProto.INT8 for dtype in _types(ready).values()) == 1
    assert ready.stat().st_size < 1.1 * 128 * 64 * 9
    lowered = lower(simplify(load_onnx(ready)))
    program = build(dnnl, lowered, BLOCKED, 1 << 30).program
    bytes_each = 1 if dnnl.info.exact_bytes else 4
    assert program.weights_bytes < 1.1 * 128 * 64 * 9 * bytes_each
    assert max(step.weight_bytes for step in program.steps) < 1.1 * 128 * 64 * 9 * bytes_each


@pytest.mark.parametrize(
    ("values", "zero", "kept"),
    [
        ((-128, 127, np.int8), 0, TensorProto.INT8),
        ((0, 255, np.uint8), 128, TensorProto.INT8),
        ((1, 200, np.uint8), 100, TensorProto.INT8),
        ((0, 255, np.uint8), 100, TensorProto.FLOAT),
        ((-100, 127, np.int8), -5, TensorProto.FLOAT),
    ],
)
def test_zero_points_are_taken_off_where_int8_is_left(
    dnnl: Dnnl, tmp_path: Path, values: tuple[int, int, Any], zero: int, kept: int
) -> None:
    low, high, dtype = values
    weight = np.linspace(low, high, 24).astype(dtype).reshape(6, 4)
    constants = {"w": weight, "s": np.float32(0.5), "z": np.array(zero, dtype)}
    nodes = [node("DequantizeLinear", "w s z", "f"), node("MatMul", "x f")]
    path = write(made(nodes, {"x": (2, 6)}, constants, opset=21), tmp_path / "m.onnx")
    ready = prepare_file(path, Preparation(), tmp_path / "ready.onnx")
    types = {t.data_type for t in onnx.load(ready).graph.initializer if list(t.dims) == [6, 4]}
    assert types == {kept}
    inputs = random_inputs(load_onnx(ready))
    wanted = inputs["x"] @ ((weight.astype(np.float32) - zero) * np.float32(0.5))
    np.testing.assert_allclose(own_outputs(dnnl, ready, inputs)["y"], wanted, rtol=1e-5)


def test_halves_that_other_operators_read_are_widened(dnnl: Dnnl, tmp_path: Path) -> None:
    """A summand and what is written as an output are no weights that kernels widen."""
    rng = np.random.default_rng(3)
    weight, summand = (rng.standard_normal(shape).astype(np.float16) for shape in ((6, 4), (2, 4)))
    model = made(
        [node("MatMul", "x w", "1"), node("Add", "1 s", "2"), node("Mul", "2 w2")],
        {"x": (2, 6)},
        {"w": weight, "s": summand, "w2": weight[:2]},
        kind=TensorProto.FLOAT16,
    )
    ready = prepare_file(write(model, tmp_path / "m.onnx"), Preparation(), tmp_path / "ready.onnx")
    assert sorted(_types(ready).values()) == [TensorProto.FLOAT, TensorProto.FLOAT, TensorProto.FLOAT16]
    inputs = random_inputs(load_onnx(ready))
    wanted = (inputs["x"] @ weight.astype(np.float32) + summand) * weight[:2].astype(np.float32)
    np.testing.assert_allclose(own_outputs(dnnl, ready, inputs)["y"], wanted, rtol=1e-4, atol=1e-5)


def test_a_bad_scale_in_a_prepared_file_is_refused(tmp_path: Path) -> None:
    ready = prepare_file(_weight_only(tmp_path)[0], Preparation(), tmp_path / "ready.onnx")
    model = onnx.load(ready)
    (scale,) = (t for t in model.graph.initializer if t.data_type == TensorProto.FLOAT and list(t.dims) == [40])
    scale.CopyFrom(numpy_helper.from_array(np.zeros(40, np.float32), scale.name))
    onnx.save(model, ready)
    with pytest.raises(ModelError, match="by the scale 0"):
        load_onnx(ready)


# Casts to half precision round to the nearest, ties to even; files of half precision are computed in single.


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


@pytest.mark.parametrize("device", by_day(["cpu-onednn", "cpu-onnxruntime", "cpu-openvino"], least=2))
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
