"""Finds how much memory a process may still take: the least that the system and the memory cgroups around it leave.

A container is killed without a word where it takes more than its cgroup allows, however much the machine has. Page cache counts
as free: the kernel gives it up first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgeplan.support.cgroups import PROC, ROOT, fields, groups, number
from edgeplan.support.machine import memory_bytes

_KIB = 1024
_NAMES = {  # limit, usage, and the page cache in the statistics, by version of cgroups
    2: ("memory.max", "memory.current", ("active_file", "inactive_file")),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file")),
}


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Holds how much memory is left, and what limits it.

    Attributes:
        size: bytes.
        limited_by: what leaves no more, in words: this machine, or a memory cgroup and its limit.
    """

    size: int
    limited_by: str


def free_memory(proc: Path = PROC, root: Path = ROOT) -> FreeMemory:
    """Return the least memory that the machine and the memory cgroups of this process leave.

    Args:
        proc: where the kernel tells about processes.
        root: folder that mount points are below.
    """
    return min(_left(proc, root), key=lambda found: found.size)


def _left(proc: Path, root: Path) -> Iterator[FreeMemory]:
    yield FreeMemory(_available(proc), "this machine")
    for version, folder in groups("memory", proc, root):
        limit_name, usage_name, cached = _NAMES[version]
        limit, usage = number(folder / limit_name), number(folder / usage_name)
        if limit is None or usage is None:  # "max", the root, or a kernel that does not tell
            continue
        statistics = fields(folder / "memory.stat")
        reclaimable = sum(statistics.get(name, 0) for name in cached)
        left = max(0, limit - max(0, usage - reclaimable))
        yield FreeMemory(left, f"the memory cgroup of this process, whose limit is {limit / (1 << 20):.2f} MiB")


def _available(proc: Path) -> int:
    """Return the kernel's estimate of memory that is free without swapping, else all physical memory."""
    kib = fields(proc / "meminfo").get("MemAvailable:")
    return memory_bytes() if kib is None else kib * _KIB
