"""Kernels compute what ONNX Runtime does, on any shape, whatever the device's vectors and what stands behind a step."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depth import examples, some
from edgeplan.engines.base import EngineSettings, random_inputs
from edgeplan.engines.gpu import opencl
from edgeplan.engines.gpu.opencl import device_numbers
from edgeplan.engines.gpu.session import Opencl
from edgeplan.engines.onnxruntime.reference import onnxruntime_reference
from edgeplan.errors import DeviceError
from edgeplan.graph.builder import GraphBuilder, conv_output_size
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.opencl import convolutions
from edgeplan.opencl.launch import GpuNumbers
from edgeplan.opencl.platforms import VECTORS, OpenclOptions, find_device
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.testing.engines import require_close
from edgeplan.workloads.exported import ExportBuilder

_SETTINGS = settings(
    max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
)
Pair = tuple[int, int]
#: An operator behind a step, of its output, of another activation of that shape, and of one with a value for each channel.
Behind = Callable[[ExportBuilder, str, str, str], str]
_BEHIND: Mapping[str, Behind] = {
    "relu": lambda b, x, _same, _each: b.node("Relu", [x]),
    "leaky": lambda b, x, _same, _each: b.node("LeakyRelu", [x], alpha=0.1),
    "clip": lambda b, x, _same, _each: b.node("Clip", [x, b.constant("low", 0.25), b.constant("high", 6.0)]),
    "sigmoid": lambda b, x, _same, _each: b.node("Sigmoid", [x]),
    "sum": lambda b, x, same, _each: b.node("Add", [x, same]),
    "product": lambda b, x, same, _each: b.node("Mul", [x, same]),
    "sum of each": lambda b, x, _same, each: b.node("Add", [x, each]),
    "product of each": lambda b, x, _same, each: b.node("Mul", [x, each]),
}
posts = st.sampled_from(
    [
        (),
        ("relu",),
        ("clip",),  # zero is not left as it is
        ("sum", "relu"),
        ("product of each", "sigmoid", "sum"),
        ("leaky", "sum of each", "product"),
    ]
)


@pytest.fixture
def vectors() -> Sequence[int]:
    """The vectors that the device computes right with."""
    try:
        device = find_device(OpenclOptions())
    except DeviceError as error:
        pytest.skip(error.what)
    return [size for size in VECTORS if size <= device_numbers(device, Dnnl().info.block, OpenclOptions()).vector]


def _computed(path: Path, graph: Graph, vector: int, tolerance: float = 2e-5) -> set[str]:
    """Run a model on the device alone and hold its outputs against ONNX Runtime's; the implementations of its steps."""
    with Opencl(EngineSettings(options={"vector": str(vector)})).load_profiled(path, graph) as session:
        session.run()
        nodes, _ = session.profile([(0, 1)])
        told = {node.implementation for node in nodes}
        wanted = onnxruntime_reference(path, random_inputs(graph))
        require_close(session.outputs(), wanted, 1e-4 if "conv.winograd" in told else tolerance)
    assert not [name for name in told if name.startswith("host.")]
    return told


def _ran(b: ExportBuilder, output: str, vector: int) -> set[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = b.build({"y": output}).seeded(0).save(Path(folder) / "model.onnx")
        return _computed(path, load_onnx(path), vector)


def _convolved(
    x: tuple[int, ...], out: int, after: Sequence[str], vector: int, *, plain: bool = False, **attributes: Any
) -> set[str]:
    """Run a convolution of an image in blocks, or of a model's input, with what is behind it."""
    b = ExportBuilder("convolved")
    source = b.input("x", x) if plain else b.node("Relu", [b.input("x", x)])
    weight = (out, x[1] // attributes.get("group", 1), *attributes["kernel_shape"])
    same = each = ""

    def conv(name: str) -> str:
        given = [source, b.weight(f"{name}.weight", weight, 0.5), b.bias(name, out)]
        return b.node("Conv", given, name, **attributes)

    found = conv("first")
    if any(not name.isalpha() or name in ("sum", "product") for name in after):
        same = conv("second")
        each = b.node("GlobalAveragePool", [same])
    for name in after:
        found = _BEHIND[name](b, found, same, each)
    return {name for name in _ran(b, found, vector) if name.startswith("conv.")}


@st.composite
def windows(draw: st.DrawFn) -> tuple[dict[str, Sequence[int]], Pair]:
    """Attributes of a convolution, and the size of an image that it fits on."""
    kernel = draw(st.tuples(st.integers(1, 5), st.integers(1, 5)))
    strides, dilations = (draw(st.tuples(st.integers(1, 3), st.integers(1, 2))) for _ in range(2))
    pads = [draw(st.integers(0, k - 1)) for k in (*kernel, *kernel)]
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    height, width = (draw(st.integers(span, span + 17)) for span in spans)
    return {"kernel_shape": kernel, "strides": strides, "dilations": dilations, "pads": pads}, (height, width)


pointwise = st.tuples(st.just({"kernel_shape": (1, 1)}), st.tuples(st.integers(1, 9), st.integers(1, 9)))


#: What may run convolutions of activations, of a model's input, and of each channel by itself.
_KERNELS = {
    "blocked": {"conv.direct", "conv.pointwise", "conv.winograd"},
    "plain": {"conv.first", "conv.pointwise"},
    "depthwise": {"conv.depthwise"},
}


@_SETTINGS
@given(st.data(), windows() | pointwise, st.integers(2, 40), st.integers(1, 52), posts, st.sampled_from([*_KERNELS]))
def test_any_window(
    vectors: Sequence[int],
    data: st.DataObject,
    window: tuple[dict[str, Sequence[int]], Pair],
    inner: int,
    out: int,
    after: tuple[str, ...],
    kind: str,
) -> None:
    attributes, size = window
    grouped = {"group": inner} if kind == "depthwise" else {}
    out, vector = grouped.get("group", out), data.draw(st.sampled_from(vectors))
    found = _convolved((1, inner, *size), out, after, vector, plain=kind == "plain", **attributes, **grouped)
    assert found <= _KERNELS[kind]


@_SETTINGS
@given(st.data(), st.integers(8, 25), st.integers(8, 25), st.integers(0, 2), st.integers(0, 2), st.integers(1, 70), posts)
def test_winograd(
    vectors: Sequence[int],
    data: st.DataObject,
    height: int,
    width: int,
    before: int,
    behind: int,
    out: int,
    after: tuple[str, ...],
) -> None:
    inner, vector = data.draw(st.integers(convolutions.WINOGRAD_CHANNELS, 70)), data.draw(st.sampled_from(vectors))
    pads = (before, behind, behind, before)
    found = _convolved((1, inner, height, width), out, after, vector, kernel_shape=(3, 3), pads=pads)
    pixels = [conv_output_size(size, 3, 1, before + behind) for size in (height, width)]
    places = math.prod(-(-side // convolutions.WINOGRAD_TILE) for side in pixels)
    most = math.prod(pixels) / (places * convolutions.WINOGRAD_TILE**2)  # of tiles that are all of use
    assert found == {"conv.winograd"} or most < 2 * convolutions.WINOGRAD_USEFUL


@pytest.mark.parametrize("out", [96, 64])
def test_grouped_channels(vectors: Sequence[int], out: int) -> None:
    for vector in vectors:
        assert _convolved((1, 64, 9, 9), out, (), vector, kernel_shape=(3, 3), pads=[1] * 4, group=2) == {"conv.direct"}


@_SETTINGS
@given(
    st.data(), st.sampled_from([1, 1, 2, 6, 7, 25]), st.integers(1, 70), st.integers(1, 70), st.booleans(),
    st.sampled_from([(), ("relu",), ("sum", "relu"), ("sigmoid", "product")]),
)  # fmt: skip
def test_linear(
    vectors: Sequence[int], data: st.DataObject, rows: int, inner: int, columns: int, transposed: bool, after: tuple[str, ...]
) -> None:
    b = ExportBuilder("linear")
    source = b.node("Relu", [b.input("x", (rows, inner))])

    def layer(name: str) -> str:
        weight = b.weight(f"{name}.weight", (columns, inner) if transposed else (inner, columns), 0.5)
        return b.node("Gemm", [source, weight, b.bias(name, columns)], name, transB=int(transposed), alpha=0.5, beta=2.0)

    found = layer("first")
    same = layer("second") if {"sum", "product"} & set(after) else ""
    for name in after:
        found = _BEHIND[name](b, found, same, "")
    assert "linear" in _ran(b, found, data.draw(st.sampled_from(vectors)))


_ALONE: Mapping[str, Mapping[str, Any]] = {
    **{name: {} for name in ("Relu", "Sigmoid", "HardSwish", "Tanh", "Abs", "Sqrt", "Exp", "Log", "Softplus", "Mish")},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "Elu": {"alpha": 0.5},
    "LeakyRelu": {"alpha": 0.5},
}


@pytest.mark.parametrize("operator", _ALONE)
def test_activations_behind_a_convolution(vectors: Sequence[int], operator: str) -> None:
    """Of the squares of sums, since some are of positive values only; and of some below zero."""
    b = ExportBuilder("activation", opset=18)
    weight = b.weight("weight", (13, 1, 3, 3), 1.0)
    x = b.node("Conv", [b.node("Relu", [b.input("x", (1, 1, 9, 9))]), weight], strides=[2, 2], pads=[1] * 4)
    shift = 0.5 if operator in ("Sqrt", "Log") else -0.5
    moved = b.scalar("Add", b.scalar("Mul", b.node("Mul", [x, x]), 0.1), shift)
    _ran(b, b.node(operator, [moved], **_ALONE[operator]), vectors[0])


def _pools(b: GraphBuilder) -> Sequence[str]:
    x = b.relu(b.input)
    return b.relu(b.maxpool(x, 3, 2, 1)), b.relu(b.avgpool(x, (2, 3), (1, 2), 1)), b.relu(b.gap(x))


def _joined(b: GraphBuilder) -> Sequence[str]:
    """Parts that begin and end within blocks."""
    x = b.relu(b.input)
    left, right = b.split(x, (5, 8))
    whole = b.concat([b.activation(right, "hswish"), x, left, b.activation(x, "sigmoid")])
    return (b.relu(whole),)


def _shuffled(b: GraphBuilder) -> Sequence[str]:
    x = b.relu(b.concat([b.input, b.relu(b.input)]))
    return (b.relu(b.channel_shuffle(x, 2)), b.relu(b.lrn(x)), b.relu(b.lrn(x, 9)))


def _resized(b: GraphBuilder) -> Sequence[str]:
    x = b.relu(b.input)
    return b.relu(b.upsample(x)), b.relu(b.upsample(x, 3, mode="linear"))


def _reshaped(b: GraphBuilder) -> Sequence[str]:
    x = b.relu(b.input)
    _, channels, height, width = b.shape(x)
    turned = b.reshape(x, (1, height, channels, width))
    rows = b.relu(b.reshape(x, (channels, height * width)))
    return b.relu(turned), b.transpose(rows, (1, 0)), b.softmax(rows), b.relu(b.transpose(x, (0, 2, 1, 3)))


def _arithmetic(b: GraphBuilder) -> Sequence[str]:
    """Operands of a value for each channel, of each pixel, and behind others."""
    x, y = b.relu(b.input), b.activation(b.input, "sigmoid")
    means = b.gap(x)
    gated = b.mul(b.add(x, y), b.activation(means, "hsigmoid"))
    return b.relu(b.bn(gated)), b.activation(b.add(means, gated), "hswish"), b.activation(b.bn(x), "relu6")


def _at_the_border(b: GraphBuilder) -> Sequence[str]:
    """From the model's input to its outputs, which are not in blocks."""
    return b.maxpool(b.input, 3, 1, 1), b.lrn(b.input), b.concat([b.input, b.input]), b.bn(b.input), b.upsample(b.input)


_FORMS = {"pool": _pools, "concat": _joined, "shuffle": _shuffled, "resize": _resized}
_FORMS |= {"reshape": _reshaped, "pointwise": _arithmetic, "border": _at_the_border}


@pytest.mark.parametrize("shape", [(1, 13, 9, 7), (1, 16, 40, 33), (1, 3, 1, 5)], ids=str)
@pytest.mark.parametrize("form", _FORMS)
def test_forms_of_steps(vectors: Sequence[int], form: str, shape: tuple[int, int, int, int], tmp_path: Path) -> None:
    b = GraphBuilder(form, (1, 13, *shape[2:]) if form == "concat" else shape)
    graph = b.build(*_FORMS[form](b))
    for vector in some(vectors, f"{form}{shape}"):
        _computed(save_onnx(graph, tmp_path / "model.onnx"), graph, vector, 1e-5)


def _grouped(b: GraphBuilder) -> Sequence[str]:
    """Convolutions of windows, strides, groups and channels that fill tiles and do not, with sums and bounds behind them."""
    x = b.conv_bn(b.conv_bn(b.input, 72, 3, 2), 64, 1)
    y = b.add(b.conv_bn(x, 64, 1, act=""), x)
    z = b.conv_bn(b.conv_bn(b.relu(y), 128, 5, 2, groups=4), 20, 3, 2, act="hswish")
    return b.relu(z), b.conv_bn(y, 64, 3, groups=64), b.conv_bn(b.conv_bn(z, 16, (3, 1)), 40, 1, act="relu6")


def _rows(b: GraphBuilder) -> Sequence[str]:
    """Products of few rows and of many, whose sums and columns do not fill tiles."""
    return b.relu(b.fc(b.relu(b.fc(b.input, 70)), 130)), b.fc(b.input, 6, bias=False)


@pytest.mark.usefixtures("vectors")
@pytest.mark.parametrize(
    ("form", "shape"),
    [(_grouped, (1, 3, 65, 61)), (_grouped, (1, 16, 20, 20)), (_rows, (1, 36)), (_rows, (7, 18)), (_rows, (150, 50))],
)
def test_kernels_of_work_groups(
    form: Callable[[GraphBuilder], Sequence[str]], shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tiles in local memory, which GPUs are given; a device of the CPU has local memory, too."""
    monkeypatch.setattr(opencl, "device_numbers", lambda *given: GpuNumbers(**asdict(device_numbers(*given))))
    b = GraphBuilder("groups", shape)
    graph = b.build(*form(b))
    told = _computed(save_onnx(graph, tmp_path / "model.onnx"), graph, 4, 1e-5)
    assert {"conv.tiled", "linear.tiled", "linear.row"} & told
