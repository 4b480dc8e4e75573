"""Stored predictors and tables: what is read again is the same, what is damaged or foreign is refused or rebuilt."""

import json
from pathlib import Path

import pandas as pd
import pytest
from edgeplan.predictors.predictor import DevicePredictor
from law_of_latency import model, trained_once

from edgeplan.errors import FormatError


@pytest.fixture(scope="module")
def trained() -> tuple[DevicePredictor, pd.DataFrame]:
    return trained_once()


@pytest.fixture(scope="module")
def folder(trained: tuple[DevicePredictor, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("predictors") / "stored"
    trained[0].save(path)
    return path


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def test_loading_gives_the_same_predictions(trained: tuple[DevicePredictor, pd.DataFrame], folder: Path) -> None:
    loaded = DevicePredictor.load(folder)
    assert loaded.predict(model()) == trained[0].predict(model())
    assert loaded.card == trained[0].card


def test_a_stale_pack_is_noticed_and_rebuilt(copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    card = json.loads((copy / "card.json").read_text())
    name = next(r["file"] for r in card["regressors"] if r["kind"] == "relu")
    text = (copy / name).read_text()
    lines = [
        "leaf_value=" + " ".join("0" for _ in line.split("=")[1].split()) if line.startswith("leaf_value=") else line
        for line in text.split("\n")
    ]
    before = DevicePredictor.load(copy).predict(model()).kernels[2].latency_us
    assert not caplog.records
    (copy / name).write_text("\n".join(lines))
    after = DevicePredictor.load(copy).predict(model()).kernels[2].latency_us
    assert "does not belong" in caplog.text
    assert after != before


@pytest.mark.parametrize("content", [None, b"", b"PK\x03\x04 truncated"])
def test_a_damaged_pack_is_rebuilt(copy: Path, content: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    expected = DevicePredictor.load(copy).predict(model())
    pack = copy / "packed.npz"
    if content is None:
        pack.unlink()
    else:
        pack.write_bytes(content)
    assert DevicePredictor.load(copy).predict(model()) == expected
    assert "packed.npz" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("format_version", 2, "format_version"),
        ("device", None, "device"),
        ("features", ["macs"], "other features"),
        ("call_us", -1, "call_us"),
        ("surprise", 1, "surprise"),
    ],
)
def test_a_card_that_does_not_fit_is_refused(copy: Path, key: str, value: object, said: str) -> None:
    card = json.loads((copy / "card.json").read_text())
    card[key] = value
    (copy / "card.json").write_text(json.dumps(card))
    with pytest.raises(FormatError, match=said):
        DevicePredictor.load(copy)


def test_a_file_name_cannot_lead_out_of_the_folder(copy: Path) -> None:
    card = json.loads((copy / "card.json").read_text())
    card["regressors"][0]["file"] = "../secret.txt"
    (copy / "card.json").write_text(json.dumps(card))
    with pytest.raises(FormatError, match="file"):
        DevicePredictor.load(copy)


def test_missing_and_truncated_files_are_refused(copy: Path) -> None:
    card = json.loads((copy / "card.json").read_text())
    text = copy / card["regressors"][0]["file"]
    text.write_text(text.read_text()[:500])
    with pytest.raises(FormatError, match=text.name):
        DevicePredictor.load(copy)
    text.unlink()
    with pytest.raises(FormatError, match=text.name):
        DevicePredictor.load(copy)
    (copy / "card.json").write_text("{")
    with pytest.raises(FormatError, match="JSON"):
        DevicePredictor.load(copy)
