"""Makes temporary folders that are gone afterwards, those of processes that were killed included.

A folder is locked by the process that uses it (`flock`), and the system frees the lock when the process ends, however it ends.
Who makes a folder deletes those beside it that nobody holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable
from pathlib import Path

#: What names begin with where nothing else says whose they are.
_PREFIX = "edgeplan-scratch-"
_SUFFIX = re.compile("[a-z0-9_]{8}")  # of `tempfile`


class ScratchFolder(tempfile.TemporaryDirectory[str]):
    """A scratch folder is temporary, as of `tempfile`; its leftovers are removed by the next one.

    Args:
        what: purpose of the folder, a part of its name.
        within: the folder that it is made in, where `what` is the beginning of its name; None: that of temporary files.
    """

    def __init__(self, what: str, within: Path | None = None) -> None:
        begin, prefix = (_PREFIX, f"{_PREFIX}{what}-") if within is None else (what, what)
        place = Path(tempfile.gettempdir()) if within is None else within

        def make() -> Path:
            super(ScratchFolder, self).__init__(prefix=prefix, dir=place)
            return Path(self.name)

        with contextlib.suppress(OSError):  # the place may be too full to look at, or another user's
            beside = [path for path in place.iterdir() if path.name.startswith(begin) and _SUFFIX.fullmatch(path.name[-8:])]
            delete_abandoned(beside, shutil.rmtree)
        _, descriptor = make_held(make)
        weakref.finalize(self, os.close, descriptor)


def make_held(make: Callable[[], Path]) -> tuple[Path, int]:
    """Have a new folder made and lock it; a descriptor holds the lock until it is closed."""
    while True:
        path = make()
        with contextlib.suppress(FileNotFoundError):  # somebody took it for a leftover before it was locked
            descriptor = _opened(path)
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if path.exists():
                return path, descriptor
            os.close(descriptor)


def delete_abandoned(folders: Iterable[Path], delete: Callable[[Path], object]) -> None:
    """Delete folders of this user (`make_held`) that nobody holds; what cannot be locked or deleted stays."""
    for path in folders:
        with contextlib.suppress(OSError):
            descriptor = _opened(path)
            try:
                if os.fstat(descriptor).st_uid == os.getuid():
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    delete(path)
            finally:
                os.close(descriptor)


def _opened(folder: Path) -> int:
    return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
