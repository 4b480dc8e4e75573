"""Predictors answer for the element types that labels are of, and for no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from law_of_latency import relu, reorder, rows, trained_once

from edgeplan.errors import PredictionError
from edgeplan.graph.kernels import KernelConfig
from edgeplan.predictors.features import LABELLED_TYPES
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels
from edgeplan.predictors.predictor import BYTES
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


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
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
