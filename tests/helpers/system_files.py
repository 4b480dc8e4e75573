"""A system that is a folder of files, as tests of control groups read it, and processes that live with a mark."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from pathlib import Path

MARK = "EDGEPLAN_TEST_FAMILY"


def system_of(folder: Path, groups: Mapping[str, Mapping[str, object]], cgroup: str, mounts: str) -> Path:
    """Write /proc, and control groups by the folder of each."""
    (folder / "proc/self").mkdir(parents=True)
    (folder / "proc/self/cgroup").write_text(cgroup)
    (folder / "proc/self/mountinfo").write_text(mounts)
    for path, files in groups.items():
        (folder / path).mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (folder / path / name).write_text(f"{content}\n")
    return folder


def family(mark: str) -> dict[int, str]:
    """What lives with a mark in its environment, which all inherit: command lines by number; of what has ended none is read."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"{MARK}={mark}".encode() in (path / "environ").read_bytes():
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def left(mark: str, seconds: float) -> dict[int, str]:
    """What still lives after so many seconds."""
    deadline = time.monotonic() + seconds
    while (found := family(mark)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return found
