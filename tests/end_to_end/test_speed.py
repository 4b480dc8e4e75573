"""How long a run with nothing to do and a prediction take (`make bench` shows the figures)."""

from __future__ import annotations

import json

import pytest
from workspace import DEVICE, Workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_speed_of_predictions_is_recorded(tiny: Workspace) -> None:
    metrics = json.loads((tiny.folder / "results" / DEVICE / "metrics.json").read_text())
    shown = {key: value for key, value in metrics.items() if key.startswith("speed.")}
    print(json.dumps(shown, indent=2))  # noqa: T201 - the purpose of `make bench`
    assert shown["speed.predict_process_s"] < 10
    assert shown["speed.predict_call_ms"] < 500
