"""A disk that is slower than when a plan was made: outputs are right all the same, and the run says why it takes longer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from streamed_models import streamed
from streamed_plans import BYTES_PER_MS, write_streamed_plan

from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.streaming import memory_session
from edgeplan.runtime.streaming.memory_session import MemorySession
from edgeplan.runtime.streaming.phases import Phase, lateness, run_budgets, sureness
from edgeplan.runtime.streaming.reader import WeightsFile

LANE = "processes"  # see tests/conftest.py
_SLOWER = 10


class _SlowFile(WeightsFile):
    """A file whose reads take ten times as long as the plan says."""

    def read(self, offset: int, pieces: Sequence[memoryview]) -> None:
        super().read(offset, pieces)
        time.sleep(_SLOWER * sum(piece.nbytes for piece in pieces) / BYTES_PER_MS / 1e3)


def test_outputs_are_right_and_the_run_says_that_the_disk_is_slow(
    dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = streamed(dnnl, "plain", tmp_path, 8192)
    inputs = {name: value.tobytes() for name, value in found.inputs.items()}
    plan = write_streamed_plan(dnnl, found, tmp_path / "plan")
    with found.session(dnnl, found.resident()) as session:
        expected = session.run(inputs)
    monkeypatch.setattr(memory_session, "WeightsFile", _SlowFile)
    with MemorySession(plan, dnnl) as slow:
        phases, outputs, refused = run_budgets(slow, inputs, 3, (), lambda _name, view: bytes(view))
        assert refused is None
        assert outputs == expected
        (phase,) = phases
        assert len(phase.wait_ms) == len(phase.run_ms) == 3
        assert 0 < sum(phase.wait_ms) < sum(phase.run_ms)
        told = lateness(replace(phase, predicted_ms=1e-3), slow.bytes_per_ms)  # steps take longer here than was made up
        assert "weights came late" in told
        assert "50 MB/s when the plan was made" in told


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


def test_a_plan_of_a_busy_machine_says_so_and_how_sure_it_is(dnnl: Dnnl, tmp_path: Path) -> None:
    found = streamed(dnnl, "plain", tmp_path, 8192)
    for others, told in ((0.05, ""), (0.76, "76 % of the processors' time")):
        plan = write_streamed_plan(dnnl, found, tmp_path / f"plan-{others}", others)
        with MemorySession(plan, dnnl) as session:
            assert session.others == others
            assert told in sureness(session.others)
            assert bool(sureness(session.others)) is bool(told)
