"""Kernels whose sizes no sample was near: how far they are, what their intervals grow by, when they are warned about."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.features import FEATURES, features
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.sizes import AXES, growth, nearest, nearest_of_others, packed, places, unpacked, usual
from edgeplan.predictors.stand_ins import FACTOR
from edgeplan.predictors.training import train_predictor
from law_of_latency import ABOUT, SETTINGS, conv, rows, trained_once, without_samples

from edgeplan.graph.kernels import KernelConfig

PLAIN = conv(16, 64, 28)


def _places(*configs: KernelConfig) -> np.ndarray:
    return places(ConfigTable.of(configs).column)


def _alone(config: KernelConfig) -> ModelKernels:
    into = KernelConfig("reorder", "reorder", in_channels=config.in_channels, in_height=config.in_height)
    out = KernelConfig("reorder", "reorder", in_channels=config.out_channels, in_height=config.out_height)
    return ModelKernels("alone", ("c",), (config,), ((0,),), (into, out), (4, 4), (-1, 0), (1,))


@pytest.mark.parametrize(
    ("changes", "octaves"),
    [
        ({}, 0.0),
        ({"out_channels": 128}, 1.0),
        ({"in_channels": 4, "out_channels": 256}, np.sqrt(8)),
        ({"in_height": 56, "in_width": 56, "out_height": 56, "out_width": 56}, np.sqrt(2)),
        ({"kernel_h": 12}, 2.0),
        ({"groups": 16}, np.sqrt(3) * 4),  # as many groups, and each so much narrower
        ({"model_bytes": 2**20}, 10.0),  # half the weight
        ({"activation": "relu6", "bias": False, "residual": True}, 0.0),
    ],
)
def test_distance_is_told_in_octaves(changes: dict[str, int], octaves: float) -> None:
    assert nearest(_places(replace(PLAIN, **changes)), _places(PLAIN)) == pytest.approx([octaves])


def test_the_largest_sizes_have_a_place() -> None:
    assert _places(replace(PLAIN, out_channels=2**40, model_bytes=2**62)).max() == 160
    assert places(lambda _: np.array([1e90])).max() == 255


def test_features_and_configurations_lie_at_the_same_places() -> None:
    configs = [KernelConfig.from_json(text) for text in rows(100)["config"]]
    matrix = features(configs)
    np.testing.assert_array_equal(places(lambda name: matrix[:, FEATURES.index(name)]), _places(*configs))


@pytest.mark.parametrize("known", [3, 3000])  # compared with all, or found in a tree
def test_nearest_is_the_nearest(known: int) -> None:
    rng = np.random.default_rng(0)
    asked, samples = (rng.integers(0, 100, (n, AXES)).astype(np.uint8) for n in (150, known))
    apart = np.linalg.norm(asked[:, None].astype(float) - samples[None].astype(float), axis=2) / 4
    np.testing.assert_allclose(nearest(asked, samples), apart.min(axis=1))
    assert np.isinf(nearest(asked, samples[:0])).all()


def test_siblings_of_a_subject_are_not_near_each_other() -> None:
    rng = np.random.default_rng(1)
    at = rng.integers(0, 5, (200, AXES)).astype(np.uint8)
    at[100:120] = at[:20]  # some places are held twice
    subject = rng.integers(0, 12, 200)
    apart = np.linalg.norm(at[:, None].astype(float) - at[None].astype(float), axis=2) / 4
    apart[subject[:, None] == subject[None]] = np.inf
    np.testing.assert_allclose(nearest_of_others(at, subject), apart.min(axis=1))
    assert np.isinf(nearest_of_others(at, np.zeros(200, dtype=np.int64))).all()


def test_what_is_usual_has_bounds() -> None:
    assert usual(np.array([np.inf])) == (1.0, 1.5)
    assert usual(np.zeros(100)) == (1.0, 1.5)
    assert usual(np.linspace(0, 10, 101)) == pytest.approx((8.0, 9.5))


def test_growth_makes_intervals_hold_the_nominal_share() -> None:
    rng = np.random.default_rng(2)
    beyond = rng.uniform(-1, 4, 5000)
    error = np.abs(rng.normal(0, 1 / 1.645, 5000)) * (1 + 0.7 * np.maximum(beyond, 0))
    found = growth(beyond, error, 0.9)
    held = error <= 1 + found * np.maximum(beyond, 0)
    assert held[beyond > 0.1].mean() == pytest.approx(0.9, abs=0.005)
    assert growth(np.minimum(beyond, 0.0), error, 0.9) == 0
    assert growth(beyond, np.minimum(error, 1.0), 0.9) == 0, "what holds already need not grow"


def test_samples_survive_the_card() -> None:
    at = _places(PLAIN, conv(3, 8, 224), PLAIN)
    np.testing.assert_array_equal(unpacked(packed(at)), np.unique(at, axis=0))
    with pytest.raises(ValueError, match="reshape"):
        unpacked(packed(at)[:-4])


def test_far_kernels_are_warned_about_and_widen_the_interval_of_their_model() -> None:
    predictor = trained_once()[0]
    predictor = DevicePredictor(predictor.card.model_copy(update={"growth": 0.5}), predictor.texts)
    near, far = (predictor.predict(_alone(config)) for config in (conv(64, 64, 28), conv(64, 60_000, 28)))
    assert near.unfamiliar == ()
    assert [(name, why.partition(" octaves")[0]) for name, why in far.unfamiliar] == [("c", "sizes more than 8")]

    def widths(found: DevicePredictor, config: KernelConfig) -> tuple[float, float]:
        of_model = found.predict(_alone(config))
        kernel = of_model.kernels[0]
        return np.log(of_model.high_ms / of_model.low_ms), np.log(kernel.high_us / kernel.low_us)

    plain = DevicePredictor(predictor.card.model_copy(update={"growth": 0.0}), predictor.texts)
    assert widths(predictor, conv(64, 64, 28)) == pytest.approx(widths(plain, conv(64, 64, 28)))
    regressor = next(r for r in predictor.card.regressors if r.implementation == "Conv.blocked")
    wide, narrow = (widths(found, conv(64, 60_000, 28)) for found in (predictor, plain))
    assert wide[0] > narrow[0]
    assert wide[1] == pytest.approx(narrow[1] * (1 + 0.5 * (regressor.far - regressor.near)))
    batch = predictor.predict_many(KernelTables.of([_alone(conv(64, 60_000, 28))]))
    assert np.log(batch.high_ms[0] / batch.low_ms[0]) == pytest.approx(wide[0])


def test_no_interval_grows_beyond_that_of_a_kind_that_was_never_measured() -> None:
    predictor = trained_once()[0]
    steep = DevicePredictor(predictor.card.model_copy(update={"growth": 1000.0}), predictor.texts)
    kernel = steep.predict(_alone(conv(64, 60_000, 28))).kernels[0]
    assert np.log(kernel.high_us / kernel.low_us) == pytest.approx(2 * np.log(FACTOR))


def test_kinds_that_no_calibrating_model_holds_have_the_interval_of_their_own_kernels() -> None:
    predictor = without_samples(trained_once()[0])
    regressor = next(r for r in predictor.card.regressors if r.implementation == "Conv.blocked")
    wide = regressor.model_copy(update={"low": -0.5, "high": 0.5})
    others = tuple(wide if r is regressor else r for r in predictor.card.regressors)
    interval = predictor.card.interval.model_copy(
        update={"common": 0.01, "single": 0.0, "quantile": 1.0, "quantile_of": "models"}
    )

    def half_width(factors: dict[str, float]) -> float:
        card = predictor.card.model_copy(update={"factors": factors, "interval": interval, "regressors": others})
        found = DevicePredictor(card, predictor.texts).predict(_alone(conv(64, 64, 28)))
        return float(np.log(found.high_ms / found.latency_ms))

    assert half_width({"conv": 1.0, "reorder": 1.0}) == pytest.approx(0.01)
    assert 0.1 < half_width({"reorder": 1.0}) < 0.51


def test_a_card_that_tells_no_samples_widens_and_warns_of_nothing() -> None:
    predictor = without_samples(trained_once()[0])
    assert predictor.predict(_alone(conv(64, 60_000, 28))).unfamiliar == ()


def test_training_tells_every_regressor_its_samples() -> None:
    card = train_predictor(rows(200), SETTINGS, **ABOUT)[0].card
    table = rows(200)
    for regressor in card.regressors:
        mine = table[(table["kind"] == regressor.kind) & (table["sampler"] != "frozen")]
        if regressor.implementation:
            mine = mine[mine["implementation"] == regressor.implementation]
        at = _places(*map(KernelConfig.from_json, mine["config"]))
        np.testing.assert_array_equal(unpacked(regressor.samples), np.unique(at, axis=0))
        assert 1.0 <= regressor.near <= regressor.far - 0.5
