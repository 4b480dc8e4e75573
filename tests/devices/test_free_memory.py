"""Memory that is left is what the machine and every memory cgroup around the process leave; a budget above it is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from system_files import system_of

from edgeplan import plan_memory
from edgeplan.chapters.memory import budget
from edgeplan.errors import ParamsError
from edgeplan.support.cgroups import FreeMemory, free_memory

MIB = 1 << 20
_V1 = (
    "35 31 0:32 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"
)
_V2 = "41 31 0:38 {top} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
_MEMINFO = "MemTotal: 4194304 kB\nMemFree: 100 kB\nMemAvailable: 2097152 kB\n"  # 2 GiB


def _one(limit: object, used: int, cached: int = 0) -> dict[str, object]:
    """The files of a group of cgroup v1."""
    stat = f"cache 1\ntotal_active_file {cached}\ntotal_inactive_file 0"
    return {"memory.limit_in_bytes": limit, "memory.usage_in_bytes": used, "memory.stat": stat}


def _two(limit: object, used: int, cached: int = 0) -> dict[str, object]:
    """The files of a group of cgroup v2."""
    return {"memory.max": limit, "memory.current": used, "memory.stat": f"anon 5\nactive_file 0\ninactive_file {cached}"}


V1, V2 = "sys/fs/cgroup/memory", "sys/fs/cgroup"
_FREE_V1 = 1 << 62


@pytest.mark.parametrize(
    ("groups", "cgroup", "mounts", "left"),
    [
        ({}, "", "", 2048),  # no control groups at all
        ({f"{V1}/box": _one(300 * MIB, 100 * MIB, 60 * MIB)}, "4:cpu,memory:/box\n", _V1.format(top="/"), 260),
        ({f"{V1}/box": _one(_FREE_V1, 100 * MIB)}, "4:memory:/box\n", _V1.format(top="/"), 2048),
        # the limit of a group above binds, too
        ({f"{V1}/a": _one(150 * MIB, 50 * MIB), f"{V1}/a/b": _one(_FREE_V1, 9)}, "4:memory:/a/b\n", _V1.format(top="/"), 100),
        # a container sees its own group as the top, under the path that the host has for it
        ({V1: _one(300 * MIB, 100 * MIB)}, "4:memory:/docker/abc\n", _V1.format(top="/docker/abc"), 200),
        ({V1: _one(300 * MIB, 100 * MIB)}, "4:memory:/docker/abc\n", _V1.format(top="/elsewhere"), 200),
        ({f"{V2}/box": _two(300 * MIB, 100 * MIB, 90 * MIB)}, "0::/box\n", _V2.format(top="/"), 290),
        ({f"{V2}/box": _two("max", 100 * MIB)}, "0::/box\n", _V2.format(top="/"), 2048),
        ({f"{V2}/a": _two(150 * MIB, 50 * MIB), f"{V2}/a/b": _two("max", 9)}, "0::/a/b\n", _V2.format(top="/"), 100),
        ({f"{V2}/box": _two(300 * MIB, 400 * MIB)}, "0::/box\n", _V2.format(top="/"), 0),
        ({f"{V2}/box": {"memory.max": 300 * MIB}}, "0::/box\n", _V2.format(top="/"), 2048),  # a kernel that tells half
        ({f"{V2}/box": _two(300 * MIB, 0)}, "0::/../..\n", _V2.format(top="/"), 2048),  # a group outside of what is mounted
    ],
)
def test_what_is_left(tmp_path: Path, groups: Mapping[str, Mapping[str, object]], cgroup: str, mounts: str, left: int) -> None:
    system_of(tmp_path, groups, cgroup, mounts)
    (tmp_path / "proc/meminfo").write_text(_MEMINFO)
    found = free_memory(tmp_path / "proc", tmp_path)
    assert found.size == left * MIB
    assert ("this machine" in found.limited_by) == (left == 2048)


def test_a_budget_above_what_is_left_is_refused_before_the_model_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(budget, "free_memory", lambda: FreeMemory(300 * MIB, "the memory cgroup of this process"))
    budget.require_free(budget.Budget.parsed("300MiB"), "--budget")
    with pytest.raises(ParamsError, match=r"301\.00 MiB is more than the 300\.00 MiB that are left by the memory cgroup"):
        plan_memory(tmp_path / "none.onnx", tmp_path / "plan", "301MiB")
