"""Pages of oneDNN in a process that runs a plan of memory, and the limit of memory around it."""

from __future__ import annotations

import ctypes
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from streamed_models import ran, streamed
from system_files import system_of

from depth import examples
from edgeplan import native
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.support.cgroups import memory_limit

LANE = "fast"  # see tests/conftest.py

_PAGE_BYTES = 4096
_MOUNTS = {
    1: "35 31 0:32 {top} /sys/fs/cgroup/memory rw - cgroup c rw,memory\n33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup c rw,cpu\n",
    2: "41 31 0:38 {top} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
}
_FILES = {1: ("sys/fs/cgroup/memory", "memory.limit_in_bytes"), 2: ("sys/fs/cgroup", "memory.max")}
_LINES = {1: "4:{names}:{path}\n1:cpu:/other\n", 2: "0::{path}\n"}


def _mapped_bytes(library: str) -> int:
    """Bytes that this process has in memory of what the library's file holds and nobody wrote to."""
    found, of_file, rss = 0, False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, *rest = line.split()
        if not name.endswith(":"):
            of_file = "w" not in rest[0] and line.endswith(os.path.realpath(library))
        elif of_file and name == "Rss:":
            rss = 1024 * int(rest[0])
        elif of_file and name == "Anonymous:" and rest[0] == "0":
            found += rss
    return found


def test_pages_that_a_plan_needs_are_written_down_and_others_are_dropped(dnnl: Dnnl, tmp_path: Path) -> None:
    found = streamed(dnnl, "plain", tmp_path, 8192)
    with found.session(dnnl, found.resident(), records=True) as session:
        assert _mapped_bytes(dnnl.info.path) < 1 << 20  # making kernels has run megabytes of code
        ran(session, found.inputs, 2)
        of_stages = [session.pages(running=running) for running in (False, True)]
    pages = Path(dnnl.info.path).stat().st_size // _PAGE_BYTES
    for runs in of_stages:
        pairs = list(zip(runs[::2], runs[1::2], strict=True))
        assert pairs
        assert all(count > 0 for _, count in pairs)
        assert all(first + count < later for (first, count), (later, _) in pairwise(pairs))
        assert pairs[-1][0] + pairs[-1][1] <= pages
    making, running = (sum(runs[1::2]) for runs in of_stages)
    assert running < making < pages


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    version=st.sampled_from([1, 2]),
    limits=st.lists(st.sampled_from(["max", 1 << 20, 5 << 20, 1 << 62, "", None]), max_size=3),
    top=st.sampled_from(["/", "/g0", "/elsewhere"]),
    names=st.sampled_from(["memory", "cpu,memory", "cpu"]),
    outside=st.booleans(),
)
def test_the_limit_of_memory_is_found_as_planning_finds_it(
    tmp_path_factory: pytest.TempPathFactory, version: int, limits: list[object], top: str, names: str, outside: bool
) -> None:
    path = "/".join(["", *(f"g{k}" for k in range(len(limits)))]) or "/"
    root, file = _FILES[version]
    groups = {root: {file: 7 << 20}} if outside else {}
    for k, limit in enumerate(limits):
        place = "/".join([root, *(f"g{below}" for below in range(k + 1))])
        groups[place] = {} if limit is None else {file: limit}
    lines = _LINES[version].format(path=path if not outside else f"{path}/../x", names=names)
    folder = system_of(tmp_path_factory.mktemp("system"), groups, lines, _MOUNTS[version].format(top=top))
    found = native.function("memory_limit", ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p)
    assert found(os.fsencode(folder / "proc"), os.fsencode(folder)) == (memory_limit(folder / "proc", folder) or -1)
