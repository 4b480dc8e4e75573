"""Stamps of files: what the file system says of them changes when anybody writes to them."""

from __future__ import annotations

import os
import time
from pathlib import Path

_CLOCK_SECONDS = 0.02  # more than a tick of the slowest kernel clock (10 ms)


def stamp(status: os.stat_result) -> tuple[int, int, int, int, int]:
    """Return a stamp that changes when anybody writes to a file, replaces it or moves it: its number, size and times.

    The last is set by the kernel alone (ctime), so that a file whose time of modification was put back is noticed too. Damage
    below the file system is not, for which file systems and disks have checksums of their own. Files of the model are trusted
    in the same way.
    """
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def settled_stamp(path: Path) -> tuple[int, int, int, int, int]:
    """The stamp of a file just written, once a later change would show in it: clocks of file systems are coarse."""
    time.sleep(_CLOCK_SECONDS)
    return stamp(path.stat())
