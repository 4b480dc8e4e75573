"""The raw model is trusted as long as nobody touched it; otherwise its contents decide, once."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from cold_session_support import shared_of
from plan_folders import program_in, reserve_in
from plan_starts import start_right

from edgeplan.errors import FormatError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.planning.document import Plan
from edgeplan.runtime import raw_weights
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.plan_folder import build_plan_folder


@pytest.fixture
def graph() -> Graph:
    b = GraphBuilder("net", (1, 3, 16, 16))
    return b.build(b.fc(b.flatten(b.gap(b.conv_bn(b.input, 16, 3, 2))), 7))


@pytest.fixture
def folder(dnnl: Dnnl, planned: Callable[..., Plan], graph: Graph, model: Path) -> Path:
    """A plan that reads raw weights at every start, beside weights in its cache."""
    plan = planned(model, graph, sources=["raw", *["cached_read"] * 9])
    folder = build_plan_folder(dnnl, model, plan, model.parent / "plan")
    assert {"raw", "cached_read"} <= set(program_in(folder).sources)
    return folder


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one whenever a file of the model is hashed."""
    found: list[int] = []
    real = raw_weights.file_sha256
    monkeypatch.setattr(raw_weights, "file_sha256", lambda descriptor: (found.append(descriptor), real(descriptor))[1])
    return found


def _other_weights(model: Path, folder: Path) -> bytes:
    """The model with other weights, of the same size."""
    content = bytearray(model.read_bytes())
    weight = max((w for step in reserve_in(folder).steps for w in step.raw), key=lambda w: w.size)
    values = np.frombuffer(content, np.float32, weight.size // 4, weight.offset)
    values *= -2  # in place
    return bytes(content)


def test_an_untouched_model_is_not_hashed(
    dnnl: Dnnl, graph: Graph, wanted: Mapping[str, np.ndarray], folder: Path, hashed: list[int]
) -> None:
    before = (folder / "plan.json").read_bytes()
    start_right(dnnl, folder, graph, wanted)
    assert not hashed
    assert (folder / "plan.json").read_bytes() == before


@pytest.mark.parametrize("how", ["written", "replaced", "beside"])
def test_other_weights_with_the_old_time_are_noticed(dnnl: Dnnl, model: Path, folder: Path, how: str) -> None:
    """As `cp -p` and `tar` leave them: the same size and time of modification."""
    before, content = model.stat(), _other_weights(model, folder)
    time.sleep(0.02)  # a tick of the clock of the file system
    place = {"written": model, "replaced": model.with_suffix(".new"), "beside": folder / model.name}[how]
    place.write_bytes(content)
    os.utime(place, ns=(before.st_atime_ns, before.st_mtime_ns))
    if how == "replaced":
        place.replace(model)
        place = model
    assert (place.stat().st_size, place.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    with pytest.raises(FormatError, match="the model changed since the plan was made"):
        ColdSession(dnnl, folder, threads=2)


@pytest.mark.parametrize("how", ["touched", "time put back", "replaced", "beside"])
def test_the_same_contents_are_hashed_once(
    dnnl: Dnnl, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], folder: Path, how: str, hashed: list[int]
) -> None:
    before, cache_stamp = model.stat(), program_in(folder).cache_stamp
    if how == "touched":
        model.touch()
    elif how == "time put back":
        os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    elif how == "beside":
        shutil.copy2(model, folder)
    else:
        shutil.copy2(model, model.with_suffix(".new")).replace(model)
    time.sleep(0.05)
    for _ in range(2):
        start_right(dnnl, folder, graph, wanted)
        assert len(hashed) == 1
    assert program_in(folder).cache_stamp == cache_stamp  # nobody looked at that


def test_a_copied_folder_works_and_its_cache_stays_checked(
    dnnl: Dnnl, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], folder: Path, tmp_path: Path, hashed: list[int]
) -> None:
    copy = shutil.copytree(folder, tmp_path / "elsewhere" / "plan")
    shutil.copy2(model, copy)
    model.unlink()
    time.sleep(0.05)
    for _ in range(2):
        start_right(dnnl, copy, graph, wanted)
        assert len(hashed) == 1
    with ColdSession(dnnl, copy, threads=2) as session:
        assert shared_of(session).cache.trusted == (-1, 0)


def test_a_stamp_that_may_not_show_the_next_change_is_not_noted(
    dnnl: Dnnl, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], folder: Path, hashed: list[int]
) -> None:
    """A file that was written within the last tick of the clock may be written again within it."""
    model.touch()
    changed_at = model.stat().st_ctime
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "time", lambda: changed_at + 0.001)
        start_right(dnnl, folder, graph, wanted)
    time.sleep(0.05)
    start_right(dnnl, folder, graph, wanted)
    start_right(dnnl, folder, graph, wanted)
    assert len(hashed) == 2


def test_a_stamp_that_cannot_be_noted_is_told(
    dnnl: Dnnl,
    graph: Graph,
    model: Path,
    wanted: Mapping[str, np.ndarray],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    model.touch()
    time.sleep(0.05)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    start_right(dnnl, folder, graph, wanted)
    assert "the model's new time stamp could not be noted" in caplog.text
    assert "the disk is full" in caplog.text


def test_a_model_that_cannot_be_looked_at_is_named(
    dnnl: Dnnl, model: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.touch()

    def fail(_: int) -> str:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(raw_weights, "file_sha256", fail)
    with pytest.raises(ModelError, match="cannot read the model: Input/output error") as caught:
        ColdSession(dnnl, folder, threads=2)
    assert caught.value.where == str(model)
    assert caught.value.next_step
