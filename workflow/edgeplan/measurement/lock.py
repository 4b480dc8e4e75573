"""Locks a physical machine while it measures: all CPU devices share its cores, whatever workspace they are measured from.

Only what measures holds it; who comes second waits and says for whom. What computes on all cores, such as trees that are
trained, begins when nothing is measured (`after_measurements`) and holds nothing: a plan does not wait for it, and
notices that it was disturbed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from edgeplan.errors import BusyError

log = logging.getLogger(__name__)
#: The folder that every user of a Linux machine may write to. Neither what TMPDIR names nor /run/lock will do: processes that
#: differ in environment or in rights would not meet at one file.
FOLDER = Path("/tmp")  # noqa: S108  the lock holds nothing, and filelock follows no link
#: How long one waits unless told otherwise: as long as the longest stage holds the machine.
WAIT_SECONDS = 3600.0
_FIRST_LOOK_SECONDS = 0.5
_SAY_EVERY_SECONDS = 30.0
_LONGEST_COMMAND = 120
#: Told when this process begins to hold the machine, and when it ceases to: what watches the measurements.
observers: list[Callable[[bool], None]] = []
#: How often this process holds the lock: what holds the machine may call what asks for it.
_held = 0


def lock_path() -> Path:
    """Return the path of the lock file, the same for every workspace, user and environment on the machine."""
    return FOLDER / "edgeplan-machine.lock"


@contextlib.contextmanager
def machine_lock(timeout_seconds: float = WAIT_SECONDS, *, name: str = "", quiet: bool = False) -> Iterator[None]:
    """Hold the machine; the system frees it when the process ends, however it ends.

    `name`: for whom this process measures, told to those who wait; "" for itself. `quiet`: wait without a word.
    """
    global _held  # noqa: PLW0603  a process holds the machine once, whoever in it asks
    if _held:
        _held += 1
        try:
            yield
        finally:
            _held -= 1
        return
    path = lock_path()
    lock = FileLock(path, mode=0o666)
    _acquire(lock, timeout_seconds, quiet=quiet)
    _held = 1
    try:
        with contextlib.suppress(OSError):  # it only makes the message better
            _holder_file().write_text(f"{os.getpid()}\n{name}", encoding="utf-8")
        for told in observers:
            told(True)  # noqa: FBT003  it holds
        yield
    finally:
        for told in observers:
            told(False)  # noqa: FBT003
        _held -= 1
        lock.release()


def is_held() -> bool:
    """Tell whether this process holds the machine now."""
    return _held > 0


def after_measurements(timeout_seconds: float = WAIT_SECONDS) -> None:
    """Wait until no other process measures, for work that loads the cores and takes no time of anything."""
    with machine_lock(timeout_seconds):
        """It is free."""


def _acquire(lock: FileLock, timeout_seconds: float, *, quiet: bool) -> None:
    """Take the lock, saying for whom one waits when that takes long."""
    end = time.monotonic() + timeout_seconds
    patience = min(_FIRST_LOOK_SECONDS, timeout_seconds)
    while True:
        try:
            lock.acquire(timeout=patience)
        except Timeout as error:
            left = end - time.monotonic()
            if left <= 0:
                raise BusyError(
                    f"another process ({holder()}) is measuring on this machine",
                    where=str(lock_path()),
                    next_step="wait for it to end, then run the same command again; two at once would disturb each other",
                ) from error
            if not quiet:
                log.warning("waiting for another process that is measuring on this machine: %s", holder())
            patience = min(left, _SAY_EVERY_SECONDS)
        else:
            return


def _holder_file() -> Path:
    return lock_path().with_suffix(".pid")


def holder() -> str:
    """Tell who holds the machine: for whom, number and command of the process, as far as this user may know."""
    try:
        first, _, name = _holder_file().read_text(encoding="utf-8").partition("\n")
        pid = int(first)
    except (OSError, ValueError):
        return "pid unknown"
    if name:
        return f"{_shown(name)} by pid {pid}"
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="backslashreplace").split("\0")
    except OSError:
        return f"pid {pid}"
    command = _shown(" ".join(words).strip())
    return f"pid {pid}: {command}" if command else f"pid {pid}"


def _shown(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)[:_LONGEST_COMMAND]
