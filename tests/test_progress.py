"""What is told of a stage's progress where there is no terminal."""

from __future__ import annotations

import logging
import math

import pytest

from edgeplan import progress
from edgeplan.progress import in_line


@pytest.fixture(autouse=True)
def _always(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(progress, "_LOG_EVERY_SECONDS", 0.0)
    monkeypatch.setenv("TERM", "dumb")
    caplog.set_level(logging.INFO, progress.__name__)


def test_what_is_left_of_a_budget_does_not_depend_on_how_fast_it_went(caplog: pytest.LogCaptureFixture) -> None:
    with progress.spending("dev: sampling", 300.0) as spent:
        spent.add(120.0)  # from the store, in no time
        spent.plan(60.0)
        spent.add(250.0)
    assert [record.getMessage() for record in caplog.records] == [
        "dev: sampling: 0 of 300 s measured, about 300 s left",
        "dev: sampling: 120 of 300 s measured, about 180 s left",
        "dev: sampling: 120 of 360 s measured, about 240 s left",
        "dev: sampling: 370 s measured, longer than the 360 s estimated",
    ]


def test_items_are_counted_with_an_estimate(caplog: pytest.LogCaptureFixture) -> None:
    with progress.progress("dev: models", 4) as advance:
        advance(3)
        advance(1)
    told = [record.getMessage() for record in caplog.records]
    assert [text.split(",")[0] for text in told] == ["dev: models: 3 of 4", "dev: models: 4 of 4"]
    assert told[-1].endswith("about 0 s left")


def test_rows_stand_in_a_log_as_words() -> None:
    rows = ({"way": "ours", "median_ms": 3.14159, "reason": ""}, {"way": "alone", "median_ms": math.nan, "reason": "refused"})
    assert in_line(*rows) == "way ours, median_ms 3.142; way alone, reason refused"
