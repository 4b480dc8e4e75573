"""Models of eight bits: what ONNX Runtime's tool writes runs as there, and what cannot be right is refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from model_file_runs import made, node, onnxruntime_outputs, own_outputs, prepared_outputs, unprepared, write
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType
from quantised_models import images, quantised

from edgeplan.chapters.cold_start.api import read_model
from edgeplan.devices.config import DeviceFile
from edgeplan.errors import ModelError
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.onnx.compare import largest_difference
from edgeplan.graph.onnx.prepare import Preparation, load_prepared, needs_preparation, prepare_file
from edgeplan.graph.onnx.quantised import rounds_to_bytes
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.predictors.teller import Teller
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.support.tensors import QUANTISED_TOLERANCE

Array = npt.NDArray[Any]
_FORMS: dict[str, dict[str, Any]] = {
    "qdq": {},
    "qdq by channel": {"per_channel": True},
    "qdq signed": {"activation_type": QuantType.QInt8},
    "operators": {},
    "operators by channel": {"per_channel": True},
    "dynamic": {},
}


def _made(folder: Path, form: str) -> tuple[Path, Path]:
    """A quantised model as the tool writes it, and prepared."""
    given = quantised(folder, form.split(maxsplit=1)[0], **_FORMS[form])
    return given, prepare_file(given, Preparation(), folder / "prepared.onnx")


def _step(path: Path) -> float:
    """The largest scale of a model: what one step of any of its tensors is at most."""
    model = onnx.load(path)
    scales = [numpy_helper.to_array(t) for t in model.graph.initializer if t.name.endswith("_scale")]
    return max(float(np.max(scale)) for scale in scales)


@pytest.mark.parametrize("form", _FORMS)
@pytest.mark.parametrize("home", HOMES)
def test_a_quantised_network_runs_as_in_onnx_runtime(dnnl: Dnnl, tmp_path: Path, form: str, home: str) -> None:
    given, path = _made(tmp_path, form)
    for image in images(count=3, seed=9):
        (wanted,) = onnxruntime_outputs(given, {"x": image})
        assert np.abs(own_outputs(dnnl, path, {"x": image}, home)["y"] - wanted).max() <= _step(given) * 1.001


def _told(path: Path) -> Mapping[str, set[str]]:
    """Types of the nodes that the runtime runs of a file, and of the weights that they read."""
    device = DeviceFile(format_version=1, name="dev", engine="onednn")
    nodes = Teller(device, FusionRules(pairs={})).of_file(path, Preparation()).nodes
    weights = {one.dtype for node in nodes for one in node.config.inputs if one and one.constant and one.elements > 100}
    return {"types": {node.config.op for node in nodes}, "weights": weights}


@pytest.mark.parametrize("form", ["qdq", "operators", "dynamic"])
def test_a_quantised_network_is_told_and_held_against_the_original(tmp_path: Path, form: str) -> None:
    given, made = _made(tmp_path, form)
    assert needs_preparation(onnx.load(given))
    assert _told(given)["weights"] == {"float32"}
    assert largest_difference(given, made, Preparation()) <= QUANTISED_TOLERANCE


# Single operators


def _bytes(rng: np.random.Generator, shape: tuple[int, ...], dtype: Any = np.uint8) -> Array:
    bounds = np.iinfo(dtype)
    return rng.integers(bounds.min, bounds.max + 1, shape).astype(dtype)


def _scale(*values: float) -> Array:
    return np.array(values if len(values) > 1 else values[0], np.float32)


def _operators() -> dict[str, tuple[onnx.NodeProto, dict[str, Array], dict[str, Array]]]:
    """A node, its inputs and its constants, by name: forms that the tool's networks do not have."""
    rng = np.random.default_rng(5)
    own: dict[str, Any] = {"domain": "com.microsoft"}
    image, zero = _bytes(rng, (2, 4, 6, 5)), np.uint8(120)
    of = {"xs": _scale(0.02), "xz": zero, "zs": _scale(0.03), "zz": np.uint8(7), "ys": _scale(0.05), "yz": np.uint8(100)}
    matrix, weight = _bytes(rng, (5, 6)), _bytes(rng, (6, 3), np.int8)
    return {
        "convolution by channel": (
            node("QLinearConv", "x xs xz w ws wz ys yz b", pads=[1, 0, 0, 1], strides=[2, 1]),
            {"x": image},
            {
                **of, "w": _bytes(rng, (3, 4, 3, 3), np.int8), "ws": _scale(0.01, 0.02, 0.005), "wz": np.zeros(3, np.int8),
                "b": rng.integers(-999, 999, 3).astype(np.int32),
            },
        ),
        "product of whole numbers by column": (
            node("MatMulInteger", "x w xz wz"), {"x": matrix}, {"w": weight, "xz": zero, "wz": np.array([3, -1, 0], np.int8)},
        ),
        "bytes read by Microsoft's operator": (node("DequantizeLinear", "x xs xz", **own), {"x": image}, of),
        "sum": (node("QLinearAdd", "x xs xz z zs zz ys yz", **own), {"x": image, "z": _bytes(rng, (4, 1, 5))}, of),
        "factor": (node("QLinearMul", "x xs xz z zs zz ys yz", **own), {"x": image, "z": _bytes(rng, (2, 4, 6, 5))}, of),
        "means": (
            node("QLinearAveragePool", "x xs xz ys yz", kernel_shape=[3, 2], pads=[1, 1, 0, 0], **own), {"x": image}, of,
        ),
        "layer of floats": (
            node("QGemm", "x xs xz w ws wz b", transB=1, alpha=0.5, **own), {"x": matrix},
            {
                "xs": _scale(0.02), "xz": zero, "w": weight.T.copy(), "ws": _scale(0.01, 0.02, 0.03),
                "wz": np.zeros(3, np.int8), "b": rng.integers(-999, 999, 3).astype(np.int32),
            },
        ),
        "maxima of signed bytes": (node("MaxPool", "x", kernel_shape=[3, 3]), {"x": _bytes(rng, (2, 4, 6, 5), np.int8)}, {}),
        "dynamic, of zeros": (node("DynamicQuantizeLinear", "x", "y s z"), {"x": np.zeros((3, 7), np.float32)}, {}),
        "dynamic product": (
            node("DynamicQuantizeMatMul", "x w ws wz b", **own), {"x": rng.standard_normal((5, 6)).astype(np.float32)},
            {"w": weight, "ws": _scale(0.1), "wz": np.int8(1), "b": rng.standard_normal(3).astype(np.float32)},
        ),
        "product to floats": (
            node("MatMulIntegerToFloat", "x w xs ws xz wz", **own), {"x": matrix},
            {"xs": _scale(0.02), "xz": zero, "w": weight, "ws": _scale(0.1, 0.2, 0.3), "wz": np.zeros(3, np.int8)},
        ),
        "signed by rows, no zero points": (
            node("DequantizeLinear", "x s", axis=-2), {"x": _bytes(rng, (3, 4), np.int8)}, {"s": _scale(0.3, 0.1, 2)},
        ),
        "half-way cases": (
            node("QuantizeLinear", "x s z"), {"x": np.arange(-300, 300, dtype=np.float32) / 2},
            {"s": _scale(1), "z": np.int8(1)},
        ),
        "beyond bytes": (
            node("QuantizeLinear", "x s z", axis=0), {"x": np.array([[-np.inf, 1e30], [np.inf, -1e30]], np.float32)},
            {"s": _scale(1e-3, 1e20), "z": np.array([1, 2], np.uint8)},
        ),
    }  # fmt: skip


def _model(one: onnx.NodeProto, inputs: dict[str, Array], constants: Mapping[str, Array]) -> onnx.ModelProto:
    given = {k: (helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in inputs.items()}
    found = made([one], given, {k: v for k, v in constants.items() if k in one.input}, output=" ".join(one.output))
    for value in found.graph.output:
        value.ClearField("type")
    return found


@pytest.mark.parametrize("name", _operators())
def test_single_operators_are_within_a_step(dnnl: Dnnl, tmp_path: Path, name: str) -> None:
    one, inputs, constants = _operators()[name]
    model = _model(one, inputs, constants)
    wanted, found = onnxruntime_outputs(model, inputs), prepared_outputs(dnnl, model, inputs, tmp_path)
    for output, expected in zip(one.output, wanted, strict=True):
        assert (found[output].dtype, found[output].shape) == (expected.dtype, expected.shape)
        if expected.dtype == np.float32:
            assert rounds_to_bytes(model) == (one.op_type not in ("DequantizeLinear", "MatMulIntegerToFloat"))
            np.testing.assert_allclose(found[output], expected, rtol=1e-5, atol=1e-6)
        else:
            step = np.abs(found[output].astype(int) - expected.astype(int)).max()
            assert step <= (name not in ("maxima of signed bytes", "half-way cases", "product of whole numbers by column"))


_BAD: dict[str, tuple[dict[str, Array], str]] = {
    "zero": ({"s": _scale(0)}, "by the scale 0"),
    "negative": ({"s": _scale(-0.1)}, "by the scale -0.1"),
    "infinite": ({"s": _scale(np.inf)}, "by the scale inf"),
    "no number": ({"s": _scale(np.nan)}, "by the scale nan"),
    "one of several": ({"s": _scale(*[0.1] * 5, 0), "z": np.zeros(6, np.uint8)}, "by the scale 0"),
    "along no axis": ({"s": _scale(0.1, 0.2), "z": np.zeros(2, np.uint8)}, "2 scales along axis 1"),
    "fewer zero points": ({"s": _scale(*[0.1] * 6), "z": np.zeros(5, np.uint8)}, "scales"),
    "zero point of four bytes": ({"z": np.int32(0)}, "QuantizeLinear|inconsistent type"),
}


@pytest.mark.parametrize("name", _BAD)
@pytest.mark.parametrize("op_type", ["QuantizeLinear", "DequantizeLinear"])
def test_scales_and_zero_points_that_are_none_are_refused(tmp_path: Path, op_type: str, name: str) -> None:
    changed, told = _BAD[name]
    constants = {"s": _scale(0.1), "z": np.uint8(3)} | changed
    given = {"x": np.zeros((2, 6, 3), np.float32 if op_type == "QuantizeLinear" else np.uint8)}
    unprepared(_model(node(op_type, "x s z", axis=1), given, constants), tmp_path, told)


@pytest.mark.parametrize(
    "one",
    [
        node("QuantizeLinear", ""), node("DequantizeLinear", "x"), node("QLinearConv", "x s z w s z s z", []),
        node("DynamicQuantizeLinear", ""), node("DynamicQuantizeLSTM", "x", domain="com.microsoft"), node("DFT", "s z", axis=0),
        node("QuantizeLinear", "v s", output_dtype=77), node("Einsum", ""), node("Einsum", "x x", equation=3),
    ],
    ids=str,
)  # fmt: skip
def test_nodes_that_lack_what_their_operator_has_are_refused(tmp_path: Path, one: onnx.NodeProto) -> None:
    constants = {"s": _scale(0.1), "z": np.uint8(1), "v": _scale(1, 2), "w": np.ones((4, 6, 1, 1), np.int8)}
    model = _model(one, {"x": np.zeros((1, 6, 2, 2), np.float32)}, constants)
    error = unprepared(model, tmp_path, f"^{one.op_type} with inputs, outputs or attributes that do not fit|:Einsum")
    assert str(tmp_path) in error.where


@pytest.mark.parametrize(("scale", "told"), [(_scale(0.0), "by the scale 0"), (_scale(0.1, 0.2), "along axis 0")])
def test_weights_of_bad_scales_are_refused(tmp_path: Path, scale: Array, told: str) -> None:
    nodes, constants = [node("DequantizeLinear", "w s", "f", axis=0), node("MatMul", "x f")], {"w": np.ones((6, 3), np.int8)}
    unprepared(made(nodes, {"x": (2, 6)}, constants | {"s": scale}), tmp_path, told)


def _pair(*tensors: TensorProto, **changed: Array) -> onnx.ModelProto:
    """A convolution between bytes, as QDQ, with other constants in place of its own."""
    constants = {
        "s": _scale(0.1), "z": np.uint8(3), "s2": _scale(0.1), "z2": np.uint8(3), "w": np.ones((5, 4, 3, 3), np.int8),
        "ws": np.full(5, 0.1, np.float32), "wz": np.zeros(5, np.int8),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s2 z2", "f"),
        node("DequantizeLinear", "w ws wz", "wf", axis=0),
        node("Conv", "f wf", "c"),
        node("QuantizeLinear", "c s z", "r"),
        node("DequantizeLinear", "r s z"),
    ]
    held = {name: value for name, value in (constants | changed).items() if name not in {tensor.name for tensor in tensors}}
    model = made(nodes, {"x": (1, 4, 6, 6)}, held, opset=21)
    model.graph.initializer.extend(tensors)
    return model


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"z2": np.int8(3)}, "inconsistent type"),
        ({"wz": np.zeros(5, np.uint8)}, "of int8 with zero points of uint8"),
        ({"wz": np.zeros(3, np.int8)}, "scales"),
        ({"ws": np.full(5, 0.1)}, "by scales of float64"),
        ({"ws": np.array([0.1, 0.1, -0.1, 0.1, 0.1], np.float32)}, "by the scale -0.1"),
        ({"z": np.int16(3), "z2": np.int16(3)}, "INT16, which is not known"),
    ],
)
def test_convolutions_between_bytes_that_contradict_themselves_are_refused(
    tmp_path: Path, changed: dict[str, Array], told: str
) -> None:
    unprepared(_pair(**changed), tmp_path, told)


@pytest.mark.parametrize(
    ("name", "kind", "held"), [("z", TensorProto.UINT8, [300]), ("wz", TensorProto.INT8, [0, 0, -129, 0, 0])]
)
def test_zero_points_out_of_range_are_refused(tmp_path: Path, name: str, kind: int, held: list[int]) -> None:
    tensor = TensorProto(name=name, data_type=kind, dims=[len(held)][len(held) == 1 :], int32_data=held)
    path = write(_pair(tensor), tmp_path / "m.onnx")
    for read in (lambda: load_prepared(path, Preparation()), lambda: load_onnx(path)):
        with pytest.raises(ModelError, match=f"constant '{name}' of u?int8 holds (300|-129)"):
            read()


def test_pairs_that_disagree_mean_what_they_say(dnnl: Dnnl, tmp_path: Path) -> None:
    """Bytes that are read by another scale and zero point than they were written by are other numbers."""
    model, x = _pair(s2=_scale(0.3), z2=np.uint8(9)), {"x": images((1, 4, 6, 6))[0]}
    (wanted,) = onnxruntime_outputs(model, x)
    assert np.abs(prepared_outputs(dnnl, model, x, tmp_path)["y"] - wanted).max() <= 0.1001


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (node("QLinearSoftmax", "x xs xz ys yz", domain="com.microsoft", opset=13, axis=-1), "QLinearSoftmax"),
        (node("QLinearGlobalAveragePool", "x xs xz ys yz", channels_last=1, domain="com.microsoft"), "channels last"),
    ],
)
def test_other_operators_of_bytes_are_refused_with_the_recipe(tmp_path: Path, one: onnx.NodeProto, told: str) -> None:
    _, inputs, constants = _operators()["means"]
    assert "QDQ" in unprepared(_model(one, inputs, constants), tmp_path, told).next_step


def test_four_bits_are_refused_by_name(tmp_path: Path) -> None:
    values = helper.make_tensor("w", TensorProto.INT4, (4, 2), [1] * 8)
    nodes = [node("DequantizeLinear", "w s", "f"), node("MatMul", "x f")]
    model = made(nodes, {"x": (1, 4)}, {"s": _scale(0.1)}, opset=21)
    model.graph.initializer.append(values)
    model.ir_version = 10
    unprepared(model, tmp_path, "INT4, which is not known")


@pytest.mark.parametrize(("form", "told"), [("operators", "QLinear"), ("dynamic", "DynamicQuantizeLinear")])
def test_an_unprepared_file_says_how_to_prepare_it(tmp_path: Path, form: str, told: str) -> None:
    with pytest.raises(ModelError, match=told) as caught:
        load_onnx(quantised(tmp_path, form))
    assert "edgeplan prepare" in (caught.value.next_step or "")


def _lstm(scales: int, zero: int, direction: str = "bidirectional") -> onnx.ModelProto:
    """A sequence of 12 steps through an LSTM of bytes, as ONNX Runtime's dynamic quantisation writes it."""
    rng, directions, hidden, features = np.random.default_rng(5), 2 if direction == "bidirectional" else 1, 16, 24
    columns = 4 * hidden
    sizes = (directions,) if scales == 1 else (directions, columns)
    constants: dict[str, Array] = {"B": rng.uniform(-0.1, 0.1, (directions, 2 * columns)).astype(np.float32)}
    for name, inputs in (("W", features), ("R", hidden)):
        constants[name] = rng.integers(0, 255, (directions, inputs, columns)).astype(np.uint8)
        constants[f"{name}_scale"] = rng.uniform(0.002, 0.004, sizes).astype(np.float32)
        constants[f"{name}_zero"] = np.full(sizes, zero, np.uint8)
    reads = "x W R B - - - - W_scale W_zero R_scale R_zero"
    one = node("DynamicQuantizeLSTM", reads, "y", hidden_size=hidden, direction=direction, domain="com.microsoft")
    return made([one], {"x": (12, 1, features)}, constants)


@pytest.mark.parametrize(("scales", "zero", "direction"), [(1, 128, "bidirectional"), (64, 121, "forward"), (1, 3, "reverse")])
def test_a_recurrent_layer_of_bytes_runs_but_for_the_rounding_of_its_states(
    dnnl: Dnnl, tmp_path: Path, scales: int, zero: int, direction: str
) -> None:
    given = write(_lstm(scales, zero, direction), tmp_path / "given.onnx")
    path = prepare_file(given, Preparation(), tmp_path / "made.onnx")
    graph, _ = read_model(path)
    assert {op.op_type for op in graph.operators} >= {"LSTM"}
    x = np.random.default_rng(2).uniform(-1, 1, (12, 1, 24)).astype(np.float32)
    (wanted,) = onnxruntime_outputs(given, {"x": x})
    assert np.abs(own_outputs(dnnl, path, {"x": x})["y"] - wanted).max() <= QUANTISED_TOLERANCE
    assert "LSTM" in _told(given)["types"]


def test_a_recurrent_layer_of_bytes_with_other_scales_is_refused(tmp_path: Path) -> None:
    model = _lstm(1, 128)
    (scale,) = (tensor for tensor in model.graph.initializer if tensor.name == "R_scale")
    scale.CopyFrom(numpy_helper.from_array(np.full(3, 0.1, np.float32), "R_scale"))
    unprepared(model, tmp_path, "scales")


LANE = "numerics"
