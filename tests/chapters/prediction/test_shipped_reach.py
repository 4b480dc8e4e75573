"""Shipped predictors warn of sizes far from those measured, and stand in where the cost of a call was not found."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from edgeplan.chapters.prediction.sampling.labels import call_is_fitted
from edgeplan.predictors.distilled import CARD, load_distilled

from depth import by_day
from edgeplan import predict
from edgeplan.chapters.prediction.stages.training import call_us
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.workspace import SHIPPED
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

DEVICES = sorted(path.parent.name for path in SHIPPED.glob(f"*/{CARD}"))


@pytest.mark.parametrize("device", DEVICES)
def test_every_shipped_regressor_knows_its_samples(device: str) -> None:
    card = load_distilled(SHIPPED / device).card
    assert card.growth > 0
    assert all(r.samples and 0 < r.near < r.far for r in card.regressors)


@pytest.mark.parametrize("device", by_day(DEVICES))
def test_sizes_far_from_all_that_was_measured_are_warned_about_and_guessed_wider(device: str, tmp_path: Path) -> None:
    """A language model's head, beside a model like those that were measured."""
    b = GraphBuilder("head", (1, 512, 1, 1))
    head = b.build(b.fc(b.flatten(b.input), 128_256))
    wider = {}
    for name, graph in (("usual", COLD_START_MODELS["squeezenet"]()), ("head", head)):
        found = predict(save_onnx(graph, tmp_path / f"{name}.onnx", 0), device)
        far = any("octaves from any that were measured" in why for _, why in found.unfamiliar)
        assert far == (name == "head")
        wider[name] = found.high_ms / found.latency_ms
    assert wider["head"] > wider["usual"]


@pytest.mark.parametrize(("fitted", "found"), [(8e-8, False), (0.0, False), (200.0, False), (4.4, True), (150.0, True)])
def test_a_fit_that_ended_at_a_bound_is_told_from_one_that_did_not(fitted: float, found: bool) -> None:
    assert call_is_fitted(fitted) is found


def test_the_shipped_cost_of_a_call_stands_where_the_fit_ended_at_a_bound(caplog: pytest.LogCaptureFixture) -> None:
    shipped = load_distilled(SHIPPED / "cpu-onnxruntime").card.call_us
    with caplog.at_level(logging.WARNING):
        assert call_us("onnxruntime", 3.3) == 3.3
        assert not caplog.messages
        assert call_us("onnxruntime", 8e-8) == shipped > 1
        assert call_us("another", 8e-8) == 8e-8
    assert ["of the shipped predictors" in message for message in caplog.messages] == [True, False]
