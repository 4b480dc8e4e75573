"""Two processes on one plan folder: neither takes from the other what it is at, and a right run never ends in a traceback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from cold_session_support import shared_of
from plan_folders import program_in, shared_in
from plan_starts import run_right

from edgeplan.errors import StoreError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.planning.document import Plan
from edgeplan.runtime import cold_executor, folder_lock, renewal, weight_cache
from edgeplan.runtime import folder as runtime_folder
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.folder_lock import changing, work_folder
from edgeplan.runtime.plan_folder import build_plan_folder, cold_plan

LANE = "processes"  # see tests/conftest.py

_FILES = ["plan.json", "program.json", "program.tape", "reserve.json", "weights.cache"]


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


def test_a_temporary_file_may_go_while_leftovers_are_looked_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other process renames it between the listing and the look at its age."""
    left, going = folder / ".weights.cache.left.tmp", folder / ".weights.cache.going.tmp"
    for path in (left, going):
        path.touch()
        os.utime(path, (0, 0))
    glob = Path.glob

    def gone(self: Path, pattern: str) -> Iterator[Path]:
        found = sorted(glob(self, pattern))
        assert found == [going, left]
        going.unlink()
        return iter(found)

    monkeypatch.setattr(Path, "glob", gone)
    weight_cache.drop_leftovers(folder / "weights.cache")
    monkeypatch.undo()
    assert _listed(folder) == _FILES


@pytest.mark.parametrize("error", [StoreError("the disk is full"), FileNotFoundError(2, "gone"), PermissionError(13, "no")])
def test_a_right_run_ends_well_though_its_cache_cannot_be_kept(
    dnnl: Dnnl,
    graph: Graph,
    wanted: Mapping[str, np.ndarray],
    folder: Path,
    error: Exception,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (folder / "weights.cache").unlink()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(weight_cache, "drop_leftovers", fail)
    with ColdSession(dnnl, folder, threads=2) as session:
        run_right(session, graph, wanted)
    assert not shared_of(session).objects.store.handles.any(), "all is released"
    assert "could not be built again" in caplog.text
    assert str(error).splitlines()[0] in caplog.text


def test_all_is_released_whatever_comes(
    dnnl: Dnnl, graph: Graph, wanted: Mapping[str, np.ndarray], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = ColdSession(dnnl, folder, threads=2)
    run_right(session, graph, wanted)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cold_executor, "renew", interrupted)
    with pytest.raises(KeyboardInterrupt):
        session.close()
    assert shared_of(session).cache.descriptor == -1
    assert not shared_of(session).raw.descriptors
    assert not shared_of(session).objects.store.handles.any()


def test_a_folder_that_is_gone_by_the_end_of_a_run(
    dnnl: Dnnl, graph: Graph, wanted: Mapping[str, np.ndarray], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "weights.cache").unlink()
    with ColdSession(dnnl, folder, threads=2) as session:
        run_right(session, graph, wanted)
        shutil.rmtree(folder)
    assert "could not be built again" in caplog.text
    assert not folder.exists()


def test_a_session_does_not_put_its_program_over_a_newer_plan(
    dnnl: Dnnl, planned: Callable[..., Plan], graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], folder: Path
) -> None:
    (folder / "weights.cache").unlink()
    with ColdSession(dnnl, folder, threads=2) as session:
        run_right(session, graph, wanted)
        build_plan_folder(dnnl, model, planned(model, graph, sources=["raw"]), folder)
        newer = {p.name: p.read_bytes() for p in folder.iterdir()}
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == newer
    with ColdSession(dnnl, folder, threads=2) as session:
        run_right(session, graph, wanted)
        assert session.cache_problem == ""


def test_of_two_sessions_that_miss_the_cache_one_writes_it(
    dnnl: Dnnl, graph: Graph, wanted: Mapping[str, np.ndarray], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "weights.cache").unlink()
    wrote: list[int] = []
    rebuild = weight_cache.WeightCache.rebuild
    monkeypatch.setattr(weight_cache.WeightCache, "rebuild", lambda *given: (wrote.append(1), rebuild(*given))[1])
    with ColdSession(dnnl, folder, threads=2) as one, ColdSession(dnnl, folder, threads=2) as other:
        run_right(one, graph, wanted)
        run_right(other, graph, wanted)
        assert one.cache_problem
        assert other.cache_problem
    assert wrote == [1]
    with ColdSession(dnnl, folder, threads=2) as session:
        run_right(session, graph, wanted)
        assert session.cache_problem == ""
        assert shared_of(session).cache.trusted[0] >= 0


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
    with ColdSession(dnnl, folder, threads=2) as session:
        run_right(session, graph, wanted)
        assert session.cache_problem == ""


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
    dnnl: Dnnl, planned: Callable[..., Plan], graph: Graph, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of one with the tape of the other could not be run."""
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
    plans = [planned(model, graph, sources=[source]) for source in ("cached_read", "cached_mmap", "raw")]
    with changing(folder):
        threads = [threading.Thread(target=build_plan_folder, args=(Dnnl(), model, plan, folder)) for plan in plans]
        for thread in threads:
            thread.start()
        threads[0].join(0.2)
        assert most == 0
    for thread in threads:
        thread.join()
    assert most == 1
    with shared_in(dnnl, folder) as shared:
        assert shared.tape.program == program_in(folder)


def test_renewing_needs_no_second_look_where_nothing_was_wrong(
    dnnl: Dnnl, graph: Graph, wanted: Mapping[str, np.ndarray], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "changing", None)
    with ColdSession(dnnl, folder, threads=2) as session:
        run_right(session, graph, wanted)
