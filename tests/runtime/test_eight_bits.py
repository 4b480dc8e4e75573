"""Layers between bytes: computed in eight bits where sums of products are exact there, else in single precision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from byte_layers import Layer, Made, drawn, made
from byte_networks import network
from model_file_runs import made as made_model
from model_file_runs import node, write
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from depth import MANY, by_day
from edgeplan.chapters.cold_start.plan import read_model
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.graph.steps import INT8_KINDS, INT8_POOL, Lowered
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED, HOMES
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession

LANE = "numerics"
Array = npt.NDArray[Any]
_FORMS = {
    "convolution": Layer(),
    "of signed bytes": Layer(source="int8", written="int8"),
    "by one scale": Layer(by_channel=False),
    "without zero points": Layer(zero=False, bias=False),
    "to numbers": Layer(written=""),
    "strided": Layer(stride=2, pads=(1, 0, 0, 1)),
    "dilated": Layer(dilation=2, pads=(2, 2, 2, 2)),
    "of one place": Layer(window=(1, 1), pads=(0, 0, 0, 0), channels=19),
    "of an image": Layer(shape=(1, 3, 15, 13), channels=5),
    "of two images": Layer(shape=(2, 8, 9, 7)),
    "depthwise": Layer(groups=8, channels=8),
    "depthwise, strided": Layer(shape=(1, 19, 9, 9), groups=19, channels=19, stride=2),
    "grouped": Layer(shape=(1, 32, 9, 7), groups=4, channels=32),
    "of unsigned weights": Layer(weights="uint8"),
    "relu": Layer(behind="Relu"),
    "clip": Layer(behind="Clip"),
    "hard swish": Layer(behind="HardSwish"),
    "sigmoid": Layer(behind="Sigmoid"),
    "layer": Layer("Gemm", (1, 40)),
    "layer of rows": Layer("Gemm", (5, 33), transposed=False),
    "layer by one scale, relu": Layer("Gemm", (5, 64), by_channel=False, behind="Relu"),
    "layer to numbers": Layer("Gemm", (3, 16), written="", source="int8"),
    "product": Layer("MatMul", (3, 17), bias=False),
    "product of three axes": Layer("MatMul", (2, 3, 16), bias=False, source="int8"),
}


def _run(dnnl: Dnnl, given: Made, home: str) -> tuple[Array, Lowered, tuple[str, ...]]:
    path = prepare_file(given.path, Preparation(), given.path.with_name("ready.onnx"))
    graph, lowered = read_model(path)
    program = default_program(dnnl, path, graph, home)
    found = SequentialSession(dnnl, program, path.parent).run(given.inputs)["y"]
    return found, lowered, tuple(choice.kernel for choice in program.choices)


def _assert_near(found: Array, given: Made) -> None:
    assert (found.dtype, found.shape) == (given.wanted.dtype, given.wanted.shape)
    if given.step:
        assert np.abs(found.astype(int) - given.wanted.astype(int)).max() <= 1
    else:
        np.testing.assert_allclose(found, given.wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("form", "home"), by_day([(form, home) for home in HOMES for form in _FORMS], len(_FORMS), 2))
def test_a_layer_is_within_a_step_of_the_reference(dnnl: Dnnl, tmp_path: Path, form: str, home: str) -> None:
    given = made(_FORMS[form], tmp_path)
    found, lowered, kernels = _run(dnnl, given, home)
    _assert_near(found, given)
    kinds = {step.kind for step in lowered.steps}
    assert (len(lowered.steps) == 1 and kinds <= set(INT8_KINDS)) == dnnl.info.exact_bytes
    assert not any(kernel.startswith("ref") for kernel in kernels)


@pytest.mark.parametrize("kind", ["Conv", "Gemm", "MatMul"])
@pytest.mark.parametrize("source", ["uint8", "int8"])
@pytest.mark.parametrize("weights", ["uint8", "int8"])
def test_sums_of_the_largest_bytes_do_not_saturate(dnnl: Dnnl, tmp_path: Path, kind: str, source: str, weights: str) -> None:
    shape = (1, 128, 5, 5) if kind == "Conv" else (3, 128)
    layer = Layer(kind, shape, 32, (1, 1), pads=(0,) * 4, source=source, weights=weights, bias=False, zero=False)
    given = made(layer, tmp_path, extreme=True)
    found, _, _ = _run(dnnl, given, BLOCKED)
    assert given.wanted.max() > 100
    _assert_near(found, given)


@pytest.mark.parametrize("seed", by_day(range(60), 4))
def test_random_layers_are_within_a_step_of_the_reference(dnnl: Dnnl, tmp_path: Path, seed: int) -> None:
    rng, count, in_bytes = np.random.default_rng(seed), 50 if MANY else 25, 0
    for number in range(count):
        layer = drawn(rng)
        given = made(layer, tmp_path, 1000 * seed + number)
        found, lowered, kernels = _run(dnnl, given, HOMES[number % len(HOMES)])
        in_bytes += any(step.kind in INT8_KINDS for step in lowered.steps)
        assert not any(kernel.startswith("ref") for kernel in kernels), layer
        try:
            _assert_near(found, given)
        except AssertionError as error:
            raise AssertionError(f"{layer}: {error}") from error
    assert in_bytes == (count if dnnl.info.exact_bytes else 0)


@pytest.mark.parametrize("seed", by_day(range(100), 4))
def test_random_networks_are_those_of_onnx_runtime(dnnl: Dnnl, tmp_path: Path, seed: int) -> None:
    """Of ten networks nearly all values are within two steps: one that lies half-way may become either, layer by layer."""
    apart, in_bytes = list[Array](), 0
    for number in range(10):
        given, wanted, scales = network(10 * seed + number, tmp_path / "network.onnx")
        path = prepare_file(tmp_path / "network.onnx", Preparation(), tmp_path / "ready.onnx")
        graph, lowered = read_model(path)
        session = SequentialSession(dnnl, default_program(dnnl, path, graph, HOMES[number % len(HOMES)]), tmp_path)
        found = session.run({"x": given})
        for value, expected, scale in zip(found.values(), wanted, scales, strict=True):
            assert value.shape == expected.shape
            apart.append(np.abs(value - expected).ravel() / scale)
        in_bytes += any(step.kind in INT8_KINDS for step in lowered.steps)
    steps = np.concatenate(apart)
    assert (steps < 2.001).mean() >= 0.99, (seed, steps.max())
    assert steps.max() < 6, seed
    assert in_bytes == (10 if dnnl.info.exact_bytes else 0)


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("home", HOMES)
def test_the_largest_of_bytes_is_found_among_bytes(dnnl: Dnnl, tmp_path: Path, dtype: str, home: str) -> None:
    rng, bounds = np.random.default_rng(3), np.iinfo(dtype)
    x = rng.integers(bounds.min, bounds.max + 1, (2, 19, 9, 8)).astype(dtype)
    weight = rng.integers(-127, 128, (8, 19, 1, 1)).astype(np.int8)
    nodes = [
        node("DequantizeLinear", "x s z", "f"),
        node("MaxPool", "f", "p", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
        node("DequantizeLinear", "w s zw", "v"),
        node("Conv", "p v", "c"),
        node("Sigmoid", "p"),
    ]
    constants = {"s": np.float32(0.1), "z": np.array(3, dtype), "w": weight, "zw": np.int8(0)}
    model = made_model(nodes, {"x": x.shape}, constants, opset=21, kind=helper.np_dtype_to_tensor_dtype(x.dtype))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, None))
    model.graph.output.append(helper.make_tensor_value_info("c", TensorProto.FLOAT, None))
    path = prepare_file(write(model, tmp_path / "m.onnx"), Preparation(), tmp_path / "ready.onnx")
    graph, lowered = read_model(path)
    found = SequentialSession(dnnl, default_program(dnnl, path, graph, home), tmp_path).run({"x": x})
    wanted = ReferenceEvaluator(model).run(None, {"x": x})
    assert any(step.kind == INT8_POOL for step in lowered.steps) == dnnl.info.exact_bytes
    for name, expected in zip(("y", "c"), wanted, strict=True):
        np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-4)
