"""Memory that a process may still take: what the system has left, and what the memory cgroups around the process leave.

A container is killed without a word where it takes more than its cgroup allows, however much the machine has. Page cache counts
as free: the kernel gives it up first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeplan.devices.machine import memory_bytes

_KIB = 1024
_NAMES = {  # limit, usage, and the page cache in the statistics, by version of cgroups
    2: ("memory.max", "memory.current", ("active_file", "inactive_file")),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
}


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Memory that is left, and who says so.

    Attributes:
        size: bytes.
        limited_by: what leaves no more, in words: this machine, or a memory cgroup and its limit.
    """

    size: int
    limited_by: str


def free_memory(proc: Path = Path("/proc"), root: Path = Path("/")) -> FreeMemory:
    """The least that the machine and the memory cgroups of this process leave.

    Args:
        proc: where the kernel tells about processes.
        root: folder that mount points are below.
    """
    return min(_left(proc, root), key=lambda found: found.size)


def _left(proc: Path, root: Path) -> Iterator[FreeMemory]:
    yield FreeMemory(_available(proc), "this machine")
    for version, folder in _groups(proc, root):
        limit_name, usage_name, cached = _NAMES[version]
        limit, usage = _number(folder / limit_name), _number(folder / usage_name)
        if limit is None or usage is None:  # "max", the root, or a kernel that does not tell
            continue
        statistics = _fields(folder / "memory.stat")
        reclaimable = sum(statistics.get(name, 0) for name in cached)
        left = max(0, limit - max(0, usage - reclaimable))
        yield FreeMemory(left, f"the memory cgroup of this process, whose limit is {limit / (1 << 20):.2f} MiB")


def _available(proc: Path) -> int:
    """What the kernel estimates to be free without swapping, else all physical memory."""
    kib = _fields(proc / "meminfo").get("MemAvailable:")
    return memory_bytes() if kib is None else kib * _KIB


def _groups(proc: Path, root: Path) -> Iterator[tuple[int, Path]]:
    """Version and folder of each memory cgroup that holds this process, from its own upwards."""
    mounts = dict(_mounts(proc))
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        version = 2 if not controllers else 1 if "memory" in controllers.split(",") else 0
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


def _mounts(proc: Path) -> Iterator[tuple[int, tuple[Path, Path]]]:
    """Version of cgroups, with where its memory controller is mounted and which group that is the top of."""
    for line in _lines(proc / "self/mountinfo"):
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        version = 2 if kinds[0] == "cgroup2" else 1 if kinds[0] == "cgroup" and "memory" in kinds[-1].split(",") else 0
        if version:
            yield version, (Path(fields[4]), Path(fields[3]))


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []


def _fields(path: Path) -> dict[str, int]:
    split = (line.split() for line in _lines(path))
    return {parts[0]: int(parts[1]) for parts in split if len(parts) > 1 and parts[1].isdigit()}


def _number(path: Path) -> int | None:
    (text, *_) = _lines(path) or [""]
    return int(text) if text.isdigit() else None
