"""Two processes on one plan folder: neither takes from the other what it is at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from plan_starts import start_right

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.planning.document import Plan
from edgeplan.runtime import folder as runtime_folder
from edgeplan.runtime import folder_lock
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.folder_lock import changing, work_folder
from edgeplan.runtime.plan_folder import build_plan_folder, cold_plan

LANE = "processes"  # see tests/conftest.py

_FILES = ["plan.json", "program.bin", "weights.cache"]


@pytest.fixture
def graph() -> Graph:
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.conv_bn(b.conv_bn(b.input, 16, 3, 2), 16, 3)
    return b.build(b.fc(b.flatten(b.gap(x)), 7))


@pytest.fixture
def folder(dnnl: Dnnl, planned: Callable[..., Plan], graph: Graph, model: Path) -> Path:
    return build_plan_folder(dnnl, model, planned(model, graph, sources=["cached_read"]), model.parent / "plan")


def _listed(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


# Builds a plan and stops within, until a line comes in.
_BUILDER = """
import sys
from pathlib import Path
from edgeplan.runtime import plan_folder
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
model, folder = Path(sys.argv[1]), Path(sys.argv[2])
write = plan_folder._write
def halting(*given):
    print("at work", flush=True)
    sys.stdin.readline()
    return write(*given)
plan_folder._write = halting
plan_folder.build_plan_folder(Dnnl(), model, plan_folder.cold_plan(read_folder(folder)), folder)
"""


def _builder(model: Path, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _BUILDER, str(model), str(folder)]
    found = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert found.stdout is not None
    assert found.stdout.readline() == "at work\n"
    return found


@pytest.mark.timeout(120)
def test_who_builds_leaves_the_work_of_a_live_builder_alone(
    dnnl: Dnnl, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], folder: Path
) -> None:
    other = _builder(model, folder)
    (at_work,) = folder.parent.glob(".planning-*")
    build_plan_folder(dnnl, model, cold_plan(read_folder(folder)), folder)
    assert list(folder.parent.glob(".planning-*")) == [at_work]
    _, errors = other.communicate("go on\n", timeout=60)
    assert other.returncode == 0, errors
    assert _listed(folder) == _FILES
    assert not start_right(folder, graph, wanted)


@pytest.mark.timeout(120)
def test_what_a_killed_builder_left_is_deleted(dnnl: Dnnl, model: Path, folder: Path) -> None:
    other = _builder(model, folder)
    other.send_signal(signal.SIGKILL)
    other.communicate(timeout=60)
    assert len(list(folder.parent.glob(".planning-*"))) == 1
    build_plan_folder(dnnl, model, cold_plan(read_folder(folder)), folder)
    assert _listed(folder) == _FILES


def test_without_locks_age_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lacking(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(folder_lock.fcntl, "flock", lacking)
    (tmp_path / "w-old").mkdir()
    os.utime(tmp_path / "w-old", (0, 0))
    (tmp_path / "w-new").mkdir()
    with work_folder(tmp_path, "w-") as made:
        assert sorted(tmp_path.iterdir()) == sorted([made, tmp_path / "w-new"])
    assert list(tmp_path.iterdir()) == [tmp_path / "w-new"]


def test_two_builders_put_their_files_in_place_one_after_the_other(
    planned: Callable[..., Plan],
    graph: Graph,
    model: Path,
    wanted: Mapping[str, np.ndarray],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program of one with the weights of the other could not be run."""
    placing, most, lock = 0, 0, threading.Lock()
    real = runtime_folder._exchange

    def counted(*given: object) -> None:
        nonlocal placing, most
        with lock:
            placing += 1
            most = max(most, placing)
        real(*given)  # type: ignore[arg-type]
        with lock:
            placing -= 1

    monkeypatch.setattr(runtime_folder, "_exchange", counted)
    plans = [planned(model, graph, sources=[source]) for source in ("cached_read", "cached_mmap", "cached_read")]
    with changing(folder):
        threads = [threading.Thread(target=build_plan_folder, args=(Dnnl(), model, plan, folder)) for plan in plans]
        for thread in threads:
            thread.start()
        threads[0].join(0.2)
        assert most == 0
    for thread in threads:
        thread.join()
    assert most == 1
    assert not start_right(folder, graph, wanted)
