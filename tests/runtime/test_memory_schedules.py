"""Stored schedules: a change of the budget takes one that fits, keeps what stays, and refuses nothing that can be run."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from streamed_models import BYTES_PER_MS, least, middle, more, streamed, write_streamed_plan

from edgeplan import plan_memory
from edgeplan.errors import InfeasibleError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.layout import Ints, buffers
from edgeplan.planning.memory.workload import CHUNK_BYTES, Placement, Reader, Workload, simulated
from edgeplan.runs import Phase, lateness
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import FINER_NAME
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.program_file import PROGRAM_BIN, Section, rows_of
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


def _stored(plan: Path) -> list[SimpleNamespace]:
    (rows,) = rows_of(plan / PROGRAM_BIN, Section.SCHEDULES)
    return [SimpleNamespace(**dict(zip(rows.dtype.names or (), row, strict=True))) for row in rows.tolist()[1:]]


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
def test_more_memory_is_never_slower_and_every_stored_schedule_gives_the_same_outputs(dnnl: Dnnl, plan: Path) -> None:
    assert dnnl.info.version
    times = [stored.predicted_ms for stored in _stored(plan) if stored.budget_bytes != 64 * _MIB]
    assert len(times) > 1
    assert all(more <= 1.001 * less for less, more in pairwise(times))
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


def test_reads_are_as_large_as_planned() -> None:
    header = (Path(__file__).parents[2] / "native/src/session/reader.h").read_text()
    factor, shift = map(int, re.findall(r"CHUNK_BYTES = (\d+) << (\d+);", header)[0])
    assert factor << shift == CHUNK_BYTES


_LOADS: dict[str, list[tuple[list[int], list[int], Reader, list[float]]]] = {
    "a load that is alone has all of the bandwidth, and waits for its read": [
        ([1000, 1000], [0, 1], Reader(100.0, 2, 3.0), [13.0, 26.0]),
    ],
    # pieces of 600 bytes: the second waits for its answer while the first is read
    "two reads in flight share the bandwidth and hide their waiting": [
        ([1200, 600], [0, 0], Reader(100.0, 2, 3.0, 600), [15.0, 21.0]),
        ([1200, 600], [0, 0], Reader(100.0, 1, 3.0, 600), [18.0, 27.0]),
    ],
    "neighbours that may be loaded are read together": [
        ([100, 100, 100], [0, 0, 0], Reader(100.0, 1, 3.0), [6.0, 6.0, 6.0]),
        ([100, 100, 100], [0, 1, 1], Reader(100.0, 1, 3.0), [4.0, 9.0, 9.0]),
    ],
    # of 1200 and 600 bytes the third read begins when the first is widened: 3 + 6 + 1.2; the bytes of each take 6 ms one after
    # the other. Slower than reading, what was read waits for its turn.
    "what was read is widened while the next is read": [
        ([1000, 1000], [0, 1], Reader(100.0, 2, 3.0, widened_per_ms=500.0), [15.0, 30.0]),
        ([1200, 600], [0, 0], Reader(100.0, 2, 3.0, 600, 500.0), [16.2, 22.2]),
        ([600, 600], [0, 0], Reader(100.0, 2, 0.0, 600, 50.0), [18.0, 30.0]),
    ],
}


@pytest.mark.parametrize("what", _LOADS)
def test_loads_of_one_inference_end(what: str) -> None:
    """Steps take no time; the first one has no weights, and loads wait for the step of a number."""
    for weights, after, reader, wanted in _LOADS[what]:
        none = np.zeros(0, dtype=np.int64)
        work = Workload(np.zeros(1 + len(weights)), np.array([0, *weights], dtype=np.int64), buffers([], [], [], []))
        begins: Ints = np.cumsum(work.weight_bytes) - work.weight_bytes
        waits = np.array([-1, *after], dtype=np.int64)
        placed = Placement(none, np.where(work.weight_bytes > 0, begins, -1), waits, waits, int(work.weight_bytes.sum()))
        assert simulated(work, reader, placed).load_end[0] == pytest.approx([0.0, *wanted])


def test_a_read_of_halves_brings_twice_its_bytes() -> None:
    assert Reader.measured(100.0, 2, 3.0, 0.0) == Reader(100.0, 2, 3.0)
    assert Reader.measured(100.0, 2, 3.0, 500.0) == Reader(100.0, 2, 3.0, 2 * CHUNK_BYTES, 500.0)
