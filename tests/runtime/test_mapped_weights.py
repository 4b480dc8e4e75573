"""Weights mapped from a cache that shrinks or cannot be read while it is used, in processes that may die of it."""

from __future__ import annotations

import errno
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cold_session_support import shared_of
from plan_folders import reserve_in

from edgeplan.errors import ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.plan_folder import build_plan_folder

LANE = "processes"  # see tests/conftest.py

# A line for each size that the cache is cut to: whether the outputs are right, and what was said of the cache; or the error.
_RUNS = """
import os, sys
from pathlib import Path
import numpy as np
from edgeplan.errors import EdgeplanError
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl

folder, when, dnnl = Path(sys.argv[1]), sys.argv[2], Dnnl()
cut = lambda: os.truncate(folder / "weights.cache", size)

class Shrinking(ColdSession):
    def _read_ahead(self):  # the cache is checked, open and mapped, and none of its weights was fetched
        if when != "prepared":
            self.whole, self.status = (folder / "weights.cache").read_bytes(), os.stat(folder / "weights.cache")
            cut()
        super()._read_ahead()

    def _run_cold(self):
        super()._run_cold()
        if when == "failing":  # for as long as weights were read, as where a disk fails
            with open(folder / "weights.cache", "r+b") as file:
                file.write(self.whole)
            os.utime(folder / "weights.cache", ns=(self.status.st_atime_ns, self.status.st_mtime_ns))

def run(session):
    random = np.random.default_rng(0)
    return session.run({b.name: random.standard_normal(b.shape, np.float32) for b in session.program.inputs})

with ColdSession(dnnl, folder, threads=2) as session:
    wanted = run(session)
for size in map(int, sys.argv[3:]):
    with Shrinking(dnnl, folder, threads=2) as session:
        try:
            found = run(session)
            if when == "prepared":
                cut()
                found = run(session)
        except EdgeplanError as error:
            print("refused", error.what, flush=True)
            continue
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
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"
    return done.stdout.splitlines()


def _last_page(folder: Path) -> int:
    """Where the last page begins that holds weights of the largest step."""
    step = max((s for s in reserve_in(folder).steps if s.cached), key=lambda s: s.weight_bytes)
    return (step.segment + step.weight_bytes - 1) // mmap.PAGESIZE * mmap.PAGESIZE


def test_weights_that_cannot_be_read_are_done_without(folder: Path) -> None:
    """No page is left of what was mapped: Linux fails the request for it just as where the disk does."""
    whole = (folder / "weights.cache").read_bytes()
    sizes = [len(whole) * tenth // 10 // mmap.PAGESIZE * mmap.PAGESIZE for tenth in range(10)]
    found = _runs(folder, "failing", *sizes, _last_page(folder))
    assert found == [f"right cannot be read: [Errno {errno.EFAULT}] {os.strerror(errno.EFAULT)}"] * 11
    assert (folder / "weights.cache").read_bytes() == whole  # written again, each time
    assert set(_runs(folder, "opened", *sizes)) == {"refused weights were changed while they were in use: outputs may be wrong"}
    assert (folder / "weights.cache").read_bytes() == whole


def test_a_cache_cut_within_the_last_page_of_weights_is_told(folder: Path) -> None:
    """What is left of the page is there, and zeros follow: outputs would be wrong."""
    whole = (folder / "weights.cache").read_bytes()
    (found,) = _runs(folder, "opened", _last_page(folder) + 8)
    assert found.startswith("refused weights were changed while they were in use")
    with ColdSession(Dnnl(), folder, threads=2) as session:  # one of the two notices what is missing, and writes it again
        session.run({b.name: np.zeros(b.shape, np.float32) for b in session.program.inputs})
    assert (folder / "weights.cache").read_bytes() == whole


def test_a_cache_cut_between_two_runs_is_told(folder: Path) -> None:
    """Kernels read weights where they are mapped; to touch a page that is gone would end the process."""
    (found,) = _runs(folder, "prepared", 0)
    assert found.startswith("refused weights were changed while they were in use")


def _session(folder: Path, **changes: bool) -> ColdSession:
    return ColdSession(Dnnl(), folder, threads=2, **changes)


def _zeros(session: ColdSession) -> dict[str, np.ndarray]:
    return {b.name: np.zeros(b.shape, np.float32) for b in session.program.inputs}


def _flip(path: Path, place: int) -> None:
    """Change a byte in place, as no program of the package does."""
    with path.open("r+b") as file:
        file.seek(place)
        (old,) = file.read(1)
        file.seek(place)
        file.write(bytes([old ^ 0x40]))


def test_a_cache_is_not_built_again_from_another_model(folder: Path) -> None:
    """A damaged cache sends the run to the model, which somebody overwrites meanwhile: nothing of that is kept."""
    cache, model = folder / "weights.cache", folder.parent / "net.onnx"
    _flip(cache, max(s.segment for s in reserve_in(folder).steps) + 3)
    damaged = cache.read_bytes()
    weights = [weight for step in reserve_in(folder).steps for weight in step.raw]
    run_cold = ColdSession._run_cold

    def overwritten(session: ColdSession) -> None:
        run_cold(session)
        for weight in weights:
            _flip(model, weight.offset + weight.size - 1)

    with pytest.MonkeyPatch.context() as patch, _session(folder) as session:
        patch.setattr(ColdSession, "_run_cold", overwritten)
        with pytest.raises(ModelError, match="changed while they were in use"):
            session.run(_zeros(session))
    assert cache.read_bytes() == damaged


def test_a_model_that_was_not_read_may_change(folder: Path) -> None:
    with _session(folder) as session:
        os.utime(folder.parent / "net.onnx")
        assert session.run(_zeros(session))


def test_kernels_of_later_runs_are_checked_though_they_were_prepared_between_two_runs(folder: Path) -> None:
    with _session(folder, continuous=True) as session:
        session.run(_zeros(session))
        session._copying = True  # a lane was still at work when the run ended
        shared_of(session).raw._used.add(0)
        os.utime(folder.parent / "net.onnx")
        with pytest.raises(ModelError, match="changed while they were in use"):
            session.run(_zeros(session))
