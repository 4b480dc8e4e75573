"""First inferences whose kernels are made while they run: the same bits in every order, and errors where they belong."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from streamed_models import MODELS, Streamed, streamed

from edgeplan.errors import DeviceError, FormatError
from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.quick import Mode
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import MEMORY, decoded, encoded
from edgeplan.runtime.streaming.calls import BoundCalls
from edgeplan.runtime.streaming.late_kernels import KernelOrder
from edgeplan.runtime.streaming.memory_session import MemorySchedule
from edgeplan.runtime.streaming.program import NOTHING
from edgeplan.runtime.streaming.reader import WeightsFile
from edgeplan.runtime.streaming.session import FirstSchedule, Schedule, StreamSession


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models and weights of this module lie."""
    return tmp_path_factory.mktemp("late")


def opened(dnnl: Dnnl, found: Streamed, schedule: Schedule, first: FirstSchedule | None) -> StreamSession:
    """A session that fills freed memory with NaN."""
    file = WeightsFile(found.weights, found.built.program.weights_bytes)
    return StreamSession(dnnl, found.built.program, schedule, file, debug=True, first=first)


def an_order(found: Streamed, seed: int) -> KernelOrder:
    """Any order: some kernels of each thread, and some of none."""
    draw = random.Random(seed)  # noqa: S311  a seeded one
    used: dict[int, int] = {}
    for step, kernel in enumerate(found.built.program.columns.kernel_of):
        if kernel != NOTHING:
            used.setdefault(kernel, step)
    whose = {kernel: draw.randrange(3) for kernel in used}
    own = [(kernel, draw.randint(0, step)) for kernel, step in used.items() if whose[kernel] == 1]
    beside = [kernel for kernel in used if whose[kernel] == 2]
    draw.shuffle(beside)
    return KernelOrder(tuple(sorted(own, key=lambda pair: pair[1])), tuple(beside))


def small(found: Streamed, mode: Mode, share: float = 1.3) -> Schedule:
    """A schedule for a small budget."""
    return found.planned(int(share * bounds.least_bytes(found.workload)) + 8192, mode)


@pytest.mark.parametrize("name", MODELS)
def test_every_order_of_kernels_gives_the_same_bits(dnnl: Dnnl, folder: Path, name: str) -> None:
    found = streamed(dnnl, name, folder, 8192)
    with opened(dnnl, found, found.resident(), None) as session:
        expected = session.run(found.inputs)
    later = small(found, Mode.back_to_back)
    for seed in range(4):
        first = FirstSchedule(small(found, Mode.isolated, 1.1 + 0.3 * seed), an_order(found, seed))
        with opened(dnnl, found, later, first) as session:
            session.expect(4)
            assert [session.run(found.inputs) for _ in range(4)] == [expected] * 4, seed
            assert session.schedule == later
            assert all(session.making_ns)


def test_all_weights_are_read_once_in_a_first_inference_and_counted(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    resident = found.resident()
    first = FirstSchedule(small(found, Mode.isolated), an_order(found, 1))
    whole = sum(found.built.program.columns.stored_bytes)
    with opened(dnnl, found, resident, first) as session:
        session.fill()  # a first inference does not wait for it
        session.run(found.inputs)
        assert session.bytes_read == whole
        session.run(found.inputs)
        assert session.bytes_read <= 2 * whole
        read = session.bytes_read
        session.run(found.inputs)
        assert session.bytes_read == read


def test_another_schedule_before_the_first_inference_makes_all_kernels(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "residual", folder, 8192)
    with opened(dnnl, found, found.resident(), None) as session:
        expected = session.run(found.inputs)
    first = FirstSchedule(small(found, Mode.isolated), an_order(found, 2))
    with opened(dnnl, found, found.resident(), first) as session:
        session.apply(small(found, Mode.back_to_back))
        assert all(session.making_ns)
        assert session.run(found.inputs) == expected


def test_a_session_that_is_never_run_closes(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    kernels = tuple(range(len(found.built.program.kernels)))
    opened(dnnl, found, found.resident(), FirstSchedule(found.resident(), KernelOrder((), kernels))).close()


@pytest.mark.parametrize("beside", [True, False])
def test_a_kernel_that_cannot_be_made_is_an_error_of_the_inference(
    dnnl: Dnnl, folder: Path, monkeypatch: pytest.MonkeyPatch, beside: bool
) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    kernels = tuple(range(len(found.built.program.kernels)))
    order = KernelOrder((), kernels) if beside else KernelOrder(tuple((kernel, 0) for kernel in kernels))
    make = BoundCalls.make

    def failing(self: BoundCalls, number: int) -> None:
        if number == kernels[-1]:
            raise DeviceError("this kernel is not offered", where="a test", next_step="none")
        make(self, number)

    monkeypatch.setattr(BoundCalls, "make", failing)
    with opened(dnnl, found, found.resident(), FirstSchedule(found.resident(), order)) as session:
        for _ in range(2):
            with pytest.raises(DeviceError, match="not offered"):
                session.run(found.inputs)


@pytest.mark.parametrize("order", [KernelOrder((), (99,)), KernelOrder(((0, 99),)), KernelOrder(((-1, 0),))])
def test_an_order_of_another_program_is_refused(dnnl: Dnnl, folder: Path, order: KernelOrder) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    with pytest.raises(FormatError, match="does not fit"):
        opened(dnnl, found, found.resident(), FirstSchedule(found.resident(), order))


def test_plans_of_before_have_no_first_schedule_and_new_ones_keep_theirs(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    placed = small(found, Mode.back_to_back)
    before = MemorySchedule("back-to-back", 1, 2, (), (0,), (1,), placed)
    assert b"first" not in encoded(before)
    assert _decoded(before).first is None
    first = FirstSchedule(small(found, Mode.isolated), an_order(found, 3))
    again = _decoded(MemorySchedule("back-to-back", 1, 2, (), (0,), (1,), placed, first=first)).first
    assert again is not None
    assert again.kernels == first.kernels
    assert encoded(again.placed) == encoded(first.placed)


def _decoded(schedule: MemorySchedule) -> MemorySchedule:
    return decoded(encoded(schedule), MemorySchedule, Path("plan.json"), MEMORY)
