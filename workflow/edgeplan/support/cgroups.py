"""Finds the control groups around this process, of either version, and how much memory they and the system leave it.

A container is killed without a word where it takes more than its cgroup allows, however much the machine has. Page cache counts
as free: the kernel gives it up first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeplan.support.machine import memory_bytes

PROC, ROOT = Path("/proc"), Path("/")


def groups(controller: str, proc: Path = PROC, root: Path = ROOT) -> Iterator[tuple[int, Path]]:
    """Yield version and folder of each group of a controller, `memory` or `cpu`, around this process, from its own upwards.

    The kernel tells about processes below `proc`, and mount points are below `root`, as everywhere here.
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


def _number(path: Path) -> int | None:
    """Return the whole number that a file holds; None where it holds none, as for "max"."""
    (text, *_) = lines(path) or [""]
    return int(text) if text.isdigit() else None


_KIB = 1024
_NAMES = {  # limit, usage, and the page cache in the statistics, by version of cgroups
    2: ("memory.max", "memory.current", ("active_file", "inactive_file")),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
}


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Bytes that are left, and what leaves no more, in words: this machine, or a memory cgroup and its limit."""

    size: int
    limited_by: str


def free_memory(proc: Path = PROC, root: Path = ROOT) -> FreeMemory:
    """Return the least memory that the machine and the memory cgroups of this process leave."""
    return min(_left(proc, root), key=lambda found: found.size)


def _left(proc: Path, root: Path) -> Iterator[FreeMemory]:
    kib = fields(proc / "meminfo").get("MemAvailable:")  # the kernel's estimate of what is free without swapping
    yield FreeMemory(memory_bytes() if kib is None else kib * _KIB, "this machine")
    for version, folder in groups("memory", proc, root):
        limit_name, usage_name, cached = _NAMES[version]
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is None or usage is None:  # "max", the root, or a kernel that does not tell
            continue
        statistics = fields(folder / "memory.stat")
        reclaimable = sum(statistics.get(name, 0) for name in cached)
        left = max(0, limit - max(0, usage - reclaimable))
        yield FreeMemory(left, f"the memory cgroup of this process, whose limit is {limit / (1 << 20):.2f} MiB")
