"""Where threads take memory from."""

from __future__ import annotations

import platform
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from edgeplan.runtime import heaps

_GROWTH = """
import ctypes, sys, threading
from edgeplan.runtime.heaps import grow_heaps

threads = int(sys.argv[2])
if sys.argv[1] == "grown":
    assert grow_heaps(threads)
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


def test_a_system_without_more_threads_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[threading.Thread] = []
    plain = threading.Thread.start

    def start(self: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(self)
        plain(self)

    # the process of the tests keeps its settings
    monkeypatch.setattr("ctypes.CDLL", lambda _: SimpleNamespace(mallopt=lambda *_: 1))
    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(heaps, "grow_heap", lambda: None)
    assert not heaps.grow_heaps(3)
    started[0].join(10)
    assert not started[0].is_alive()
