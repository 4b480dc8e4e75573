"""Who may change a plan folder, and which folders within it somebody is at.

Locks of the system on the folders themselves (`flock`): they leave no file behind, and end with the process however it ends.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from edgeplan.support.lazy import lazily

if TYPE_CHECKING:
    import shutil
    import tempfile
else:  # who only runs a plan changes no folder
    shutil, tempfile = lazily("shutil"), lazily("tempfile")

#: Of what nobody can be writing any more, where the system does not tell.
STALE_SECONDS = 600.0


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Change files of a plan folder that belong together, waiting for other processes that do. Who only reads does not wait."""
    descriptor = _locked(folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _locked(folder: Path) -> int:
    """A descriptor of a folder, locked; of the one that is there by then, should another one have taken its place meanwhile."""
    while True:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _lock(descriptor, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


@contextmanager
def work_folder(folder: Path, prefix: str) -> Iterator[Path]:
    """A folder within a plan folder to build in, gone afterwards. Those of processes that were killed are deleted first."""
    with changing(folder):  # nobody sees the new one before it is locked
        for other in folder.glob(f"{prefix}*"):
            if _abandoned(other):
                shutil.rmtree(other, ignore_errors=True)
        made = Path(tempfile.mkdtemp(dir=folder, prefix=prefix))
        descriptor = os.open(made, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        _lock(descriptor, fcntl.LOCK_EX)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(descriptor)


def _lock(descriptor: int, how: int) -> bool:
    """Lock a descriptor; false where the file system has no locks, and one process at a time is up to the user."""
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True


def _abandoned(folder: Path) -> bool:
    """Tell whether nobody is building there: it is not locked or, where the system has no such locks, old."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:  # its process has deleted it meanwhile
        return False
    try:
        return _lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB) or stale(os.fstat(descriptor))
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)


def stale(status: os.stat_result) -> bool:
    """Tell whether something was last written to so long ago that nobody can be at it."""
    return time.time() - status.st_mtime > STALE_SECONDS
