"""Kernels of kinds that a device has no predictor for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.features import FEATURES, features
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels
from edgeplan.predictors.predictor import BYTES
from edgeplan.predictors.stand_ins import FACTOR, stand_ins
from law_of_latency import conv, relu, trained_once

from edgeplan.errors import PredictionError
from edgeplan.graph.kernels import KernelConfig
from edgeplan.graph.kinds import ELEMENTWISE
from edgeplan.graph.operators.activations import ACTIVATIONS
from edgeplan.graph.operators.registry import BANDWIDTH_BOUND, NEAR


def _model(*configs: KernelConfig) -> ModelKernels:
    """Kernels side by side, each with an input of its own."""
    count = len(configs)
    names = tuple(f"k{i}" for i in range(count))
    shapes = tuple(replace(relu(c.in_channels, c.in_height), kind="reorder", type="reorder") for c in configs)
    places = tuple((i,) for i in range(count))
    return ModelKernels("side by side", names, configs, places, shapes, (4,) * count, (-1,) * count, ())


def _of(kind: str) -> KernelConfig:
    return replace(relu(24, 20), kind=kind, type=kind)


@pytest.mark.parametrize("kind", sorted(BANDWIDTH_BOUND - {"relu"}))
def test_a_bandwidth_bound_kernel_costs_what_a_relu_of_its_bytes_costs(kind: str) -> None:
    predictor = trained_once()[0]
    fit = predictor.card.bandwidth
    assert fit is not None
    assert set(fit.levels) == {"relu"}
    known, other = (predictor.predict(_model(conv(16, 64, 28), _of(k))) for k in ("relu", kind))
    assert kind not in {r.kind for r in predictor.card.regressors}
    assert other.kernels[1].latency_us == pytest.approx(known.kernels[1].latency_us, rel=0.1)
    assert (known.stand_ins, known.stand_in_share) == ((), 0.0)
    assert other.stand_ins == (("k1", kind, BYTES),)
    assert (other.coverage, other.missing) == (1.0, ())
    assert [k.kind for k in other.kernels] == ["conv", kind]
    share = other.kernels[1].share
    assert other.stand_in_share == share
    assert other.low_ms == pytest.approx(known.low_ms * (1 - share * (1 - 1 / FACTOR)), rel=1e-3)
    assert other.high_ms == pytest.approx(known.high_ms * (1 + share * (FACTOR - 1)), rel=1e-3)
    assert other.kernels[1].high_us == pytest.approx(FACTOR * other.kernels[1].latency_us)


def test_a_compute_bound_kernel_is_one_of_as_much_work() -> None:
    """A transposed convolution writes what the convolution that it turns round reads."""
    turned = replace(conv(16, 64, 28), kind="deconv", type="deconv", in_height=14, in_width=14, stride_h=2, stride_w=2)
    found = stand_ins(ConfigTable.of([turned]), ["conv"]).table
    like = found.row(0)
    assert (like.kind, like.in_channels, like.in_height, like.out_channels, like.out_height) == ("conv", 64, 28, 16, 14)
    macs, reads, writes = features(found)[0, [FEATURES.index(n) for n in ("macs", "input_bytes", "output_bytes")]]
    assert macs == 14 * 14 * 16 * 64 * 9
    assert (reads, writes) == (4 * 64 * 28 * 28, 4 * 16 * 14 * 14)
    predicted = trained_once()[0].predict(_model(turned))
    assert predicted.stand_ins == (("k0", "deconv", "conv"),)
    assert predicted.stand_in_share == pytest.approx(predicted.kernels[0].share)
    assert predicted.stand_in_share > 0


def test_every_activation_has_a_stand_in_whichever_one_was_measured() -> None:
    for measured in ACTIVATIONS & {"relu", "relu6"}:
        for kind in ELEMENTWISE - {measured}:
            assert stand_ins(ConfigTable.of([_of(kind)]), [measured]).kinds == {kind: measured}
    assert all(kind not in others for kind, others in NEAR.items() if kind in ("add", "mul", "matmul", "mean"))


def test_kinds_that_are_near_nothing_are_still_refused() -> None:
    predictor = trained_once()[0]
    for kind in ("lstm", "softmax", "lrn"):
        with pytest.raises(PredictionError, match=f"no predictor for kernels of kind {kind}"):
            predictor.predict(_model(relu(8, 8), _of(kind)))
        found = predictor.predict(_model(relu(8, 8), _of(kind)), allow_partial=True)
        assert (found.missing, found.stand_ins) == (("k1",), ())


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
    layer = found.table.row(1)
    assert (layer.kind, layer.batch, layer.in_channels, layer.out_channels) == ("fc", 30, 7, 3)
    assert np.prod([layer.in_height, layer.in_width, layer.out_height, layer.out_width]) == 1
    assert found.table.row(0) == relu(8, 8)
