"""Stored schedules: a change of the budget takes one that fits, keeps what stays, and refuses nothing that can be run."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from streamed_models import streamed
from streamed_plans import least, middle, more, write_streamed_plan

from edgeplan import plan_memory
from edgeplan.errors import InfeasibleError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import FINER_NAME
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.program_file import PROGRAM_BIN, StoredSchedule, read_head
from edgeplan.runtime.streaming.measured import MeasuredStream

LANE = "processes"  # see tests/conftest.py
_MIB = 1 << 20


@pytest.fixture(scope="module")
def plan(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan whose steps are whole."""
    assert dnnl.info.version
    folder = tmp_path_factory.mktemp("schedules")
    b = GraphBuilder("wide", (1, 1024))  # a step whose parts need megabytes less, whatever is measured
    x = b.relu(b.fc(b.relu(b.fc("input", 1024)), 1024))
    save_onnx(b.build(b.fc(x, 256)), folder / "wide.onnx")
    plan_memory(folder / "wide.onnx", folder / "plan", "64MiB")
    return folder / "plan"


def _stored(plan: Path) -> tuple[StoredSchedule, ...]:
    return read_head(plan / PROGRAM_BIN).schedules[1:]


def test_a_budget_takes_the_fastest_schedule_and_what_it_leaves_is_filled_with_weights(dnnl: Dnnl, tmp_path: Path) -> None:
    found = streamed(dnnl, "plain", tmp_path, 8192)
    folder = write_streamed_plan(dnnl, found, tmp_path / "plan").path
    small, large = _stored(folder)
    everything = int(found.workload.weight_bytes.sum())
    with MeasuredStream(folder, dnnl.info.path) as session:  # nothing is read ahead of an inference
        expected, reads = session.run(found.inputs), []
        for budget in (least(found), middle(found) - 1, middle(found), more(found), 4 * more(found), least(found)):
            predicted = session.set_budget(budget)
            assert predicted == (small if budget < middle(found) else large).predicted_ms
            session.run(found.inputs)
            before = session.fact("bytes_read")
            again = session.run(found.inputs)
            reads.append(session.fact("bytes_read") - before)
            assert all(again[name].tobytes() == value.tobytes() for name, value in expected.items())
        assert everything > reads[0] > reads[1]
        assert reads[2] > reads[3] > reads[4] == 0
        assert reads[5] == reads[0]
        with pytest.raises(InfeasibleError, match="is not enough: the least is"):
            session.set_budget(least(found) - 1)
        assert session.run(found.inputs)


@pytest.mark.long  # what is planned hangs on what is measured here
def test_stored_budgets_reach_from_the_least_to_all_and_more_memory_is_never_slower(plan: Path) -> None:
    times = [stored.predicted_ms for stored in _stored(plan) if stored.budget_bytes != 64 * _MIB]
    assert len(times) > 1
    assert all(more <= 1.001 * less for less, more in pairwise(times))


@pytest.mark.long  # what is planned hangs on what is measured here
def test_every_stored_schedule_gives_the_same_outputs(dnnl: Dnnl, plan: Path) -> None:
    assert dnnl.info.version
    budgets = [stored.budget_bytes for stored in _stored(plan)]
    with open_session(plan, budget=budgets[-1]) as session:
        inputs = {tensor.name: np.ones(tensor.shape, tensor.dtype) for tensor in session.inputs}
        expected = session.run(inputs)
        for budget in (*budgets, *reversed(budgets)):
            session.set_budget(budget)
            for _ in range(2):
                found = session.run(inputs)
                assert all(found[name].tobytes() == value.tobytes() for name, value in expected.items())
        session.run(inputs)
        assert session.fact("bytes_read") > 0


@pytest.mark.long  # what is planned hangs on what is measured here
def test_a_budget_below_the_parts_of_the_plan_is_run_in_finer_ones(dnnl: Dnnl, plan: Path) -> None:
    assert dnnl.info.version
    smallest, between = _stored(plan)[0].budget_bytes, _stored(plan / FINER_NAME)[0].budget_bytes
    assert between < smallest
    with open_session(plan) as session:
        inputs = {tensor.name: np.ones(tensor.shape, tensor.dtype) for tensor in session.inputs}
        expected, steps = session.run(inputs), session.fact("steps")
        for budget in (between, smallest - 1, smallest, 64 * _MIB):
            session.set_budget(budget)
            assert (session.fact("steps") == steps) == (budget >= smallest)
            for name, value in session.run(inputs).items():
                assert value == pytest.approx(expected[name], rel=1e-4, abs=1e-6)
