"""The read-ahead of a disk is told, set for a while, and put back even where this process is killed.

The number belongs to a disk, not to a process (`read_ahead_kb`). A guard is started before it is changed: a process of its own
that waits for the end of a pipe which this one holds, and puts back what was there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_DISKS = Path("/sys/class/bdi")
#: Waits for the end of its input, then writes what it was given to a file: the path and the text are its arguments.
_GUARD = "import sys\nsys.stdin.read()\nopen(sys.argv[1], 'w').write(sys.argv[2])\n"


class FixedReadAheadError(Exception):
    """The system lets nobody here change how much it reads ahead; the message says why."""


def read_ahead_file(path: Path) -> Path:
    """Name the file of the system that holds how much is read ahead on the disk of a path."""
    device = path.stat().st_dev
    return _DISKS / f"{os.major(device)}:{os.minor(device)}" / "read_ahead_kb"


def read_ahead_kb(path: Path) -> int | None:
    """Return how many KiB the system reads ahead on the disk of a path; None where it does not say."""
    try:
        return int(read_ahead_file(path).read_text())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def reading_ahead(path: Path, kilobytes: int) -> Iterator[None]:
    """Have the system read so many KiB ahead on the disk of a path while the block runs."""
    file = read_ahead_file(path)
    try:
        before = file.read_text().strip()
        if not os.access(file, os.W_OK):
            raise FixedReadAheadError(f"{file} cannot be written by this user")
    except OSError as error:
        raise FixedReadAheadError(f"{file}: {error.strerror}") from error
    with _guard(file, before):
        try:
            file.write_text(str(kilobytes))
        except OSError as error:
            raise FixedReadAheadError(f"{file} cannot be written: {error.strerror}") from error
        yield


@contextlib.contextmanager
def _guard(file: Path, before: str) -> Iterator[None]:
    """A process that outlives this one for a moment, in a session of its own so that no signal for this one reaches it."""
    command = [sys.executable, "-I", "-S", "-c", _GUARD, str(file), before]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:  # noqa: S603  our own interpreter
        try:
            yield
        finally:
            assert process.stdin is not None  # noqa: S101  it is piped
            process.stdin.close()
            process.wait()
