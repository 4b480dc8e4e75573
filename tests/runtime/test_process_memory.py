"""Memory of a process: code of generated kernels from one region, pages of oneDNN, and the limit around it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
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
from edgeplan.support.cgroups import groups as groups_around

LANE = "processes"  # see tests/conftest.py

_BEGIN = """
import ctypes, mmap
from edgeplan import native
from edgeplan.runtime.library import open_library

SLOT_BYTES, SLOTS = 256 << 10, 512
used = native.function("code_used", ctypes.c_int64)
pool_code = native.function("pool_code", ctypes.c_int, ctypes.c_char_p)
assert pool_code(open_library()[1].path.encode()) and used() == 0
base = native.function("code_region", ctypes.c_int64)()
words = ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64
take = ctypes.CFUNCTYPE(*words[:1], *words)(native.address("code_map"))
allow = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int)(native.address("code_protect"))
give = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)(native.address("code_unmap"))
BOTH, ALL, PRIVATE = mmap.PROT_READ | mmap.PROT_WRITE, 7, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS

def permissions(address):
    for line in open("/proc/self/maps"):
        start, end = (int(bound, 16) for bound in line.split()[0].split("-"))
        if start <= address < end:
            return line.split()[1]
"""


_REGION = {
    "kernels are generated in it, and a primitive that is gone gives its slot back": """
from edgeplan.runtime.dnnl import Dnnl

seen = []

class Watched(Dnnl):
    def run(self, *arguments):
        super().run(*arguments)
        seen.append(used())

dnnl = Watched()
dnnl.set_primitive_cache(0)
dnnl.warm_up(1)
assert seen[0] > 0 and used() == 0
""",
    "kernels that live until the process ends are given back then": """
from edgeplan.runtime.dnnl import Dnnl

dnnl = Dnnl()
dnnl.warm_up(1)  # what it made stays in the library's cache, which is emptied behind Python's last object
assert used() > 0
""",
    "slots are distinct and zeroed, and can be taken again": """
got = [take(0, SLOT_BYTES, BOTH, PRIVATE, -1, 0) for _ in range(3)]
assert got == [base + k * SLOT_BYTES for k in range(3)]
ctypes.c_uint64.from_address(got[1]).value = 7
assert allow(got[1], SLOT_BYTES, ALL) == 0 and permissions(got[1]) == "rwxp"
assert give(got[1], SLOT_BYTES) == 0 and used() == 2
assert take(0, SLOT_BYTES, BOTH, PRIVATE, -1, 0) == got[1]
assert ctypes.c_uint64.from_address(got[1]).value == 0
""",
    "anything else is the system's": """
inside = range(base, base + SLOTS * SLOT_BYTES)
for asked in ((0, SLOT_BYTES + 4096, BOTH, PRIVATE, -1, 0), (0, SLOT_BYTES, mmap.PROT_READ, PRIVATE, -1, 0)):
    address = take(*asked)
    assert address not in inside and permissions(address) == ("rw-p" if asked[2] == BOTH else "r--p")
    assert allow(address, 4096, mmap.PROT_READ) == 0 and permissions(address) == "r--p"
    assert give(address, asked[1]) == 0 and permissions(address) is None
assert used() == 0
""",
    "beyond the last slot the system is asked": """
got = [take(0, SLOT_BYTES, BOTH, PRIVATE, -1, 0) for _ in range(SLOTS + 1)]
assert used() == SLOTS and permissions(got[-1]) == "rw-p"
assert not base <= got[-1] < base + SLOTS * SLOT_BYTES
""",
    "a slot with other permissions is not handed out again": """
first = take(0, SLOT_BYTES, BOTH, PRIVATE, -1, 0)
assert allow(first, SLOT_BYTES, mmap.PROT_READ | mmap.PROT_EXEC) == 0 and permissions(first) == "r-xp"
assert give(first, SLOT_BYTES) == 0
assert take(0, SLOT_BYTES, BOTH, PRIVATE, -1, 0) == first + SLOT_BYTES
""",
    "threads never share a slot": """
from concurrent.futures import ThreadPoolExecutor

def some(_):
    return [take(0, SLOT_BYTES, BOTH, PRIVATE, -1, 0) for _ in range(SLOTS // 8)]

with ThreadPoolExecutor(8) as pool_of_threads:
    got = [address for found in pool_of_threads.map(some, range(8)) for address in found]
assert sorted(got) == [base + k * SLOT_BYTES for k in range(SLOTS)]
""",
}


@pytest.fixture(scope="module")
def _pooled(dnnl: Dnnl) -> None:
    assert dnnl.info.path
    if subprocess.run([sys.executable, "-c", _BEGIN], capture_output=True, check=False).returncode:
        pytest.skip("this system does not tell where imports are kept, or the library takes memory in another way")


@pytest.mark.usefixtures("_pooled")
@pytest.mark.parametrize("what", _REGION)
def test_the_region_of_code(what: str) -> None:
    """In a process of its own: what is changed holds for a process."""
    done = subprocess.run([sys.executable, "-c", _BEGIN + _REGION[what]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


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
    own = [group / Path(file).name for _, group in groups_around("memory", folder / "proc", folder)]
    told = [int(limit) for path in own if path.is_file() and (limit := path.read_text().strip()).isdigit()]
    told = [limit for limit in told if limit < 1 << 60]  # version 1 tells of a number near 2^63 where there is no limit
    found = native.function("memory_limit", ctypes.c_int64, ctypes.c_char_p, ctypes.c_char_p)
    assert found(os.fsencode(folder / "proc"), os.fsencode(folder)) == min(told, default=-1)
