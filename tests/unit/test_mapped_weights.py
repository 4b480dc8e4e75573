"""Weights mapped from a cache that shrinks or cannot be read while it is used, in processes that may die of it."""

from __future__ import annotations

import errno
import mmap
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx_export import save_onnx
from edgeplan.planning.cold_start.plan import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.linked import LinkedProgram, read_linked
from edgeplan.runtime.plan_folder import build_plan_folder

# A line for each size that the cache is cut to: whether the outputs are right, and what was said of the cache.
_RUNS = """
import ctypes, os, sys
from pathlib import Path
import numpy as np
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native import words

folder, when, dnnl = Path(sys.argv[1]), sys.argv[2], Dnnl()
cut = lambda: os.truncate(folder / "weights.cache", size)

@ctypes.CFUNCTYPE(ctypes.c_long, *[ctypes.c_long] * 5)
def all_in_memory(number, descriptor, part, told, flags):  # as `cachestat` counts pages whose reading failed
    ctypes.c_int64.from_address(told).value = 1 << 40
    return 0

class Shrinking(ColdSession):
    def _reading_ahead(self):  # the cache is checked, open and mapped, and none of its weights was fetched
        if when != "prepared":
            cut()
        if when == "counted":
            self._shared.objects.places[words.FN_SYSTEM] = ctypes.cast(all_in_memory, ctypes.c_void_p).value
        return super()._reading_ahead()

def run(session):
    random = np.random.default_rng(0)
    return session.run({b.name: random.standard_normal(b.shape, np.float32) for b in session.program.inputs})

with ColdSession(dnnl, folder, threads=2) as session:
    wanted = run(session)
for size in map(int, sys.argv[3:]):
    with Shrinking(dnnl, folder, threads=2) as session:
        found = run(session)
        if when == "prepared":
            cut()
            found = run(session)
        right = all(np.abs(found[n] - wanted[n]).max() <= 1e-4 * np.abs(wanted[n]).max() for n in wanted)
        print("right" if right else "wrong", session.cache_problem, flush=True)
"""


@pytest.fixture
def folder(dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path) -> Path:
    """A plan whose second convolution has weights of more than 2 MiB, which are mapped in several parts."""
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.conv_bn(b.input, 256, 3, 2)
    graph = b.build(b.fc(b.flatten(b.gap(b.conv_bn(x, 256, 3, 2))), 7))
    model = save_onnx(graph, tmp_path / "net.onnx")
    return build_plan_folder(dnnl, model, planned(model, graph, sources=["cached_mmap"], widen_from=-1), tmp_path / "plan")


def _runs(folder: Path, when: str, *sizes: int) -> list[str]:
    command = [sys.executable, "-c", _RUNS, str(folder), when, *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode not in (0, -signal.SIGBUS):
        raise RuntimeError(done.stderr)  # no outcome that is tested, nor one that is expected to fail
    assert done.returncode == 0, "ended by SIGBUS"
    return done.stdout.splitlines()


def _last_page(program: LinkedProgram) -> int:
    """Where the last page begins that holds weights of the largest step."""
    step = max((s for s in program.steps if s.cached), key=lambda s: s.weight_bytes)
    return (step.segment + step.weight_bytes - 1) // mmap.PAGESIZE * mmap.PAGESIZE


def test_a_cache_that_shrinks_before_it_is_fetched_is_done_without(folder: Path) -> None:
    """No page is left of what was mapped: Linux fails the request for it just as where the disk does."""
    whole = (folder / "weights.cache").read_bytes()
    sizes = [len(whole) * tenth // 10 // mmap.PAGESIZE * mmap.PAGESIZE for tenth in range(10)]
    found = _runs(folder, "opened", *sizes, _last_page(read_linked(folder / "program.json")))
    assert found == [f"right cannot be read: [Errno {errno.EFAULT}] {os.strerror(errno.EFAULT)}"] * 11
    assert (folder / "weights.cache").read_bytes() == whole  # written again, each time


_UNNOTICED = "a cache is looked at when it is opened, not again: docs/cold-executing.md"
_FATAL = "touching a mapped page that is gone ends the process: docs/cold-executing.md"


@pytest.mark.xfail(strict=True, raises=AssertionError, reason=_UNNOTICED)
def test_a_cache_cut_within_the_last_page_of_weights(folder: Path) -> None:
    """What is left of the page is there, and zeros follow."""
    (found,) = _runs(folder, "opened", _last_page(read_linked(folder / "program.json")) + 8)
    assert found.startswith("right")


@pytest.mark.xfail(strict=True, raises=AssertionError, reason=_FATAL)
@pytest.mark.parametrize("when", ["counted", "prepared"])
def test_mapped_pages_that_are_gone_when_they_are_touched(folder: Path, when: str) -> None:
    """Linux counts pages whose reading failed as in memory; and kernels read weights where they are mapped."""
    (found,) = _runs(folder, when, 0)
    assert found.startswith("right")
