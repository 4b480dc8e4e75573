"""A pair that has become slow falls back on its first processor, if that is faster, and says so; one that has not does not."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edgeplan.runtime.partitioned.fallback import PATIENCE, TRIED, WATCHED, Fallback


class _Way:
    """Takes its time, and counts."""

    def __init__(self, seconds: float) -> None:
        self.seconds, self.runs = seconds, 0

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        self.runs += 1
        time.sleep(self.seconds)
        return dict(inputs)


def _run(fallback: Fallback, pair: _Way, count: int) -> None:
    for number in range(count):
        assert fallback.run(pair, {"x": number}) == {"x": number}


def test_a_slow_pair_falls_back_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    pair, alone = _Way(0.03), _Way(0.001)
    fallback = Fallback(lambda: alone, 1.0, Path("plan"))
    with caplog.at_level(logging.WARNING):
        _run(fallback, pair, WATCHED + TRIED + 3)
    assert (pair.runs, alone.runs, fallback.fell_back) == (WATCHED, TRIED + 3, True)
    assert "goes on alone" in caplog.text


def test_a_slow_pair_stays_where_one_processor_is_slower() -> None:
    """It is tried again only after a while."""
    pair, alone = _Way(0.002), _Way(0.04)
    fallback = Fallback(lambda: alone, 0.1, Path("plan"))
    _run(fallback, pair, WATCHED + TRIED + PATIENCE)
    assert (pair.runs, alone.runs, fallback.fell_back) == (WATCHED + PATIENCE, TRIED, False)
    _run(fallback, pair, 1)
    assert alone.runs == TRIED + 1


def test_a_pair_as_fast_as_it_was_checked_is_left_alone() -> None:
    def never() -> _Way:
        raise AssertionError("nothing is opened")

    pair = _Way(0.001)
    fallback = Fallback(never, 10_000.0, Path("plan"))
    _run(fallback, pair, 3 * WATCHED)
    assert pair.runs == 3 * WATCHED
