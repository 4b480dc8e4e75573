"""Figures of speed where nothing may be measured: those of the last metrics.json."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from edgeplan.errors import FormatError
from edgeplan.measurement import bench
from edgeplan.pipeline import speed


def test_stored_figures_are_named_as_measured_ones(tmp_path: Path) -> None:
    path = tmp_path / "metrics.json"
    path.write_text(json.dumps({"prediction.models": 260, "speed.batch_26000_s": 76.63, "speed.predict_call_ms": 8}))
    assert speed.stored_speed(path) == {"batch_26000_s": 76.63, "predict_call_ms": 8.0}


@pytest.mark.parametrize("text", [None, "", "{"])
def test_figures_that_cannot_be_read_are_asked_for(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "metrics.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(FormatError, match="may not be measured now") as caught:
        speed.stored_speed(path)
    assert "git checkout" in caught.value.next_step


def test_one_variable_forbids_all_measuring() -> None:
    assert speed.STORED_ROWS_ONLY == bench.STORED_ROWS_ONLY
