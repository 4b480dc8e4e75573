"""Sessions on a library that computes next to nothing: who prepares what, what goes wrong, and what is left of it."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_programs import PAGE, Chain, FakeOnednn, build_fake, write_cold, write_memory

from edgeplan import native
from edgeplan.errors import DeviceError, EdgeplanError, ModelError
from edgeplan.runtime.native_session import NativeSession

LANE = "numerics"  # its programs hold the text of this machine

STEPS, LATE_US = 6, 200_000
_BUSY, _DEVICE = 8, 3
#: Of cold starts: lanes besides the main one.
_LANES: tuple[tuple[tuple[int, ...], ...], ...] = ((), ((1, 3, 5),), ((0, 1, 2, 3, 4, 5),), ((4,), (5, 1)))

Write = Callable[..., Any]


@pytest.fixture(scope="module")
def _built(tmp_path_factory: pytest.TempPathFactory) -> FakeOnednn:
    return build_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture
def fake(_built: FakeOnednn) -> Iterator[FakeOnednn]:
    """The library; whatever a test does with it, nothing is left of it, and no object was taken for another one."""
    _built.reset()
    yield _built
    assert _built.live() == {}
    assert _built.misuses == 0


@pytest.fixture
def chain() -> Chain:
    """What the steps compute."""
    return Chain.of(STEPS)


@pytest.fixture(params=[write_cold, write_memory], ids=["cold", "memory"])
def folder(request: pytest.FixtureRequest, fake: FakeOnednn, chain: Chain, tmp_path: Path) -> Path:
    """A plan of either kind."""
    request.param(fake, chain, tmp_path / "plan")
    return tmp_path / "plan"


def _runs(session: NativeSession, chain: Chain, times: int = 3) -> None:
    for _ in range(times):
        assert np.array_equal(session.run(chain.inputs)["y"], chain.wanted)


# Lanes


@pytest.mark.parametrize("queues", _LANES, ids=map(str, _LANES))
@pytest.mark.parametrize("sources", [("raw",), ("cached_read",), ("cached_mmap",), ("raw", "cached_mmap", "cached_read")])
def test_lanes_prepare_each_step_once(
    fake: FakeOnednn, chain: Chain, tmp_path: Path, queues: tuple[tuple[int, ...], ...], sources: tuple[str, ...]
) -> None:
    for widen in (0, 3, STEPS):
        for fixed in (False, True):
            fake.reset()
            write_cold(fake, chain, tmp_path / "plan", sources=sources, queues=queues, widen_from=widen)
            with fake.open(tmp_path / "plan", fixed=fixed) as session:
                _runs(session, chain)
                trace = session.trace()
            assert len(fake.events("primitive_create")) == STEPS
            assert [step for _, step, stage, _, _ in trace if stage == "execute"] == list(range(STEPS))
            begun = {step: begin for _, step, stage, begin, _ in trace if stage == "execute"}
            assert all(end <= begun[step] for _, step, stage, _, end in trace if stage != "execute")


def test_later_runs_have_kernels_of_their_own(fake: FakeOnednn, chain: Chain, tmp_path: Path) -> None:
    write_cold(fake, chain, tmp_path / "plan", queues=((1, 3),), later=True)
    for continuous in (False, True):
        fake.reset()
        with fake.open(tmp_path / "plan", continuous=continuous) as session:
            _runs(session, chain, 1)
            session.prepare_later()
            assert len(fake.events("primitive_create")) == 2 * STEPS
            _runs(session, chain, 2)
        assert {event.threads for event in fake.events("primitive_execute")[STEPS:]} == {2}


def test_first_outputs_do_not_wait_for_kernels_of_later_runs(fake: FakeOnednn, chain: Chain, tmp_path: Path) -> None:
    """None of these is begun before, and the timeline is that of the cold start."""
    write_cold(fake, chain, tmp_path / "plan", queues=((1, 3, 5),), later=True)
    with fake.open(tmp_path / "plan", continuous=True) as session:
        for nth in range(STEPS + 1, 2 * STEPS + 1):
            fake.rule("primitive_create", nth, delay_us=LATE_US // 10)
        begun = time.monotonic()
        _runs(session, chain, 1)
        assert time.monotonic() - begun < LATE_US / 1e6
        trace = session.trace()
        session.prepare_later()
        assert session.trace() == trace
        _runs(session, chain, 1)
        assert session.trace() == trace
    assert len(trace) >= 2 * STEPS
    order = [event.threads for event in fake.events("primitive_execute")]
    assert len(order) == 2 * STEPS


@pytest.mark.parametrize("nth", [STEPS + 1, 2 * STEPS])
def test_a_kernel_of_a_later_run_that_fails_between_runs_fails_the_next_one(
    fake: FakeOnednn, chain: Chain, tmp_path: Path, nth: int
) -> None:
    write_cold(fake, chain, tmp_path / "plan", queues=((1, 3, 5),), later=True)
    fake.rule("primitive_create", nth, status=1)
    with fake.open(tmp_path / "plan", continuous=True) as session:
        _runs(session, chain, 1)
        for _ in range(2):
            with pytest.raises(EdgeplanError, match="dnnl_primitive_create failed: out of memory"):
                session.run(chain.inputs)


@pytest.mark.parametrize("fixed", [False, True])
def test_a_late_lanes_steps_are_taken_by_others(fake: FakeOnednn, chain: Chain, tmp_path: Path, fixed: bool) -> None:
    """All steps are a lane's, and the first of its kernels takes long."""
    write_cold(fake, chain, tmp_path / "plan", queues=(tuple(range(STEPS)),))
    fake.rule("primitive_create", 1, delay_us=LATE_US)
    with fake.open(tmp_path / "plan", fixed=fixed) as session:
        _runs(session, chain, 1)
        lanes = {step: core for core, step, stage, _, _ in session.trace() if stage == "create"}
    assert set(lanes.values()) == ({1} if fixed else {0, 1})
    first = fake.events("primitive_create")[0].thread
    stolen = [event for event in fake.events("primitive_create") if event.thread != first]
    assert bool(stolen) is not fixed


def test_execution_goes_on_while_a_lane_prepares(fake: FakeOnednn, chain: Chain, tmp_path: Path) -> None:
    write_cold(fake, chain, tmp_path / "plan", queues=((3, 4, 5),))
    fake.rule("primitive_create", 0, delay_us=LATE_US // 20)
    with fake.open(tmp_path / "plan", fixed=True) as session:
        _runs(session, chain, 1)
        spans = session.trace()
    executed = {step: begin for _, step, stage, begin, _ in spans if stage == "execute"}
    created = {step: end for _, step, stage, _, end in spans if stage == "create"}
    assert executed[0] < created[5]


# Faults


@pytest.mark.parametrize("nth", [1, 2, STEPS])
@pytest.mark.parametrize(
    "function",
    ["memory_desc_create_with_tag", "primitive_attr_create", "binary_primitive_desc_create", "primitive_create",
     "memory_create", "stream_create", "primitive_execute"],
)  # fmt: skip
def test_what_the_library_refuses_reaches_the_caller(
    fake: FakeOnednn, chain: Chain, folder: Path, function: str, nth: int
) -> None:
    fake.rule(function, nth, status=1)
    errors = []
    try:
        with fake.open(folder) as session:
            for _ in range(3):
                try:
                    _runs(session, chain, 1)
                except EdgeplanError as error:
                    errors.append(error)
    except DeviceError as error:
        errors.append(error)
    assert errors or nth > len(fake.events(function))
    assert all("out of memory" in error.what and error.next_step for error in errors)


@pytest.mark.parametrize("fault", ["cached_read", "cached_mmap", "raw", "primitive_create"])
def test_what_fails_in_a_lane_is_told_at_each_run(fake: FakeOnednn, chain: Chain, tmp_path: Path, fault: str) -> None:
    """A kernel that cannot be made, or weights that were cut once the plan was open."""
    makes = fault == "primitive_create"
    for queues in _LANES:
        folder = tmp_path / str(queues)
        write_cold(fake, chain, folder, sources=["raw" if makes else fault], queues=queues)
        fake.rule("primitive_create", 4 if makes else 1, status=int(makes), delay_us=LATE_US // 20)
        with fake.open(folder) as session:
            if not makes:
                os.truncate(folder / ("model.bin" if fault == "raw" else "weights.cache"), 10)
            for _ in range(2):
                with pytest.raises(EdgeplanError if makes else ModelError) as caught:
                    session.run(chain.inputs)
                assert not makes or "dnnl_primitive_create failed: out of memory" in caught.value.what
        fake.reset()


def test_an_inference_of_memory_that_failed_can_be_repeated(fake: FakeOnednn, chain: Chain, tmp_path: Path) -> None:
    write_memory(fake, chain, tmp_path / "plan", resident=2)
    with fake.open(tmp_path / "plan") as session:
        _runs(session, chain, 2)
        fake.rule("primitive_execute", 3, status=5)
        with pytest.raises(DeviceError, match="runtime error"):
            session.run(chain.inputs)
        _runs(session, chain)


def _cut(path: Path, bytes_left: int) -> Callable[[], None]:
    """Cut a file; what puts it back as it was, with its time."""
    content, status = path.read_bytes(), path.stat()
    os.truncate(path, bytes_left)

    def whole() -> None:
        with path.open("r+b") as file:
            file.write(content)
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    return whole


@pytest.mark.parametrize("resident", [0, 2])
def test_memory_goes_on_after_a_read_that_failed(fake: FakeOnednn, chain: Chain, tmp_path: Path, resident: int) -> None:
    write_memory(fake, chain, tmp_path / "plan", resident=resident)
    with fake.open(tmp_path / "plan") as session:
        _runs(session, chain, 2)
        whole = _cut(tmp_path / "plan" / "weights.bin", PAGE)
        for _ in range(2):
            with pytest.raises(ModelError, match="weights"):
                _runs(session, chain, 2)
        whole()
        _runs(session, chain, 1)
        session.set_budget(1 << 30)
        session.prepare_later()
        _runs(session, chain, 2)


def test_readers_whose_processors_are_not_there_use_all(fake: FakeOnednn, chain: Chain, tmp_path: Path) -> None:
    for readers in ((1023,), tuple(sorted(os.sched_getaffinity(0)))):
        write_memory(fake, chain, tmp_path / "plan", readers=readers)
        with fake.open(tmp_path / "plan") as session:
            _runs(session, chain)


def test_implementations_that_are_offered_no_more_are_named(fake: FakeOnednn, chain: Chain, tmp_path: Path) -> None:
    write_cold(fake, chain, tmp_path / "plan", implementation="fake:third")
    with fake.open(tmp_path / "plan") as session, pytest.raises(DeviceError, match="does not offer 'fake:third'"):
        session.run(chain.inputs)


# Threads and processes


def _run_by_hand(session: NativeSession) -> int:
    """`ep_run` as another caller does it: the status."""
    data = (ctypes.c_float * 64)()
    buffer = (ctypes.c_size_t * 2)(ctypes.addressof(data), ctypes.sizeof(data))
    run = native.function("run", ctypes.c_int, ctypes.c_void_p, *(ctypes.c_void_p, ctypes.c_int) * 2)
    return int(run(session.handle, buffer, 1, buffer, 1))


def test_a_second_thread_is_told_that_a_session_is_busy(fake: FakeOnednn, chain: Chain, folder: Path) -> None:
    with fake.open(folder) as session:
        _runs(session, chain, 1)
        fake.rule("primitive_execute", 1, delay_us=LATE_US)
        thread = threading.Thread(target=_runs, args=(session, chain, 1))
        thread.start()
        time.sleep(LATE_US / 4e6)
        assert _run_by_hand(session) == _BUSY
        assert np.isnan(native.function("fact", ctypes.c_double, ctypes.c_void_p, ctypes.c_char_p)(session.handle, b"steps"))
        thread.join()
        assert _run_by_hand(session) == 0
        _runs(session, chain, 1)


def test_a_budget_that_changes_in_an_inference_waits_for_its_end(fake: FakeOnednn, chain: Chain, tmp_path: Path) -> None:
    write_memory(fake, chain, tmp_path / "plan", resident=1)
    with fake.open(tmp_path / "plan") as session:
        _runs(session, chain, 1)
        fake.rule("primitive_execute", 3, delay_us=LATE_US)
        thread = threading.Thread(target=_runs, args=(session, chain, 1))
        thread.start()
        time.sleep(LATE_US / 4e6)
        session.set_budget(1 << 30)
        thread.join()
        _runs(session, chain, 1)


def test_a_fork_is_refused(fake: FakeOnednn, chain: Chain, folder: Path) -> None:
    with fake.open(folder) as session:
        _runs(session, chain, 1)
        child = os.fork()
        if child == 0:
            try:
                opened = native.function("open", ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p)
                other = ctypes.c_void_p()
                status = opened(os.fsencode(folder), None, ctypes.byref(other))
                native.function("close", None, ctypes.c_void_p)(session.handle)  # which leaves the parent's alone
                os._exit(0 if (_run_by_hand(session), status) == (_DEVICE, _DEVICE) else 1)
            except BaseException:  # noqa: BLE001  the child must not go on as the parent
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        _runs(session, chain, 1)


def test_sessions_are_closed_while_they_prepare(fake: FakeOnednn, folder: Path) -> None:
    fake.rule("primitive_create", 0, delay_us=1000)
    for _ in range(3):
        fake.open(folder).close()
