"""Table 11 and figures of speed: told with their machine, and what to do where it is another one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from evaluation_evidence import full_evidence
from executed_nodes import drawn, model
from shipped_params import PARAMS_FILE
from trained_nodes import trained, write_device

from edgeplan.chapters.prediction.stages import evaluation
from edgeplan.chapters.prediction.stages.transfer import transfer
from edgeplan.chapters.registry import Params, load_params
from edgeplan.errors import FormatError

PARAMS = load_params(PARAMS_FILE)
SOURCE, TARGET = PARAMS.transfer.source, PARAMS.transfer.target


def read_table(path: Path) -> tuple[pd.DataFrame, str]:
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    return frame.drop(columns="measured_at"), str(frame["measured_at"][0])


def evaluated(folder: Path, fingerprint: str, models: pd.DataFrame) -> Path:
    folder.mkdir()
    models.to_parquet(folder / "models.parquet")
    about = {"cpu": "Example CPU", "cores": 2, "fingerprint": fingerprint, "measured_at": f"{folder.name} UTC"}
    (folder / "environment.json").write_text(json.dumps(about))
    return folder


@pytest.fixture
def models() -> pd.DataFrame:
    return full_evidence().models


def test_devices_of_one_machine_are_compared(tmp_path: Path, models: pd.DataFrame) -> None:
    faster = models.assign(predicted_ms=models["measured_ms"] * 0.5)
    source, target = evaluated(tmp_path / "a", "f1", faster), evaluated(tmp_path / "b", "f1", models)
    transfer(PARAMS, source=source, target=target, csv=tmp_path / "table_11.csv", chapter=tmp_path / "page.json")
    table, dates = read_table(tmp_path / "table_11.csv")
    row = table.set_index("family").loc["AlexNets"]
    assert row["transferred: RMSPE (%)"] == pytest.approx(50.0)
    assert (row["paper transferred: RMSE (ms)"], row["paper rebuilt: within 5 % (%)"]) == (8.02, 86.5)
    assert dates == f"{SOURCE} a UTC; {TARGET} b UTC"


def test_devices_of_two_machines_get_a_note_instead_of_figures(tmp_path: Path, models: pd.DataFrame) -> None:
    source, target = evaluated(tmp_path / "a", "f1", models), evaluated(tmp_path / "b", "f2", models)
    transfer(PARAMS, source=source, target=target, csv=tmp_path / "table_11.csv", chapter=tmp_path / "page.json")
    table, _ = read_table(tmp_path / "table_11.csv")
    (note,) = table["note"]
    assert list(table.columns) == ["note"]
    for part in ("not measured on one machine", f"{SOURCE} on Example CPU, 2 cores, fingerprint f1", "fingerprint f2"):
        assert part in note
    assert note.endswith(f"make reproduce DEVICE={SOURCE} and make reproduce DEVICE={TARGET}")
    (source / "environment.json").write_text("{}")
    transfer(PARAMS, source=source, target=target, csv=tmp_path / "table_11.csv", chapter=tmp_path / "page.json")
    assert "fingerprint not recorded" in read_table(tmp_path / "table_11.csv")[0]["note"][0]


def test_devices_without_a_common_model_get_a_note(tmp_path: Path, models: pd.DataFrame) -> None:
    source, target = (
        evaluated(tmp_path / "a", "f1", models.iloc[:3]),
        evaluated(tmp_path / "b", "f1", models.iloc[3:]),
    )
    transfer(PARAMS, source=source, target=target, csv=tmp_path / "table_11.csv", chapter=tmp_path / "page.json")
    assert "no common model" in read_table(tmp_path / "table_11.csv")[0]["note"][0]


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
