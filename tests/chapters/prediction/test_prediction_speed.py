"""Figures of speed, with when, where and of which predictors they were measured; read where nothing may be measured."""

from __future__ import annotations

from pathlib import Path

import pytest
from bare_card import bare_card
from edgeplan.predictors.card import Regressor
from edgeplan.predictors.features import WORK_TERMS
from edgeplan.predictors.predictor import DevicePredictor
from shipped_params import PARAMS_FILE

from edgeplan.chapters.params import Params, load_params
from edgeplan.chapters.prediction import speed
from edgeplan.errors import FormatError
from edgeplan.graph.fusion_rules import FusionRules


def _predictor(text: str) -> DevicePredictor:
    card = bare_card(regressors=(Regressor(kind="relu", file="relu.txt", work=(0.0,) * len(WORK_TERMS), rows=1),))
    return DevicePredictor(card, {"relu.txt": text})


@pytest.fixture(name="params")
def _params() -> Params:
    return load_params(PARAMS_FILE)


def test_what_was_measured_is_read_where_nothing_may_be(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(speed.STORED_ROWS_ONLY, raising=False)
    monkeypatch.setattr(speed, "measure_speed", lambda *_: {"predict_call_ms": 8.123456789})
    rules, mine, other = FusionRules.model_construct(), _predictor("a"), _predictor("b")
    measured = speed.speed_of(params, "cpu-test", rules, mine, tmp_path)
    assert measured.figures == {"predict_call_ms": 8.12346}
    assert measured.told(mine).endswith("with these predictors.")
    assert measured.fingerprint in measured.told(mine)
    assert measured.told(other).endswith("with earlier predictors of this device.")
    monkeypatch.setenv(speed.STORED_ROWS_ONLY, "1")
    monkeypatch.setattr(speed, "measure_speed", lambda *_: pytest.fail("measured"))
    assert speed.speed_of(params, "cpu-test", rules, other, tmp_path) == measured


def test_nothing_is_told_of_no_figures() -> None:
    empty = speed.Speed(figures={}, predictors="x", measured_at="now", cpu="c", cores=2, fingerprint="f")
    assert empty.told(_predictor("a")) == ""


@pytest.mark.parametrize("text", [None, "", "{", '{"format_version": 2}'])
def test_figures_that_cannot_be_read_are_asked_for(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "speed.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FormatError, match="may not be measured now") as caught:
        speed.stored_speed(path)
    assert "git checkout" in caught.value.next_step
