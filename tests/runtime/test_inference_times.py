"""The time of an inference: until its outputs are there, told in digits that tell something."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from streamed_models import streamed
from streamed_plans import write_streamed_plan

from edgeplan.cli.run_memory import writing
from edgeplan.cli.times import milliseconds
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.streaming.memory_session import MemorySession
from edgeplan.runtime.streaming.phases import run_budgets
from edgeplan.runtime.streaming.program import Border
from edgeplan.runtime.streaming.session import READY_INFERENCES

LANE = "processes"  # see tests/conftest.py


def test_the_time_of_an_inference_ends_when_its_outputs_are_there(dnnl: Dnnl, tmp_path: Path) -> None:
    """What is made of them takes none of it."""
    found = streamed(dnnl, "plain", tmp_path, 8192)
    inputs = {name: value.tobytes() for name, value in found.inputs.items()}
    with MemorySession(write_streamed_plan(dnnl, found, tmp_path / "plan"), dnnl) as session:
        (phase,), _, _ = run_budgets(session, inputs, 2, (), lambda *_: time.sleep(1))
    assert all(0 < ms < 1000 for ms in phase.run_ms)


@pytest.mark.parametrize(
    ("ms", "told"), [(1234.567, "1234.57 ms"), (0.1, "0.10 ms"), (0.0987, "0.099 ms"), (0.0041, "0.0041 ms"), (0.0, "0.00 ms")]
)
def test_times_have_two_digits_however_short_they_are(ms: float, told: str) -> None:
    assert milliseconds(ms) == told


def test_files_hold_the_outputs_of_the_last_inference_of_each_budget(tmp_path: Path) -> None:
    """Others write none once the code of writing has run: that would be no part of an inference, and takes its time."""
    border, repeat = Border("y", (1,), ("arena", 0)), READY_INFERENCES + 3
    last, write, file = 0, *(writing([border], tmp_path, repeat), tmp_path / "0.out")
    for number in range(1, 2 * repeat + 1):
        write("y", memoryview(bytes([number])))
        last = number if number <= READY_INFERENCES or number % repeat == 0 else last
        assert file.read_bytes() == bytes([last])
