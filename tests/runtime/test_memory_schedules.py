"""Stored schedules: a change of the budget takes one that fits, keeps what stays, and refuses nothing that can be run."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from streamed_models import plain_model, streamed

from edgeplan import plan_memory
from edgeplan.errors import FormatError, InfeasibleError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.quick import Mode
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import FINER_NAME, SCHEDULES_NAME, read_folder
from edgeplan.runtime.streaming.memory_session import MemorySession, schedules_of
from edgeplan.runtime.streaming.phases import run_budgets
from edgeplan.runtime.streaming.schedules import ScheduleFile, filled, packed
from edgeplan.runtime.streaming.session import Schedule

LANE = "processes"  # see tests/conftest.py
_MIB = 1 << 20


@pytest.fixture(scope="module")
def plan(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan whose steps are whole."""
    assert dnnl.info.version
    folder = tmp_path_factory.mktemp("schedules")
    save_onnx(plain_model(), folder / "plain.onnx")
    plan_memory(folder / "plain.onnx", folder / "plan", "64MiB")
    return folder / "plan"


def _schedule(seed: int) -> Schedule:
    draw = np.random.default_rng(seed)
    weights = [int(at) * 4096 if at else -1 for at in draw.integers(0, 1 << 18, 5)]
    waits = draw.integers(-1, 5, (2, 5)).tolist()
    back_to_back, buffers = True, [64 * int(at) for at in draw.integers(0, 1 << 24, 3)]
    return Schedule(back_to_back, int(draw.integers(1, 1 << 40)), buffers, weights, *waits)


def test_what_is_packed_is_read_and_the_fastest_that_fits_is_taken(tmp_path: Path) -> None:
    rows = [(10, 5.0, 4.0, _schedule(1)), (20, 3.0, 2.0, _schedule(2)), (30, 3.5, 2.0, _schedule(3))]
    path = tmp_path / SCHEDULES_NAME
    path.write_bytes(packed(rows, 5, 3))
    found = ScheduleFile(path, 5, 3, back_to_back=True)
    weights = [1 << 20] * 5  # none of them fits into what the budgets leave
    assert found.fitting(9, weights) is None
    for budget, place in ((10, 0), (19, 0), (20, 1), (1000, 1)):
        taken = found.fitting(budget, weights)
        assert taken is not None
        stored, schedule = taken
        assert (stored.place, stored.predicted_ms) == (place, rows[place][1])
        assert schedule == found.schedule(stored) == rows[place][3]


@pytest.mark.parametrize("seed", range(8))
def test_what_a_budget_leaves_is_filled_with_weights_that_would_be_read_again(seed: int) -> None:
    draw = np.random.default_rng(seed)
    before, weights = _schedule(seed), [4096 * int(pages) for pages in draw.integers(1, 9, 5)]
    read = before.read_bytes(weights)
    for room in (0, 4095, *draw.integers(1 << 13, 1 << 17, 6).tolist(), 1 << 20):
        made = filled(before, weights, room)
        assert made.arena_bytes <= before.arena_bytes + room
        stay = [k for k in range(5) if made.weight_offset[k] != before.weight_offset[k]]
        assert made.read_bytes(weights) == read - sum(weights[k] for k in stay)
        left = before.arena_bytes + room - made.arena_bytes
        streamed = [k for k in range(5) if made.weight_offset[k] >= 0 and made.again[k] != k]
        assert all(weights[k] + 4096 > left for k in streamed)  # what fits stays
        places = sorted((made.weight_offset[k], weights[k]) for k in stay)
        assert all(at % 4096 == 0 and at >= before.arena_bytes for at, _ in places)
        assert all(at + size <= beside for (at, size), (beside, _) in pairwise(places))
        assert all((made.after[k], made.again[k]) == (-1, k) for k in stay)


def test_of_schedules_as_fast_the_one_that_reads_least_is_taken(tmp_path: Path) -> None:
    def made(arena: int, stays: int) -> Schedule:
        waits = [-1 if k < stays else k - 1 for k in range(5)]
        again = [k if k < stays else -1 for k in range(5)]
        back_to_back = True
        return Schedule(back_to_back, arena, [0, 0, 0], [4096 * k for k in range(5)], waits, again)

    rows = [
        (1 << 20, 5.0, 4.0, made(1 << 20, 0)),
        (3 << 20, 5.0005, 4.0, made(3 << 20, 4)),
        (4 << 20, 5.0, 4.0, made(4 << 20, 2)),
    ]
    path = tmp_path / SCHEDULES_NAME
    path.write_bytes(packed(rows, 5, 3))
    found = ScheduleFile(path, 5, 3, back_to_back=True)
    for budget, place, read in ((1 << 20, 0, 5 << 20), (3 << 20, 1, 1 << 20), (4 << 20, 1, 0)):
        taken = found.fitting(budget, [1 << 20] * 5)
        assert taken is not None
        assert (taken[0].place, taken[1].read_bytes([1 << 20] * 5)) == (place, read)


@pytest.mark.parametrize(("content", "what"), [(b"", "ends too early"), (b"x" * 20, "another program"), (None, "No such file")])
def test_a_damaged_file_is_refused(tmp_path: Path, content: bytes | None, what: str) -> None:
    path = tmp_path / SCHEDULES_NAME
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(FormatError, match=what):
        ScheduleFile(path, 5, 3, back_to_back=True)


def test_a_file_that_ends_early_is_refused_where_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / SCHEDULES_NAME
    path.write_bytes(packed([(10, 5.0, 4.0, _schedule(1))], 5, 3)[:-1])
    found = ScheduleFile(path, 5, 3, back_to_back=True)
    with pytest.raises(FormatError, match="ends too early"):
        found.schedule(found.stored[0])


@pytest.mark.long  # what is planned hangs on what is measured here
def test_stored_budgets_reach_from_the_least_to_all_and_more_memory_is_never_slower(plan: Path) -> None:
    schedules = schedules_of(read_folder(plan))
    assert schedules is not None
    times = [stored.predicted_ms for stored in schedules.stored if stored.budget_bytes != 64 * _MIB]
    assert len(times) > 1
    assert all(more <= 1.001 * less for less, more in pairwise(times))
    last = schedules.schedule(schedules.stored[-1])
    assert all(again == k for k, (again, at) in enumerate(zip(last.again, last.weight_offset, strict=True)) if at >= 0)


@pytest.mark.long  # what is planned hangs on what is measured here
def test_every_stored_schedule_gives_the_same_outputs_and_a_refused_one_keeps_them(dnnl: Dnnl, plan: Path) -> None:
    with MemorySession(read_folder(plan), dnnl) as session:
        inputs = {b.name: memoryview(bytes(b.size)) for b in session.program.inputs}
        schedules = schedules_of(read_folder(plan))
        assert schedules is not None
        budgets = [stored.budget_bytes for stored in schedules.stored]
        taken: list[Mapping[str, bytes]] = []
        for budget in (*budgets, *reversed(budgets)):
            _, outputs, refused = run_budgets(session, inputs, 2, (budget,), lambda _name, view: bytes(view))
            assert refused is None
            taken.append(outputs)
        assert all(one == taken[0] for one in taken)
        phases, outputs, refused = run_budgets(
            session, inputs, 1, (budgets[-1], 1, budgets[0]), lambda _name, view: bytes(view)
        )
        assert [phase.budget for phase in phases] == [budgets[-1], budgets[0]]
        assert outputs == taken[0]
        assert isinstance(refused, InfeasibleError)
        with pytest.raises(InfeasibleError):
            run_budgets(session, inputs, 1, (1,), lambda _name, view: bytes(view))


@pytest.mark.long  # what is planned hangs on what is measured here
def test_a_budget_below_the_parts_of_the_plan_is_run_in_finer_ones(dnnl: Dnnl, plan: Path) -> None:
    coarse, fine = schedules_of(read_folder(plan)), schedules_of(read_folder(plan / FINER_NAME))
    assert coarse is not None
    assert fine is not None
    least, between = coarse.stored[0].budget_bytes, fine.stored[0].budget_bytes
    assert between < least
    with MemorySession(read_folder(plan), dnnl) as session:
        inputs = {b.name: memoryview(bytes(b.size)) for b in session.program.inputs}
        before = session.stream.run(inputs)
        steps = len(session.program.steps)
        for budget in (between, least - 1, least, 64 * _MIB):
            session.adapt(budget)
            assert (len(session.program.steps) == steps) == (budget >= least)
            found = session.stream.run(inputs)
            for name, value in before.items():
                expected = np.frombuffer(value, np.float32)
                assert np.frombuffer(found[name], np.float32) == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_weights_that_stay_at_the_same_address_are_not_read_again(dnnl: Dnnl, tmp_path: Path) -> None:
    found = streamed(dnnl, "plain", tmp_path, 8192)
    inputs = {name: value.tobytes() for name, value in found.inputs.items()}
    weights = int(found.workload.weight_bytes.sum())
    everything, tight = found.resident(), found.planned(bounds.least_bytes(found.workload) + 65536, Mode.back_to_back)
    with found.session(dnnl, everything) as session:
        expected = session.run(inputs)
        assert session.bytes_read == weights
        session.apply(everything)
        assert session.run(inputs) == expected
        assert session.bytes_read == 0
        session.stream_ms()
        session.apply(everything)  # what was read for that lies where it should, but nobody promised it
        assert session.run(inputs) == expected
        assert session.bytes_read == weights
        session.apply(tight)
        assert session.run(inputs) == expected
        session.apply(everything)
        assert session.run(inputs) == expected
