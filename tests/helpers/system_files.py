"""A system that is a folder of files, as tests of control groups read it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


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
