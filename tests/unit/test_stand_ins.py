"""Kernels of kinds that a device has no predictor for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from law_of_latency import conv, relu, trained_once

from edgeplan.errors import PredictionError
from edgeplan.graph.kernels import KernelConfig
from edgeplan.graph.kinds import ELEMENTWISE
from edgeplan.graph.operators.activations import ACTIVATIONS
from edgeplan.graph.operators.registry import NEAR
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels
from edgeplan.predictors.stand_ins import FACTOR, stand_ins


def _model(*configs: KernelConfig) -> ModelKernels:
    """Kernels side by side, each with an input of its own."""
    count = len(configs)
    names = tuple(f"k{i}" for i in range(count))
    shapes = tuple(replace(relu(c.in_channels, c.in_height), kind="reorder", type="reorder") for c in configs)
    places = tuple((i,) for i in range(count))
    return ModelKernels("side by side", names, configs, places, shapes, (4,) * count, (-1,) * count, ())


def _of(kind: str) -> KernelConfig:
    return replace(relu(24, 20), kind=kind, type=kind)


@pytest.mark.parametrize("kind", sorted(ELEMENTWISE - {"relu"}))
def test_an_element_wise_kernel_costs_what_a_relu_of_its_size_costs(kind: str) -> None:
    predictor = trained_once()[0]
    known, other = (predictor.predict(_model(conv(16, 64, 28), _of(k))) for k in ("relu", kind))
    assert kind not in {r.kind for r in predictor.card.regressors}
    assert other.latency_ms == known.latency_ms
    assert (known.stand_ins, other.stand_ins) == ((), (("k1", kind, "relu"),))
    assert (other.coverage, other.missing) == (1.0, ())
    assert [k.kind for k in other.kernels] == ["conv", kind]
    share = other.kernels[1].share
    assert other.low_ms == pytest.approx(known.low_ms * (1 - share * (1 - 1 / FACTOR)))
    assert other.high_ms == pytest.approx(known.high_ms * (1 + share * (FACTOR - 1)))
    assert other.kernels[1].high_us == pytest.approx(FACTOR * known.kernels[1].high_us)


def test_every_activation_has_a_stand_in_whichever_one_was_measured() -> None:
    for measured in ACTIVATIONS & {"relu", "relu6"}:
        for kind in ELEMENTWISE - {measured}:
            assert stand_ins(ConfigTable.of([_of(kind)]), [measured]).kinds == {kind: measured}
    assert all(kind not in others for kind, others in NEAR.items() if kind in ("add", "mul", "matmul", "mean"))


def test_kinds_that_are_near_nothing_are_still_refused() -> None:
    predictor = trained_once()[0]
    for kind in ("lstm", "softmax", "resize_cubic", "lrn"):
        with pytest.raises(PredictionError, match=f"no predictor for kernels of kind {kind}"):
            predictor.predict(_model(relu(8, 8), _of(kind)))
        found = predictor.predict(_model(relu(8, 8), _of(kind)), allow_partial=True)
        assert (found.missing, found.stand_ins) == (("k1",), ())


def test_of_another_element_type_nothing_stands_in() -> None:
    predictor = trained_once()[0]
    half = replace(_of("tanh"), dtype="float16")
    with pytest.raises(PredictionError, match="the model is of float16"):
        predictor.predict(_model(half))
    assert predictor.predict(_model(relu(8, 8), half), allow_partial=True).stand_ins == ()


def test_evaluations_count_what_was_measured_alone() -> None:
    predictor = trained_once()[0]
    model = _model(relu(8, 8), _of("tanh"))
    assert predictor.predict_many(KernelTables.of([model]), allow_partial=True).coverage.tolist() == [0.5]
    assert predictor.predict(model, allow_partial=True, near_kinds=False).missing == ("k1",)


def test_a_product_of_two_activations_is_a_layer_of_as_many_rows() -> None:
    product = KernelConfig(
        "matmul", "matmul", batch=6, in_height=5, in_width=7, out_height=5, out_width=3, inputs=2, other_elements=126
    )
    found = stand_ins(ConfigTable.of([relu(8, 8), product]), ["relu", "fc"])
    assert found.replaced.tolist() == [False, True]
    layer = found.table.row(1)
    assert (layer.kind, layer.batch, layer.in_channels, layer.out_channels) == ("fc", 30, 7, 3)
    assert np.prod([layer.in_height, layer.in_width, layer.out_height, layer.out_width]) == 1
    assert found.table.row(0) == relu(8, 8)
