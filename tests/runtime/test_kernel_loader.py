"""Weights read by the kernel, without threads: outputs are the same, whatever ends early, fails or changes meanwhile."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from streamed_models import MODELS, Streamed, streamed
from test_streaming_sessions import ran, require_right

from edgeplan.errors import ModelError
from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.quick import Mode
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.streaming import kernel_reads
from edgeplan.runtime.streaming.kernel_loader import DEPTH
from edgeplan.runtime.streaming.kernel_reads import KernelReads
from edgeplan.runtime.streaming.reader import Loader, WeightsFile
from edgeplan.runtime.streaming.session import Schedule, StreamSession

_PERMITTED = KernelReads.opened(1)
if _PERMITTED is None:
    pytest.skip("the system does not permit the kernel's asynchronous reads", allow_module_level=True)
_PERMITTED.close()


def _by_threads() -> bool:
    return True


def _by_kernel() -> bool:
    return False


def _tight(found: Streamed, mode: Mode = Mode.back_to_back) -> Schedule:
    return found.planned(bounds.least_bytes(found.workload) + 8192, mode)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models and weights of this module lie."""
    return tmp_path_factory.mktemp("streamed")


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_those_of_reading_threads(dnnl: Dnnl, folder: Path, name: str, mode: Mode) -> None:
    found = streamed(dnnl, name, folder, 8192)
    with found.session(dnnl, _tight(found, mode), _by_threads) as session:
        expected = ran(session, found.inputs, 3)
        read = session.bytes_read
        assert session.threaded
    require_right(found, expected[0])
    with found.session(dnnl, _tight(found, mode), _by_kernel) as session:
        assert ran(session, found.inputs, 3) == expected
        assert session.bytes_read == read
        assert not session.threaded
        assert not any(thread.name.startswith("reader-") for thread in threading.enumerate())
        session.fill()
        assert session.stream_ms() > 0
        assert session.run(found.inputs) == expected[0]


def test_who_reads_changes_between_inferences(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    spare = [True]
    with found.session(dnnl, _tight(found), lambda: spare[0]) as session:
        session.expect(9)
        expected = session.run(found.inputs)
        for threaded in (False, False, True, False, True, True):
            spare[0] = threaded
            assert session.run(found.inputs) == expected
            assert session.threaded is threaded
        session.apply(found.resident())
        assert session.run(found.inputs) == expected


class _EarlyReads(KernelReads):
    """A disk whose reads end early: of each it gives so many bytes at most, and now and then it asks to try again."""

    def __init__(self, most: int) -> None:
        super().__init__(DEPTH)
        self._most, self._count, self._refused = most, 0, list[tuple[int, int]]()

    def submit(self, number: int, descriptor: int, offset: int, pieces: Sequence[tuple[int, int]]) -> None:
        self._count += 1
        if self._count % 3 == 0:
            self._refused.append((number, -(errno.EAGAIN, errno.EINTR)[self._count % 2]))
            return
        if self._count % 5 == 0:
            raise OSError(errno.EAGAIN, "no room")
        left, given = self._most, []
        for address, size in pieces:
            if left:
                given.append((address, min(size, left)))
                left -= given[-1][1]
        super().submit(number, descriptor, offset, given)

    def ended(self, *, wait: bool) -> list[tuple[int, int]]:
        found, self._refused = self._refused, []
        return found or super().ended(wait=wait)


@pytest.mark.parametrize("most", [4096, 3 * 4096, 1 << 20])
def test_reads_that_end_early_are_gone_on_with(dnnl: Dnnl, folder: Path, most: int) -> None:
    found = streamed(dnnl, "plain", folder, 32768)
    with found.session(dnnl, _tight(found), _by_threads) as session:
        expected = ran(session, found.inputs, 3)
    with found.session(dnnl, _tight(found), _by_kernel, _EarlyReads(most)) as session:
        assert ran(session, found.inputs, 3) == expected


class _FailingReads(KernelReads):
    """A disk that fails once, at the n-th read."""

    def __init__(self, fails_at: int) -> None:
        super().__init__(DEPTH)
        self._left = fails_at

    def ended(self, *, wait: bool) -> list[tuple[int, int]]:
        found = []
        for number, result in super().ended(wait=wait):
            self._left -= 1
            found.append((number, -errno.EIO if self._left == 0 else result))
        return found


@pytest.mark.parametrize("fails_at", [1, 2, 3, 5])
def test_after_a_failed_read_the_next_run_works(dnnl: Dnnl, folder: Path, fails_at: int) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    failures = 0
    with found.session(dnnl, _tight(found), _by_kernel, _FailingReads(fails_at)) as session:
        for _ in range(4):
            try:
                outputs = session.run(found.inputs)
            except ModelError as error:
                failures += "Input/output error" in error.what
            else:
                require_right(found, outputs)
    assert failures == 1


def test_a_file_that_was_cut_is_an_error_of_the_run(dnnl: Dnnl, folder: Path, tmp_path: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    copy = Path(shutil.copyfile(found.weights, tmp_path / "weights.bin"))
    file = WeightsFile(copy, found.built.program.weights_bytes)
    os.truncate(copy, 4096)
    schedule = _tight(found, Mode.isolated)
    with (
        pytest.raises(ModelError, match="the weights end before byte"),
        StreamSession(dnnl, found.built.program, schedule, file, spare=_by_kernel) as session,
    ):
        session.run(found.inputs)


class _InterruptedReads(KernelReads):
    """A disk during whose reads the user interrupts: at each of these, once with what has ended in hand, once before."""

    def __init__(self, at: Sequence[int]) -> None:
        super().__init__(DEPTH)
        self._at, self._count = at, 0

    def ended(self, *, wait: bool) -> list[tuple[int, int]]:
        self._count += wait
        interrupted = wait and self._count in self._at
        if interrupted and self._count % 2:
            signal.raise_signal(signal.SIGINT)
        found = super().ended(wait=wait)
        if interrupted:
            signal.raise_signal(signal.SIGINT)
        return found


def test_an_interrupted_run_leaves_a_session_that_works(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # LLVM has taken it where an OpenCL driver compiled here before
    interrupts = 0
    with found.session(dnnl, _tight(found), _by_kernel, _InterruptedReads((2, 5, 8, 9))) as session:
        for _ in range(12):
            try:
                require_right(found, session.run(found.inputs))
            except KeyboardInterrupt:
                interrupts += 1
    assert interrupts == 4


def test_where_the_kernel_permits_no_such_reads_threads_read(dnnl: Dnnl, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_reads, "_NUMBERS", {})
    found = streamed(dnnl, "plain", folder, 8192)
    with found.session(dnnl, _tight(found), _by_kernel) as session:
        require_right(found, session.run(found.inputs))
        assert session.threaded
        assert type(session._loader) is Loader


def test_where_the_file_takes_no_direct_reads_threads_read(dnnl: Dnnl, folder: Path) -> None:
    found = streamed(dnnl, "plain", folder, 8192)
    file = WeightsFile(found.weights, found.built.program.weights_bytes)
    file.direct = False
    with StreamSession(dnnl, found.built.program, _tight(found), file, spare=_by_kernel) as session:
        require_right(found, session.run(found.inputs))
        assert session.threaded
