"""A disk that is slower than when a plan was made: outputs are right all the same, and the run says why it takes longer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from streamed_models import streamed
from streamed_plans import BYTES_PER_MS, write_streamed_plan

from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.streaming import memory_session
from edgeplan.runtime.streaming.kernel_loader import DEPTH
from edgeplan.runtime.streaming.kernel_reads import KernelReads
from edgeplan.runtime.streaming.memory_session import MemorySession
from edgeplan.runtime.streaming.phases import Phase, lateness, run_budgets, sureness
from edgeplan.runtime.streaming.reader import WeightsFile
from edgeplan.runtime.streaming.session import StreamSession

LANE = "processes"  # see tests/conftest.py
_SLOWER = 10


class _SlowFile(WeightsFile):
    """A file whose reads take ten times as long as the plan says."""

    def read(self, offset: int, pieces: Sequence[memoryview]) -> None:
        super().read(offset, pieces)
        time.sleep(_SLOWER * sum(piece.nbytes for piece in pieces) / BYTES_PER_MS / 1e3)


class _SlowReads(KernelReads):
    """Reads of the kernel that take as long, one after the other."""

    def __init__(self) -> None:
        super().__init__(DEPTH)
        self._free_at = 0.0
        self._sizes: dict[int, int] = {}
        self._held: list[tuple[float, int, int]] = []

    def submit(self, number: int, descriptor: int, offset: int, pieces: Sequence[tuple[int, int]]) -> None:
        super().submit(number, descriptor, offset, pieces)
        self._free_at = max(self._free_at, time.monotonic()) + _SLOWER * sum(size for _, size in pieces) / BYTES_PER_MS / 1e3
        self._held.append((self._free_at, number, 0))

    def ended(self, *, wait: bool) -> list[tuple[int, int]]:
        if not self._held:
            return super().ended(wait=wait)
        if wait:
            time.sleep(max(0.0, self._held[0][0] - time.monotonic()))
        found: list[tuple[int, int]] = []
        while self._held and self._held[0][0] <= time.monotonic():
            _, number, _ = self._held.pop(0)
            while number not in self._sizes:
                self._sizes.update(super().ended(wait=True))
            found.append((number, self._sizes.pop(number)))
        return found


@pytest.mark.parametrize("threaded", [True, False])
def test_outputs_are_right_and_the_run_says_that_the_disk_is_slow(
    dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threaded: bool
) -> None:
    found = streamed(dnnl, "plain", tmp_path, 8192)
    inputs = {name: value.tobytes() for name, value in found.inputs.items()}
    plan = write_streamed_plan(dnnl, found, tmp_path / "plan")
    with found.session(dnnl, found.resident()) as session:
        expected = session.run(inputs)
    if threaded:
        monkeypatch.setattr(memory_session, "WeightsFile", _SlowFile)
    reads = None if threaded or KernelReads.opened(1) is None else _SlowReads()
    opened = partial(StreamSession, spare=partial(bool, threaded), reads=reads)
    monkeypatch.setattr(memory_session, "StreamSession", opened)
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
