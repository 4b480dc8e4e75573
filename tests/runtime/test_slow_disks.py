"""A disk that is slower than when a plan was made, and a machine that was busy then: the run says why it takes longer."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamed_models import streamed
from streamed_plans import BYTES_PER_MS, write_streamed_plan

from edgeplan.runs import Phase, lateness
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native_session import open_session

LANE = "processes"  # see tests/conftest.py


@pytest.mark.parametrize(
    ("run_ms", "wait_ms", "rate", "late"),
    [
        (100.0, 90.0, 5e4, True),
        (100.0, 40.0, 5e4, False),
        (11.0, 9.0, 5e5, False),
        (100.0, 90.0, 1.2e4, False),
        (100.0, 90.0, 0.0, False),
    ],
)
def test_a_run_is_late_that_waits_longer_than_was_predicted_for_slower_reads(
    run_ms: float, wait_ms: float, rate: float, late: bool
) -> None:
    phase = Phase(1, 10.0, 0.0, 0.0, (run_ms,) * 3, 3_000_000, (wait_ms,) * 3)
    assert bool(lateness(phase, rate)) is late
    if late:
        assert "90 % of the time; they were read at 10 MB/s, 50 MB/s when" in lateness(phase, rate)


def test_a_plan_of_a_busy_machine_says_so(dnnl: Dnnl, tmp_path: Path) -> None:
    found = streamed(dnnl, "plain", tmp_path, 8192)
    for others in (0.05, 0.76):
        plan = write_streamed_plan(dnnl, found, tmp_path / f"plan-{others}", others)
        with open_session(plan.path) as session:
            assert (session.fact("others"), session.fact("bytes_per_ms")) == (others, BYTES_PER_MS)
