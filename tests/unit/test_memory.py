"""Where threads take memory from."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

_LARGEST_RESERVE = """
import sys, threading
from edgeplan.runtime.memory import share_heap

if sys.argv[1] == "shared":
    assert share_heap()
found = []

def work():
    kept = [bytes(1000) for _ in range(1000)]
    reserved = [line.split()[0].split("-") for line in open("/proc/self/maps") if " ---p " in line]
    found.append(max((int(end, 16) - int(start, 16) for start, end in reserved), default=0))

thread = threading.Thread(target=work)
thread.start()
thread.join()
print(found[0])
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries have one heap")
def test_threads_share_the_first_heap() -> None:
    def reserved(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", _LARGEST_RESERVE, how], capture_output=True, check=True)
        return int(done.stdout)

    heap = 32 << 20  # a heap of a thread's own reserves 64 MiB
    assert reserved("own") > heap > reserved("shared")
