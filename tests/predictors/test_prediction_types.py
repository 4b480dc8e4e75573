"""Predictors answer for the element types that labels are of, and for no other."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from edgeplan.predictors.bandwidth import bytes_moved
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.features import LABELLED_TYPES
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels
from edgeplan.predictors.predictor import BYTES
from law_of_latency import relu, reorder, rows, trained_once
from onnx import TensorProto, helper, numpy_helper

from edgeplan import predict
from edgeplan.errors import PredictionError
from edgeplan.graph.kernels import KernelConfig
from edgeplan.zoo import prior_models

_HALVES, _SHAPE = replace(relu(8, 8), dtype="float16"), replace(reorder(8, 8), dtype="float16")


def test_labels_are_of_the_types_that_are_told() -> None:
    zoo = {tensor.dtype for build in prior_models().values() for tensor in build().tensors.values()}
    assert zoo == {KernelConfig.from_json(text).dtype for text in rows()["config"]} == LABELLED_TYPES


def test_another_element_type_is_an_error_that_names_the_node() -> None:
    predictor = trained_once()[0]
    network = ModelKernels(
        "mixed", ("r0", "r1"), (relu(8, 8), _HALVES), ((0,), (1,)), (_SHAPE,) * 4, (4,) * 4, (-1, -1, 0, 1), (2, 3)
    )
    with pytest.raises(PredictionError, match=r"(?s)element type float16, only of float32.*node r1.*in float32"):
        predictor.predict(network)
    with pytest.raises(PredictionError, match=r"(?s)float16.*mixed"):
        predictor.predict_many(KernelTables.of([network]))
    partial = predictor.predict(network, allow_partial=True)
    assert partial.missing == ("r1",)
    assert partial.coverage == 0.5
    assert predictor.predict_many(KernelTables.of([network]), allow_partial=True).coverage.tolist() == [0.5]


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool", "uint8", "int8"])
def test_integers_and_truth_values_are_predicted_by_the_bytes_that_they_move(dtype: str) -> None:
    predictor = trained_once()[0]
    fit = predictor.card.bandwidth
    assert fit is not None
    small, large = (replace(relu(8, size), dtype=dtype) for size in (8, 64))
    network = ModelKernels(
        "mixed",
        ("r0", "r1"),
        (small, large),
        ((0,), (1,)),
        (replace(_SHAPE, dtype=dtype),) * 4,
        (4,) * 4,
        (-1, -1, 0, 1),
        (2, 3),
    )
    found = predictor.predict(network)
    assert [row.latency_us for row in found.kernels[:2]] == pytest.approx(
        [float(us) for us in fit.latency_us(KernelTables.of([network]).configs, integers=True)]
    )
    assert {name for name, _, by in found.stand_ins if by == BYTES} == {"r0", "r1"}
    assert found.low_ms < found.latency_ms < found.high_ms


def _image(path: Path, dtype: str) -> Path:
    """An image of some type that is turned, cast, scaled and convolved."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], "turned", perm=[0, 3, 1, 2]),
        helper.make_node("Cast", ["t"], ["f"], "cast", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "k"], ["s"], "scaled"),
        helper.make_node("Conv", ["s", "w"], ["y"], "conv"),
    ]
    weights = {"k": np.array(1 / 255, np.float32), "w": np.ones((4, 3, 3, 3), np.float32)}
    body = helper.make_graph(
        nodes,
        "image",
        [helper.make_tensor_value_info("x", getattr(TensorProto, dtype.upper()), (1, 64, 64, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    path.write_bytes(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    return path


@pytest.mark.parametrize("device", ["cpu-onnxruntime", "cpu-onednn", "cpu-openvino"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "int32"])
def test_images_of_bytes_are_predicted(tmp_path: Path, device: str, dtype: str) -> None:
    found = predict(_image(tmp_path / "m.onnx", dtype), device)
    assert found.coverage == 1
    assert {"turned", "cast"} <= {row.name for row in found.kernels if row.latency_ms > 0}


@pytest.mark.parametrize(("dtype", "each"), [("uint8", 1), ("int8", 1), ("bool", 1), ("int32", 4), ("float64", 8)])
def test_a_cast_moves_what_it_reads_and_what_it_writes(dtype: str, each: int) -> None:
    elements, wider = 3 * 8 * 8, max(0, 4 - each) * 3 * 8 * 8 // each
    config = replace(relu(3, 8), kind="cast", type="cast", dtype=dtype, other_elements=wider)
    assert bytes_moved(ConfigTable.of([config]))[0] == elements * (each + max(4, each))


def test_windows_over_bytes_have_no_predictor() -> None:
    fit = trained_once()[0].card.bandwidth
    assert fit is not None
    window = replace(relu(8, 8), kind="maxpool", type="maxpool", dtype="uint8")
    assert np.isnan(fit.latency_us(ConfigTable.of([window]), integers=True)).all()
