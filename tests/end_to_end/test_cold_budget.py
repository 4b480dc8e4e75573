"""The stage that measures cold starts, given no time: it ends, with a plan and a figure a model, and says what it left out."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from edgeplan.chapters.cold_start.evaluation.evidence import FRAMES, OPTIMAL, OWN
from edgeplan.chapters.cold_start.evaluation.page import write
from edgeplan.chapters.cold_start.stages.cold_start import measure_cold_start
from edgeplan.chapters.registry import load_params

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
_STOCK = "onnxruntime"


def test_a_stage_without_time_ends_with_a_plan_and_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    params = load_params(ROOT / "params.yaml")
    changes = {
        "models": ("squeezenet",),
        "settings": (_STOCK, "onnxruntime-prepacked"),
        "threads": (1, 2),
        "repeats": 2,
        "further_repeats": 2,
        "profile_blocks": 2,
        "checked_choices": 2,
        "budget_seconds": 1.0,
    }
    params = params.model_copy(update={"cold_start": params.cold_start.model_copy(update=changes)})
    folders = {name: tmp_path / name for name in ("predictors", "rows", "work", "measured")}
    measure_cold_start(params, device=ROOT / "config/devices/cpu-onednn.yaml", **folders)
    read = {name: pd.read_parquet(folders["measured"] / f"{name}.parquet") for name in FRAMES}
    notes = json.loads((folders["measured"] / "notes.json").read_text())

    assert set(read["plans"]["plan"]) == {OPTIMAL}
    assert "squeezenet-nnv12-2" in notes["plans"]
    runs = read["runs"]
    good = runs[runs["reason"] == ""]
    assert {(s, t) for s, t in zip(good["setting"], good["threads"], strict=True)} == {(OWN, 2), (_STOCK, 2)}
    assert set(good["repeat"]) == {0}
    over = runs[runs["setting"] == "onnxruntime-prepacked"]["reason"]
    assert over.str.contains("the time for measuring cold starts was over").all()
    assert (read["checks"]["error"] < 1e-3).all()
    assert len(read["checks"]) == 1
    assert set(read["spans"]["kind"]) == {"planned"}
    for topic in ("checks.squeezenet", "load", "runs"):
        assert "cold_start.budget_seconds (1) was over" in notes[topic], topic

    write(measured=folders["measured"], metrics=tmp_path / "cold.json", chapter=tmp_path / "cold.page.json")
    assert json.loads((tmp_path / "cold.json").read_text())
