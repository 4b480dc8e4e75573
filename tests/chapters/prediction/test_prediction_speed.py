"""Figures of speed, with when, where and of which predictors they were measured; read where nothing may be measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from executed_nodes import drawn, model
from shipped_params import PARAMS_FILE
from trained_nodes import trained, write_device

from edgeplan.chapters.params import Params, load_params
from edgeplan.chapters.prediction.stages import evaluation
from edgeplan.errors import FormatError


@pytest.fixture(name="params")
def _params() -> Params:
    return load_params(PARAMS_FILE)


def test_what_was_measured_is_read_where_nothing_may_be(
    params: Params, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(evaluation.STORED_ROWS_ONLY, raising=False)
    monkeypatch.setattr(evaluation, "measure_speed", lambda *_: {"predict_call_ms": 8.123456789})
    results = write_device(tmp_path)
    measured = evaluation.speed_of(params, "dev", trained(), pd.DataFrame(), results)
    assert measured.figures == {"predict_call_ms": 8.12346}
    assert measured.told(results / "predictors").endswith("with these predictors.")
    assert measured.fingerprint in measured.told(results / "predictors")
    write_device(tmp_path, replace(trained(), measured_at="later"))
    assert measured.told(results / "predictors").endswith("with earlier predictors of this device.")
    monkeypatch.setenv(evaluation.STORED_ROWS_ONLY, "1")
    monkeypatch.setattr(evaluation, "measure_speed", lambda *_: pytest.fail("measured"))
    assert evaluation.speed_of(params, "dev", trained(), pd.DataFrame(), results) == measured


def test_models_for_the_speed_are_others_of_as_many_nodes() -> None:
    told = [model("a", drawn(np.random.default_rng(1), 9)), model("b", drawn(np.random.default_rng(2), 5))]
    made = list(evaluation._varied(told, 7, 3))
    assert [len(one.nodes) for one in made] == [9, 5, 9, 5, 9, 5, 9]
    assert len({node.config.key for one in made for node in one.nodes}) > 30
    assert made == list(evaluation._varied(told, 7, 3))
    assert (trained().predict_many(made) > 0).all()


def test_nothing_is_told_of_no_figures() -> None:
    empty = evaluation.Speed(figures={}, predictors="x", measured_at="now", cpu="c", cores=2, fingerprint="f")
    assert empty.told(Path()) == ""


@pytest.mark.parametrize("text", [None, "", "{", '{"format_version": 2}'])
def test_figures_that_cannot_be_read_are_asked_for(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "speed.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FormatError, match="may not be measured now") as caught:
        evaluation.stored_speed(path)
    assert "git checkout" in caught.value.next_step
