"""Plan folders of cold starts: damaged, stale, of something else, half-written, shared by processes, on a full disk."""

from __future__ import annotations

import errno
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_folders import records_in, start_right

from edgeplan.errors import FormatError, ModelError, StoreError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime import folder as runtime_folder
from edgeplan.runtime import folder_lock, loops
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import CACHE_NAME, read_folder
from edgeplan.runtime.folder_lock import changing, work_folder
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder, cold_plan
from edgeplan.runtime.program_file import PROGRAM_BIN

LANE = "processes"  # see tests/conftest.py
Planned = Callable[..., Plan]
Wanted = Mapping[str, np.ndarray]
_FILES = ["plan.json", PROGRAM_BIN, CACHE_NAME]


@pytest.fixture
def graph() -> Graph:
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.conv_bn(b.input, 16, 3, 2)
    x = b.relu(b.add(b.conv_bn(x, 16, 3, act=""), x))
    return b.build(b.fc(b.flatten(b.gap(x)), 7))


@pytest.fixture
def folder(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path) -> Path:
    plan = planned(model, graph, sources=["cached_read", "cached_mmap"], widen_from=-1)
    return build_plan_folder(dnnl, model, plan, model.parent / "plan")


# Weights and models that are others; `test_sessions.py` has what holds for plans of each kind


def test_bytes_of_a_cache_that_changed_are_told_if_they_are_read(graph: Graph, wanted: Wanted, folder: Path) -> None:
    cache = folder / CACHE_NAME
    whole = cache.read_bytes()
    held = [(s.segment, s.segment + s.weight_bytes) for s in records_in(folder)[0] if s.cached]
    for at in range(0, len(whole), max(1, len(whole) // 23)):
        content = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        cache.write_bytes(content)
        if any(start <= at < stop for start, stop in held):
            with pytest.raises(ModelError, match="the weights are damaged") as caught:
                start_right(folder, graph, wanted)
            assert caught.value.where == str(cache)
            assert caught.value.next_step == "plan the model again: edgeplan plan cold-start"
        else:
            assert start_right(folder, graph, wanted), "padding between segments is never read"
        assert cache.read_bytes() == content, "nothing is repaired"


def test_a_foreign_cache_is_told_and_a_copy_is_checked(
    dnnl: Dnnl, planned: Planned, graph: Graph, wanted: Wanted, folder: Path, tmp_path: Path
) -> None:
    cache = folder / CACHE_NAME
    whole = cache.read_bytes()
    assert not start_right(folder, graph, wanted)
    (tmp_path / "other").mkdir()
    model = save_onnx(graph, tmp_path / "other" / "net.onnx", seed=1)
    plan = planned(model, graph, sources=["cached_read", "cached_mmap"], widen_from=-1)
    shutil.copy(build_plan_folder(dnnl, model, plan, tmp_path / "other" / "plan") / CACHE_NAME, cache)
    with pytest.raises(ModelError, match=r"the weights are damaged: those of step '\w+' were changed"):
        start_right(folder, graph, wanted)
    cache.write_bytes(whole)
    assert start_right(folder, graph, wanted), "checked: its stamp is another one"


def _behind(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, first: str) -> Path:
    """A plan with weights in its cache behind a first step whose weights come from elsewhere."""
    plan = planned(model, graph, sources=[first, *["cached_read"] * 9])
    return build_plan_folder(dnnl, model, plan, model.parent / "plan")


@pytest.mark.parametrize("how", ["written", "replaced", "touched", "beside", "other beside", "changed", "cut", "gone"])
def test_a_model_of_another_stamp_is_known_by_its_contents(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, wanted: Wanted, how: str
) -> None:
    folder, before = _behind(dnnl, planned, graph, model, "raw"), model.stat()
    assert not start_right(folder, graph, wanted)
    time.sleep(0.02)  # a tick of the clock of the file system
    if how == "beside":
        shutil.copy2(model, folder)
    elif how == "other beside":
        (folder / model.name).write_bytes(b"this one counts")
    elif how == "replaced":
        shutil.copy2(model, model.with_suffix(".new")).replace(model)
    elif how == "written":
        model.write_bytes(model.read_bytes())
        os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif how in ("changed", "cut"):
        content = model.read_bytes()
        model.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if how == "changed" else content[:-1])
    else:
        model.touch() if how == "touched" else model.unlink()
    if how not in ("other beside", "changed", "cut", "gone"):
        assert not start_right(folder, graph, wanted)
        return
    with pytest.raises(ModelError, match="cannot open the model" if how == "gone" else "the model changed since") as caught:
        open_session(folder)
    assert caught.value.where == str(folder / model.name if how == "other beside" else model)
    assert "plan" in caught.value.next_step


def test_a_model_whose_weights_are_cached_is_not_needed(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, wanted: Wanted, tmp_path: Path
) -> None:
    folder = _behind(dnnl, planned, graph, model, "cached_mmap")
    with open_session(folder) as session:
        os.utime(model)
        session.run({tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in session.inputs})
    model.unlink()
    assert not start_right(folder, graph, wanted)
    copied = Path(shutil.copytree(folder, tmp_path / "elsewhere"))
    for _ in range(2):  # nothing is written at a run
        assert start_right(copied, graph, wanted), "the stamp is another one: weights are held to their checksums"


#: Cuts the cache to each of some sizes once a plan is open, or has run: a line for what became of the run that follows.
_RUNS = """
import os, sys, time
import numpy as np
from edgeplan.errors import EdgeplanError
from edgeplan.runtime.native_session import open_session

folder, when, *sizes = sys.argv[1:]
with open(f"{folder}/weights.cache", "rb") as file:
    whole = file.read()
for size in map(int, sizes):
    try:
        with open_session(folder) as session:
            zeros = {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in session.inputs}
            if when == "run":
                session.run(zeros)
            time.sleep(0.3)  # whoever prepares has done so: what is cut while it is read ends the process
            os.truncate(f"{folder}/weights.cache", size)
            session.run(zeros)
        print("ran", flush=True)
    except EdgeplanError as error:
        print(error.what, flush=True)
    with open(f"{folder}/weights.cache", "wb") as file:
        file.write(whole)
"""


def test_a_cache_that_is_cut_is_told_and_ends_no_process(dnnl: Dnnl, planned: Planned, tmp_path: Path) -> None:
    """The second convolution has weights of more than 2 MiB, which are mapped in several parts."""
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.conv_bn(b.input, 256, 3, 2)
    graph = b.build(b.fc(b.flatten(b.gap(b.conv_bn(x, 256, 3, 2))), 7))
    model = save_onnx(graph, tmp_path / "net.onnx")
    plan = planned(model, graph, sources=["cached_mmap"], widen_from=-1)
    folder = build_plan_folder(dnnl, model, plan, tmp_path / "plan")
    size = (folder / CACHE_NAME).stat().st_size
    sizes = [size * tenth // 10 // mmap.PAGESIZE * mmap.PAGESIZE for tenth in range(0, 10, 3)]
    for when in ("opened", "run"):
        command = [sys.executable, "-c", _RUNS, str(folder), when, *map(str, sizes)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
        assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"
        told = done.stdout.splitlines()
        assert len(told) == len(sizes)
        assert all("changed while they were in use" in line or "the weights are damaged" in line for line in told), told


# Building


@pytest.mark.parametrize("field", ["library_version", "isa", "model_sha256"])
def test_a_plan_for_another_library_or_model_is_not_built(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, field: str
) -> None:
    other = {"library_version": "3.99.0", "isa": "sse41", "model_sha256": "0" * 64}[field]
    with pytest.raises(FormatError, match=other[:4]):
        build_plan_folder(dnnl, model, planned(model, graph, **{field: other}), model.parent / "plan")
    assert not (model.parent / "plan").exists()


def test_an_unknown_implementation_is_named(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path) -> None:
    plan = planned(model, graph, implementations=tuple(f"made-up-{i}" for i in range(9)))
    with pytest.raises(FormatError, match="offers no 'made-up"):
        build_plan_folder(dnnl, model, plan, model.parent / "plan")


def test_a_limited_cache_keeps_the_smallest_weights(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, wanted: Wanted, caplog: pytest.LogCaptureFixture
) -> None:
    plan = planned(model, graph)
    for limit in (0, 8192, 1 << 20):
        caplog.clear()
        folder = build_plan_folder(dnnl, model, plan, model.parent / "plan", limit_bytes=limit)
        steps, _ = records_in(folder)
        cached = [s.weight_bytes for s in steps if s.cached]
        raw = [s.weight_bytes for s in steps if s.source == loops.RAW]
        assert sum(cached) <= limit
        assert max(cached, default=0) <= min(raw, default=1 << 30)
        assert (folder / "weights.cache").exists() == bool(cached)
        assert ("do not fit" in caplog.text) == bool(raw)
        assert not start_right(folder, graph, wanted)


# A disk that is full while a plan is written: a clear message, nothing left behind, right outputs

_SAID = {"writing": "the disk is full", "syncing": "the disk is full", "limited": "cannot write: File too large"}
_NEXT = {"limited": "raise the limit on the size of files"}
_FREE = "free some space and run the same command again"
ways = pytest.mark.parametrize("way", list(_SAID))


def _limit(size: int) -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


@contextmanager
def _no_room(way: str, size: int) -> Iterator[list[Path]]:
    """No weight cache can be written meanwhile. Gives the temporary files that were tried.

    Either the kernel itself says so at once (`/dev/full`: ENOSPC), or once all is written (a file system that finds room late),
    or beyond so many bytes of a file (EFBIG).
    """
    tried: list[Path] = []
    make, sync = tempfile.mkstemp, os.fsync

    def made(**given: Any) -> tuple[int, str]:
        handle, name = make(**given)
        if given["prefix"] == ".weights.cache.":
            tried.append(Path(name))
            if way == "writing":
                Path(name).unlink()
                Path(name).symlink_to("/dev/full")
        return handle, name

    def full(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() in tried:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "mkstemp", made)
        if way == "syncing":
            patch.setattr(os, "fsync", full)
        try:
            if way == "limited":
                _limit(size)
            yield tried
        finally:
            _limit(resource.RLIM_INFINITY)


@ways
def test_a_full_disk_while_building(
    dnnl: Dnnl,
    planned: Planned,
    graph: Graph,
    model: Path,
    wanted: Wanted,
    folder: Path,
    way: str,
) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    plan = planned(model, graph, widen_from=2)
    with _no_room(way, len(before["weights.cache"]) // 2) as tried, pytest.raises(StoreError) as caught:
        build_plan_folder(dnnl, model, plan, folder)
    assert caught.value.what == _SAID[way]
    assert tried
    assert caught.value.where == str(folder / "weights.cache")  # not where it was being built, which is gone
    assert caught.value.next_step.startswith(_NEXT.get(way, _FREE))
    assert caught.value.next_step.endswith("a plan that was there before still works")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert not start_right(folder, graph, wanted)
    build_plan_folder(dnnl, model, plan, folder)  # and now there is room
    assert not start_right(folder, graph, wanted)


@ways
def test_a_full_disk_while_building_for_the_first_time(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, tmp_path: Path, way: str
) -> None:
    with _no_room(way, 5000), pytest.raises(StoreError, match=_SAID[way]):
        build_plan_folder(dnnl, model, planned(model, graph), tmp_path / "new")
    assert not (tmp_path / "new").exists()


# Two processes on one folder: neither takes from the other what it is at


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


def _listed(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def _builder(model: Path, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _BUILDER, str(model), str(folder)]
    found = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert found.stdout is not None
    assert found.stdout.readline() == "at work\n"
    return found


@pytest.mark.timeout(120)
def test_who_builds_leaves_the_work_of_a_live_builder_alone(
    dnnl: Dnnl, graph: Graph, model: Path, wanted: Wanted, folder: Path
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
def test_what_a_killed_builder_left_is_deleted(dnnl: Dnnl, graph: Graph, model: Path, wanted: Wanted, folder: Path) -> None:
    other = _builder(model, folder)
    other.send_signal(signal.SIGKILL)
    other.communicate(timeout=60)
    assert len(list(folder.parent.glob(".planning-*"))) == 1
    assert not start_right(folder, graph, wanted)
    build_plan_folder(dnnl, model, cold_plan(read_folder(folder)), folder)
    assert _listed(folder) == _FILES
    assert not list(folder.parent.glob(".planning-*"))


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
    planned: Planned,
    graph: Graph,
    model: Path,
    wanted: Wanted,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A program of one with the weights of the other could not be run."""
    real, placed = runtime_folder._exchange, list[object]()
    monkeypatch.setattr(runtime_folder, "_exchange", lambda *given: (placed.append(given), real(*given)))
    plans = [planned(model, graph, sources=[source]) for source in ("cached_read", "cached_mmap", "cached_read")]
    with changing(folder):
        threads = [threading.Thread(target=build_plan_folder, args=(Dnnl(), model, plan, folder)) for plan in plans]
        for thread in threads:
            thread.start()
        threads[0].join(0.2)
        assert not placed, "somebody else is at the folder"
    for thread in threads:
        thread.join()
    assert len(placed) == len(plans)
    assert not start_right(folder, graph, wanted)
