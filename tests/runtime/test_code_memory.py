"""Code of generated kernels from one region. What it changes holds for a process, so each test has one of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

from edgeplan.errors import DeviceError
from edgeplan.runtime.library import open_library

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


@pytest.fixture(autouse=True, scope="module")
def _library() -> None:
    try:
        open_library()
    except DeviceError:
        pytest.skip("oneDNN is not installed")
    if subprocess.run([sys.executable, "-c", _BEGIN], capture_output=True, check=False).returncode:
        pytest.skip("this system does not tell where imports are kept, or the library takes memory in another way")


def _in_fresh_process(body: str) -> str:
    done = subprocess.run([sys.executable, "-c", _BEGIN + body], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_kernels_are_generated_in_the_region_and_leave_it() -> None:
    body = """
from edgeplan.runtime import constants
from edgeplan.runtime.dnnl import Dnnl

dnnl = Dnnl()
dnnl.set_primitive_cache(0)
seen = []

class Watched(type(dnnl)):
    def run(self, *arguments):
        super().run(*arguments)
        seen.append(used())

dnnl.__class__ = Watched
dnnl.warm_up(1)
print(*seen, used())
"""
    made, left = map(int, _in_fresh_process(body).split())
    assert made > 0
    assert left == 0, "a primitive that is gone gives its slot back"


def test_kernels_that_live_until_the_process_ends_are_given_back_then() -> None:
    body = """
from edgeplan.runtime.dnnl import Dnnl

dnnl = Dnnl()
dnnl.warm_up(1)  # what it made stays in the library's cache, which is emptied behind Python's last object
print(used())
"""
    assert int(_in_fresh_process(body)) > 0


def test_slots_are_distinct_zeroed_and_can_be_taken_again() -> None:
    body = """
got = [take(0, SLOT_BYTES, BOTH, PRIVATE, -1, 0) for _ in range(3)]
assert got == [base + k * SLOT_BYTES for k in range(3)]
ctypes.c_uint64.from_address(got[1]).value = 7
assert allow(got[1], SLOT_BYTES, ALL) == 0 and permissions(got[1]) == "rwxp"
assert give(got[1], SLOT_BYTES) == 0 and used() == 2
assert take(0, SLOT_BYTES, BOTH, PRIVATE, -1, 0) == got[1]
print(ctypes.c_uint64.from_address(got[1]).value)
"""
    assert _in_fresh_process(body) == "0\n"


def test_anything_else_is_the_systems() -> None:
    body = """
inside = range(base, base + SLOTS * SLOT_BYTES)
for asked in ((0, SLOT_BYTES + 4096, BOTH, PRIVATE, -1, 0), (0, SLOT_BYTES, mmap.PROT_READ, PRIVATE, -1, 0)):
    address = take(*asked)
    assert address not in inside and permissions(address) == ("rw-p" if asked[2] == BOTH else "r--p")
    assert allow(address, 4096, mmap.PROT_READ) == 0 and permissions(address) == "r--p"
    assert give(address, asked[1]) == 0 and permissions(address) is None
assert used() == 0
"""
    _in_fresh_process(body)


def test_beyond_the_last_slot_the_system_is_asked() -> None:
    body = """
got = [take(0, SLOT_BYTES, BOTH, PRIVATE, -1, 0) for _ in range(SLOTS + 1)]
assert used() == SLOTS and permissions(got[-1]) == "rw-p"
assert not base <= got[-1] < base + SLOTS * SLOT_BYTES
"""
    _in_fresh_process(body)


def test_a_slot_with_other_permissions_is_not_handed_out_again() -> None:
    body = """
first = take(0, SLOT_BYTES, BOTH, PRIVATE, -1, 0)
assert allow(first, SLOT_BYTES, mmap.PROT_READ | mmap.PROT_EXEC) == 0 and permissions(first) == "r-xp"
assert give(first, SLOT_BYTES) == 0
assert take(0, SLOT_BYTES, BOTH, PRIVATE, -1, 0) == first + SLOT_BYTES
"""
    _in_fresh_process(body)


def test_threads_never_share_a_slot() -> None:
    body = """
from concurrent.futures import ThreadPoolExecutor

def some(_):
    return [take(0, SLOT_BYTES, BOTH, PRIVATE, -1, 0) for _ in range(SLOTS // 8)]

with ThreadPoolExecutor(8) as pool_of_threads:
    got = [address for found in pool_of_threads.map(some, range(8)) for address in found]
assert sorted(got) == [base + k * SLOT_BYTES for k in range(SLOTS)]
"""
    _in_fresh_process(body)
