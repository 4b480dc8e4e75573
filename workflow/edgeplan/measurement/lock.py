"""One lock per physical machine: all CPU devices share its cores, whatever workspace they are measured from."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from edgeplan.errors import BusyError

#: The folder that every user of a Linux machine may write to. Neither what TMPDIR names nor /run/lock will do: processes that
#: differ in environment or in rights would not meet at one file.
FOLDER = Path("/tmp")  # noqa: S108  the lock holds nothing, and filelock follows no link


def lock_path() -> Path:
    """The lock file, the same for every workspace, user and environment on the machine."""
    return FOLDER / "edgeplan-machine.lock"


@contextlib.contextmanager
def machine_lock(timeout_seconds: float = 0.0) -> Iterator[None]:
    """Hold the machine while measuring; the system frees it when the process ends, however it ends.

    Raises:
        BusyError: another process is measuring.
    """
    path = lock_path()
    lock = FileLock(path, mode=0o666)
    holder = path.with_suffix(".pid")
    try:
        lock.acquire(timeout=timeout_seconds)
    except Timeout as error:
        pid = holder.read_text().strip() if holder.is_file() else "unknown"
        raise BusyError(
            f"another process (pid {pid}) is measuring on this machine",
            where=str(path),
            next_step="wait for it to end, then run the same command again; two at once would disturb each other",
        ) from error
    try:
        with contextlib.suppress(OSError):  # the pid only makes the message better
            holder.write_text(str(os.getpid()))
        yield
    finally:
        lock.release()
