"""Finds the control groups around this process, of either version, and the files in them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

PROC, ROOT = Path("/proc"), Path("/")
_UNLIMITED_BYTES = 1 << 60  # version 1 tells of a number near 2^63 where there is no limit


def groups(controller: str, proc: Path = PROC, root: Path = ROOT) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of each group of a controller that holds this process, from its own upwards.

    Args:
        controller: `memory` or `cpu`.
        proc: where the kernel tells about processes.
        root: folder that mount points are below.
    """
    mounts = dict(_mounts(controller, proc))
    for line in lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        version = 2 if not controllers else 1 if controller in controllers.split(",") else 0
        if version not in mounts:
            continue
        point, top = mounts[version]
        inner = Path(path)
        # inside a container the path may be that of the host, of which nothing but the container's own group is mounted
        below = inner.relative_to(top) if inner.is_relative_to(top) and ".." not in inner.parts else Path()
        mounted = root / point.relative_to("/")
        folder = mounted / below
        while True:
            if folder.is_dir():
                yield version, folder
            if folder == mounted:
                break
            folder = folder.parent


def memory_limit(proc: Path = PROC, root: Path = ROOT) -> int | None:
    """Return the least limit of memory (bytes) that a group around this process sets; None where none does.

    Args:
        proc: where the kernel tells about processes.
        root: folder that mount points are below.
    """
    names = {1: "memory.limit_in_bytes", 2: "memory.max"}
    told = (number(folder / names[version]) for version, folder in groups("memory", proc, root))
    limits = [limit for limit in told if limit is not None and limit < _UNLIMITED_BYTES]
    return min(limits, default=None)


def _mounts(controller: str, proc: Path) -> Iterator[tuple[int, tuple[Path, Path]]]:
    """Yield the version of control groups, with where the controller is mounted and which group that is the top of."""
    for line in lines(proc / "self/mountinfo"):
        before, _, after = line.partition(" - ")
        entries, kinds = before.split(), after.split()
        version = 2 if kinds[0] == "cgroup2" else 1 if kinds[0] == "cgroup" and controller in kinds[-1].split(",") else 0
        if version:
            yield version, (Path(entries[4]), Path(entries[3]))


def lines(path: Path) -> list[str]:
    """Return the lines of a file; none where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def fields(path: Path) -> dict[str, int]:
    """Return the lines of a file that are a name and a whole number, as both."""
    split = (line.split() for line in lines(path))
    return {parts[0]: int(parts[1]) for parts in split if len(parts) > 1 and parts[1].isdigit()}


def number(path: Path) -> int | None:
    """Return the whole number that a file holds; None where it holds none, as for "max"."""
    (text, *_) = lines(path) or [""]
    return int(text) if text.isdigit() else None
