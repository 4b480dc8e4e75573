"""Where threads take memory from."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

LANE = "processes"  # see tests/conftest.py

_GROWTH = """
import ctypes, os, sys, threading, time
from edgeplan.runtime.process import grow_heaps

threads, before = int(sys.argv[2]), len(os.listdir("/proc/self/task"))
if sys.argv[1] == "grown":
    assert grow_heaps(threads)
while len(os.listdir("/proc/self/task")) > before:  # a heap is free once its thread has ended for the system, too
    time.sleep(1e-3)
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
together = threading.Barrier(threads + 1)

def writable():
    lines = (line.split() for line in open("/proc/self/maps"))
    bounds = [place.split("-") for place, rights, *_ in lines if rights.startswith("rw")]
    return sum(int(end, 16) - int(start, 16) for start, end in bounds)

def work():
    libc.malloc(100)  # a heap of its own begins with some
    together.wait()  # all are there
    together.wait()
    for _ in range(1000):
        libc.malloc(4096)
    together.wait()
    together.wait()  # none has ended

workers = [threading.Thread(target=work) for _ in range(threads)]
for worker in workers:
    worker.start()
together.wait()
before = writable()
together.wait()
together.wait()
print(writable() - before)
together.wait()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have other heaps")
@pytest.mark.parametrize("threads", [1, 3])
def test_the_heaps_of_threads_have_room_from_the_start(threads: int) -> None:
    def grown_bytes(how: str) -> int:
        command = [sys.executable, "-c", _GROWTH, how, str(threads)]
        return int(subprocess.run(command, capture_output=True, check=True).stdout)

    taken = threads * 3_500_000  # of the 4 MB that are asked for, since a heap begins with some
    assert grown_bytes("usual") > taken > 10 * grown_bytes("grown")


_REFUSED = """
import os, resource
from edgeplan.runtime.process import grow_heaps

tasks = len(os.listdir("/proc/self/task"))
assert grow_heaps(1)
taken = int(open("/proc/self/statm").read().split()[0]) * os.sysconf("SC_PAGESIZE")
resource.setrlimit(resource.RLIMIT_AS, (taken + (32 << 20),) * 2)  # no room for the stacks of so many
assert not grow_heaps(64)
while len(os.listdir("/proc/self/task")) > tasks:  # those that had started end
    pass
"""


def test_a_system_without_more_threads_is_no_failure() -> None:
    subprocess.run([sys.executable, "-c", _REFUSED], check=True)
