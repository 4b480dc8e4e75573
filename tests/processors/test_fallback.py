"""A pair that has become slow falls back on one processor, if that is faster, and says so; one that has not does not."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import pytest

from edgeplan.errors import DeviceError, EdgeplanError, ModelError
from edgeplan.runtime.partitioned.fallback import PATIENCE, TRIED, WATCHED, Fallback


class _Way:
    """Says its time, and counts; the runs of some numbers fail, and inputs without `x` are wrong."""

    def __init__(self, seconds: float, failing: Container[int] = ()) -> None:
        self.ms, self.failing, self.runs = seconds * 1e3, failing, 0

    def __call__(self, inputs: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        self.runs += 1
        if self.runs in self.failing:
            raise DeviceError("the processor fails")
        if "x" not in inputs:
            raise ModelError("an input is missing")
        return dict(inputs), self.ms


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


@pytest.mark.parametrize("failing", [1, 2, TRIED, TRIED + 2], ids="run {}".format)
def test_one_processor_that_fails_costs_no_inference(failing: int, caplog: pytest.LogCaptureFixture) -> None:
    """While it is tried, or once it goes on alone: the pair answers, then and from then on."""
    pair, alone = _Way(0.03), _Way(0.001, failing={failing})
    fallback = Fallback(lambda: alone, 1.0, Path("plan"))
    with caplog.at_level(logging.WARNING):
        _run(fallback, pair, WATCHED + PATIENCE + 2 * TRIED)
    assert (alone.runs, pair.runs, fallback.fell_back) == (failing, WATCHED + PATIENCE + 2 * TRIED - failing + 1, False)
    assert "the processor fails" in caplog.text


def test_one_processor_that_cannot_be_opened_costs_no_inference(caplog: pytest.LogCaptureFixture) -> None:
    opened = list[int]()

    def damaged() -> _Way:
        opened.append(1)
        raise EdgeplanError("the plan is damaged")

    pair = _Way(0.03)
    fallback = Fallback(damaged, 1.0, Path("plan"))
    with caplog.at_level(logging.WARNING):
        _run(fallback, pair, WATCHED + 2 * PATIENCE)
    assert (pair.runs, len(opened)) == (WATCHED + 2 * PATIENCE, 1)
    assert caplog.text.count("the plan is damaged") == 1


def test_wrong_inputs_are_no_failure_of_one_processor() -> None:
    pair, alone = _Way(0.03), _Way(0.001)
    fallback = Fallback(lambda: alone, 1.0, Path("plan"))
    _run(fallback, pair, WATCHED)
    with pytest.raises(ModelError, match="an input is missing"):
        fallback.run(pair, {})
    _run(fallback, pair, TRIED)
    assert fallback.fell_back
