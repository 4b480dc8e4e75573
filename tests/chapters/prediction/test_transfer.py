"""Table 11: figures where both devices were measured on one machine, a note that says what to do elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from evaluation_evidence import full_evidence
from shipped_params import PARAMS_FILE

from edgeplan.chapters.params import load_params
from edgeplan.chapters.prediction.stages.transfer import transfer

PARAMS = load_params(PARAMS_FILE)
SOURCE, TARGET = PARAMS.transfer.source, PARAMS.transfer.target


def read_table(path: Path) -> tuple[pd.DataFrame, str]:
    frame = pd.read_csv(path, keep_default_na=False, na_values=[""])
    return frame.drop(columns="measured_at"), str(frame["measured_at"][0])


def evaluation(folder: Path, fingerprint: str, models: pd.DataFrame) -> Path:
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
    source, target = evaluation(tmp_path / "a", "f1", faster), evaluation(tmp_path / "b", "f1", models)
    transfer(PARAMS, source=source, target=target, csv=tmp_path / "table_11.csv", chapter=tmp_path / "page.json")
    table, dates = read_table(tmp_path / "table_11.csv")
    row = table.set_index("family").loc["AlexNets"]
    assert row["transferred: RMSPE (%)"] == pytest.approx(50.0)
    assert (row["paper transferred: RMSE (ms)"], row["paper rebuilt: within 5 % (%)"]) == (8.02, 86.5)
    assert dates == f"{SOURCE} a UTC; {TARGET} b UTC"


def test_devices_of_two_machines_get_a_note_instead_of_figures(tmp_path: Path, models: pd.DataFrame) -> None:
    source, target = evaluation(tmp_path / "a", "f1", models), evaluation(tmp_path / "b", "f2", models)
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
    source, target = evaluation(tmp_path / "a", "f1", models.iloc[:3]), evaluation(tmp_path / "b", "f1", models.iloc[3:])
    transfer(PARAMS, source=source, target=target, csv=tmp_path / "table_11.csv", chapter=tmp_path / "page.json")
    assert "no common model" in read_table(tmp_path / "table_11.csv")[0]["note"][0]
