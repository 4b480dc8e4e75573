"""Plan folders of cold starts: damaged, stale, of something else, half-written, shared by processes, on a full disk."""

from __future__ import annotations

import itertools
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from plan_folders import cold_plan, records_in, start_right

from edgeplan.engines.base import random_inputs
from edgeplan.errors import FormatError, ModelError, StoreError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime import folder as runtime_folder
from edgeplan.runtime import folder_lock, loops
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import CACHE_NAME
from edgeplan.runtime.folder_lock import changing, work_folder
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder
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


def test_a_cache_that_is_cut_is_told_and_ends_no_process(dnnl: Dnnl, planned: Planned, tmp_path: Path) -> None:
    """The second convolution has weights of more than 2 MiB, which are mapped in several parts."""
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.conv_bn(b.input, 256, 3, 2)
    graph = b.build(b.fc(b.flatten(b.gap(b.conv_bn(x, 256, 3, 2))), 7))
    model = save_onnx(graph, tmp_path / "net.onnx")
    plan = planned(model, graph, sources=["cached_mmap"], widen_from=-1)
    cache = build_plan_folder(dnnl, model, plan, tmp_path / "plan") / CACHE_NAME
    whole = cache.read_bytes()
    for tenth, ran in itertools.product(range(0, 10, 3), (False, True)):
        with open_session(cache.parent) as session:
            if ran:
                session.run(random_inputs(graph))
            time.sleep(0.3)  # whoever prepares has done so: what is cut while it is read ends the process
            os.truncate(cache, len(whole) * tenth // 10 // mmap.PAGESIZE * mmap.PAGESIZE)
            with pytest.raises(ModelError, match=r"changed while they were in use|the weights are damaged"):
                session.run(random_inputs(graph))
        cache.write_bytes(whole)


# Building


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("library_version", "3.99.0", "3.99"),
        ("isa", "sse41", "sse4"),
        ("model_sha256", "0" * 64, "0000"),
        ("implementations", tuple(f"made-up-{i}" for i in range(9)), "offers no 'made-up"),
    ],
)
def test_a_plan_for_another_library_or_model_is_not_built(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, field: str, value: object, told: str
) -> None:
    with pytest.raises(FormatError, match=told):
        build_plan_folder(dnnl, model, planned(model, graph, **{field: value}), model.parent / "plan")
    assert not (model.parent / "plan").exists()


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


@contextmanager
def _no_room(size: int) -> Iterator[None]:
    """No file can be longer meanwhile."""
    limits, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_without_room_a_plan_is_not_begun_and_one_that_was_there_works(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, wanted: Wanted, folder: Path
) -> None:
    before = {p.name: p.read_bytes() for p in folder.iterdir()}
    plan, new = planned(model, graph, widen_from=2), folder.with_name("new")
    for target in (folder, new):
        with _no_room(len(before[CACHE_NAME]) // 2), pytest.raises(StoreError, match="cannot write: File too large") as caught:
            build_plan_folder(dnnl, model, plan, target)
        assert caught.value.where == str(target / CACHE_NAME)  # not where it was being built, which is gone
        assert caught.value.next_step.startswith("raise the limit on the size of files")
        assert caught.value.next_step.endswith("a plan that was there before still works")
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == before
    assert not new.exists()
    assert not start_right(folder, graph, wanted)
    build_plan_folder(dnnl, model, plan, folder)  # and now there is room
    assert not start_right(folder, graph, wanted)


# Two processes on one folder: neither takes from the other what it is at


# Builds a plan and stops within, until a line comes in.
_BUILDER = """
import sys
from pathlib import Path
from edgeplan.runtime import plan_folder
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.planning.document import plan_of
model, folder, plan = Path(sys.argv[1]), Path(sys.argv[2]), plan_of(sys.argv[3], "given")
write = plan_folder._write
def halting(*given):
    print("at work", flush=True)
    sys.stdin.readline()
    return write(*given)
plan_folder._write = halting
plan_folder.build_plan_folder(Dnnl(), model, plan, folder)
"""


def _listed(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def _builder(model: Path, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", _BUILDER, str(model), str(folder), cold_plan(folder).model_dump_json()]
    found = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert found.stdout is not None
    assert found.stdout.readline() == "at work\n"
    return found


@pytest.mark.timeout(120)
def test_who_builds_leaves_a_live_builders_work_alone_and_deletes_what_a_killed_one_left(
    dnnl: Dnnl, graph: Graph, model: Path, wanted: Wanted, folder: Path
) -> None:
    for killed in (False, True):
        other = _builder(model, folder)
        (at_work,) = folder.parent.glob(".planning-*")
        if killed:
            other.kill()
            other.wait()
            assert not start_right(folder, graph, wanted)
        build_plan_folder(dnnl, model, cold_plan(folder), folder)
        assert list(folder.parent.glob(".planning-*")) == ([] if killed else [at_work])
        _, errors = other.communicate("" if killed else "go on\n", timeout=60)
        assert killed or other.returncode == 0, errors
        assert _listed(folder) == _FILES
        assert not start_right(folder, graph, wanted)


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
