"""A disk that is full while a plan is written: a clear message, nothing left behind, right outputs."""

from __future__ import annotations

import errno
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_starts import start_right

from edgeplan.errors import StoreError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.plan_folder import build_plan_folder

_SAID = {"writing": "the disk is full", "syncing": "the disk is full", "limited": "cannot write: File too large"}
_NEXT = {"limited": "raise the limit on the size of files"}
_FREE = "free some space and run the same command again"
ways = pytest.mark.parametrize("way", list(_SAID))


@pytest.fixture
def graph() -> Graph:
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.conv_bn(b.input, 16, 3, 2)
    return b.build(b.fc(b.flatten(b.gap(b.add(b.conv_bn(x, 16, 3), x))), 7))


@pytest.fixture
def folder(dnnl: Dnnl, planned: Callable[..., Plan], graph: Graph, model: Path) -> Path:
    plan = planned(model, graph, sources=["cached_read", "cached_mmap"], widen_from=-1)
    return build_plan_folder(dnnl, model, plan, model.parent / "plan")


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
    planned: Callable[..., Plan],
    graph: Graph,
    model: Path,
    wanted: Mapping[str, np.ndarray],
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
    dnnl: Dnnl, planned: Callable[..., Plan], graph: Graph, model: Path, tmp_path: Path, way: str
) -> None:
    with _no_room(way, 5000), pytest.raises(StoreError, match=_SAID[way]):
        build_plan_folder(dnnl, model, planned(model, graph), tmp_path / "new")
    assert not (tmp_path / "new").exists()
