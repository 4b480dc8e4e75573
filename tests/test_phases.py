"""Inferences of a plan of memory, budget by budget."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest
from streamed_models import streamed
from streamed_plans import least, middle, write_streamed_plan

from edgeplan.errors import InfeasibleError
from edgeplan.runs import run_budgets
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native_session import open_session

LANE = "processes"  # see tests/conftest.py


def test_budgets_are_run_one_after_the_other(dnnl: Dnnl, tmp_path: Path) -> None:
    """The time of an inference ends when its outputs are there: what is made of them takes none of it."""
    found = streamed(dnnl, "plain", tmp_path, 8192)
    plan = write_streamed_plan(dnnl, found, tmp_path / "plan", others=0.76)
    inputs = {name: value.data for name, value in found.inputs.items()}

    def take(_: str, view: memoryview) -> bytes:
        time.sleep(0.2)
        return bytes(view)

    budgets = (middle(found), 1, least(found))
    with open_session(plan.path) as session:
        wanted = session.run(found.inputs)
        phases, outputs, refused = run_budgets(session, inputs, 2, budgets, take)
        (own,), _, _ = run_budgets(session, inputs, 1, (), take)
        assert (session.fact("others"), session.fact("isolated")) == (0.76, 0)
        with pytest.raises(InfeasibleError):
            run_budgets(session, inputs, 1, (1,), take)
    assert isinstance(refused, InfeasibleError)
    assert [phase.budget for phase in phases] == [middle(found), least(found)]
    assert own.budget == least(found)
    for phase in (*phases, own):
        assert all(0 < ms < 200 for ms in phase.run_ms)
        assert all(0 <= waited <= ran for waited, ran in zip(phase.wait_ms, phase.run_ms, strict=True))
        assert phase.predicted_ms > 0
    assert phases[1].read_bytes > 0
    for tensor, value in wanted.items():
        assert np.array_equal(np.frombuffer(outputs[tensor], value.dtype).reshape(value.shape), value)
