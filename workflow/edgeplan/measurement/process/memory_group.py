"""A process held to a limit of memory by the system: a memory cgroup, of version 1 or 2, page cache counted.

The limit is set when the process says that it is idle, to what the group uses then and a budget more. Surviving alone proves
nothing: what is mapped from files is dropped and read again, many times slower. So latency, major faults and failed
allocations are looked at, too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeplan.measurement.process.own_files import command_with, mounts_refused
from edgeplan.measurement.process.page_cache import evict
from edgeplan.support.cgroups import groups
from edgeplan.support.scratch import delete_abandoned, make_held
from edgeplan.support.subprocesses import end, start

_ROOT_1, _ROOT_2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
_PAGE_BYTES = 4096
_NAME = "edgeplan-"
_READY_SECONDS, _TIMEOUT_SECONDS = 120.0, 300.0


class NoGroupError(Exception):
    """The system gives this process no memory cgroup."""


@dataclass(frozen=True, slots=True)
class Limited:
    """The outcome of a process that was held to a limit; a negative code is the signal that ended it (9: out of memory).

    `idle_bytes` is what the group used when the process said that it was idle, 0 if it never did; `peak_bytes` the most that it
    used from then on, and `failures` how often an allocation hit the limit.
    """

    code: int
    stdout: bytes
    stderr: bytes
    idle_bytes: int
    limit_bytes: int
    peak_bytes: int
    failures: int


def copied_files(files: Iterable[str], folder: Path) -> dict[str, str]:
    """Copy files into a folder, no page of them in memory; the copy of each."""
    found = {}
    try:
        for number, file in enumerate(sorted(set(files))):
            copy = folder / f"{number}-{Path(file).name}"
            if not copy.exists():
                shutil.copy2(file, copy)
            found[file] = str(copy.resolve())
        left = evict(map(Path, found.values()))
    except OSError as error:
        raise NoGroupError(f"libraries cannot be copied to {folder}: {error.strerror}") from error
    if left:
        raise NoGroupError(f"copies of libraries in {folder} stay in the page cache")
    return found


class MemoryGroup:
    """A memory cgroup for one process. Use `memory_group`."""

    def __init__(self, path: Path, version: int) -> None:
        self._path, self._version = path, version

    def _file(self, name_1: str, name_2: str) -> Path:
        return self._path / (name_1 if self._version == 1 else name_2)

    @property
    def usage(self) -> int:
        """Bytes that the group uses now, page cache counted."""
        return int(self._file("memory.usage_in_bytes", "memory.current").read_text())

    @property
    def peak(self) -> int:
        """The most bytes that it used since it was limited."""
        return int(self._file("memory.max_usage_in_bytes", "memory.peak").read_text())

    @property
    def failures(self) -> int:
        """Count the allocations that hit the limit."""
        if self._version == 1:
            return int((self._path / "memory.failcnt").read_text())
        lines = (self._path / "memory.events").read_text().split()
        return int(lines[lines.index("max") + 1])

    @property
    def members(self) -> Path:
        """The file that lists the processes of the group; the number of one that is written there joins, 0 the writer."""
        return self._path / "cgroup.procs"

    def add(self, process: int) -> None:
        """Put a process into the group."""
        self.members.write_text(str(process))

    def set_limit(self, size: int) -> None:
        """Limit what the group may use, page cache counted."""
        self._file("memory.limit_in_bytes", "memory.max").write_text(str(size // _PAGE_BYTES * _PAGE_BYTES))

    def reset_peak(self) -> None:
        """Count the most bytes from now on, where the system lets it."""
        with contextlib.suppress(OSError):
            self._file("memory.max_usage_in_bytes", "memory.peak").write_text("0")

    def limit(self, budget: int) -> tuple[int, int]:
        """Limit the group to what it uses now, without what can be dropped, and a budget more: the use, and the limit."""
        if self._version == 1:
            with contextlib.suppress(OSError):
                (self._path / "memory.force_empty").write_text("0")
        else:
            with contextlib.suppress(OSError):
                (self._path / "memory.reclaim").write_text("1G")
        idle = self.usage
        limit = (idle + budget) // _PAGE_BYTES * _PAGE_BYTES
        self.set_limit(limit)
        self.reset_peak()
        return idle, limit


@contextlib.contextmanager
def memory_group() -> Iterator[MemoryGroup]:
    """A new memory cgroup, removed afterwards."""
    version = 1 if (_ROOT_1 / "memory.limit_in_bytes").exists() or (_ROOT_1 / "cgroup.procs").exists() else 2
    # a group within this process's own one stays under its limits
    own = (folder for held_by, folder in groups("memory") if held_by == 1)
    root = next(own, _ROOT_1) if version == 1 else _ROOT_2
    if version == 2 and "memory" not in _controllers(root):
        raise NoGroupError("this system has no memory controller for cgroups")

    def make() -> Path:
        path = root / f"{_NAME}{os.getpid()}-{time.monotonic_ns()}"
        path.mkdir()
        return path

    delete_abandoned(root.glob(f"{_NAME}*"), Path.rmdir)  # of processes that were killed
    try:
        path, descriptor = make_held(make)
    except OSError as error:
        raise NoGroupError(f"no memory cgroup can be made: {error.strerror}") from error
    try:
        yield MemoryGroup(path, version)
    finally:
        for _ in range(100):
            try:
                path.rmdir()
                break
            except OSError:
                time.sleep(0.05)
        os.close(descriptor)


def _controllers(root: Path) -> Sequence[str]:
    try:
        return (root / "cgroup.subtree_control").read_text().split()
    except OSError:
        return ()


def run_limited(module: str, job_with_gate: bytes, gate: Path, budget: int) -> Limited:
    """Run a module of this package, held to what it takes idle and a budget (bytes) more.

    It reads the job, which names the gate, on stdin, says "ready" when it is idle, and waits for
    the gate: a file that must not exist yet.
    """
    starter = (
        "import os\n"
        "os.read(0,1)\n"  # until it is in the group
        "from edgeplan.support.lifeline import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", starter, module]
    with memory_group() as group:
        return _held(group, command, job_with_gate, gate, lambda: group.limit(budget), _TIMEOUT_SECONDS)


def run_paying(
    command: Sequence[str], said: bytes, gate: Path, files: Iterable[str], work: Path, *, limit: int = 0, budget: int = 0,
    timeout_seconds: float = 300.0,
) -> Limited:  # fmt: skip
    """Run a command in a new group that pays for its libraries, held to a limit.

    Args:
        command: it says "ready" on its error stream when it is idle, and waits for the gate.
        said: what it reads on its standard input.
        gate: a file that must not exist.
        files: that it maps: it has copies of its own.
        work: a folder for the copies, on a disk.
        limit: bytes of the whole group from the start of the process on; 0: none before it is idle.
        budget: bytes over what the group uses when it is idle; 0: nothing is added to the limit.
        timeout_seconds: for the process.
    """
    copies = copied_files(files, work)
    with memory_group() as group:
        if limit:
            group.set_limit(limit)

        def idle() -> tuple[int, int]:
            used, held = group.usage, limit
            if budget:
                held = used + budget
                group.set_limit(held)
            group.reset_peak()
            return used, held

        joining = command_with(copies, str(group.members), command)
        found = _held(group, joining, said, gate, idle, timeout_seconds, timeout_seconds, limit, joins=True)
    if mounts_refused(found.code):
        raise NoGroupError(found.stderr.decode(errors="replace").strip())
    return found


def _held(
    group: MemoryGroup,
    command: Sequence[str],
    said: bytes,
    gate: Path,
    limited: Callable[[], tuple[int, int]],
    timeout_seconds: float,
    ready_seconds: float = _READY_SECONDS,
    limit: int = 0,
    *,
    joins: bool = False,
) -> Limited:
    """Run a command in a group, and limit that once it is idle.

    The command waits for a byte and reads what is said behind it; one that `joins` puts itself into the
    group. `limited` limits that, and tells what it used and its limit; `limit` held before.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = start(command, stdin=subprocess.PIPE, stdout=out, stderr=errors)
        timer = threading.Timer(timeout_seconds, process.send_signal, (signal.SIGKILL,))
        timer.start()
        idle = before = 0
        try:
            if not joins:
                group.add(process.pid)
            assert process.stdin is not None  # noqa: S101  it is piped
            with contextlib.suppress(BrokenPipeError):  # it was killed at once
                process.stdin.write(b"\n" + said)
                process.stdin.close()
            _await_ready(process, errors.fileno(), ready_seconds)
            if process.poll() is None:
                before = group.failures
                idle, limit = limited()
                gate.touch()
            code = process.wait()
            found = group.peak, group.failures - before
        finally:
            timer.cancel()
            end(process)
        return Limited(code, _all_of(out.fileno()), _all_of(errors.fileno()), idle, limit, *found)


def _await_ready(process: subprocess.Popen[bytes], errors: int, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while b"ready\n" not in _all_of(errors):
        if process.poll() is not None:
            return
        if time.monotonic() > deadline:
            raise TimeoutError("the process did not become idle")
        time.sleep(0.01)


def _all_of(descriptor: int) -> bytes:
    return os.pread(descriptor, os.fstat(descriptor).st_size, 0)
