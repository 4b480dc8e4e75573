"""Plan folders that are damaged, stale, of something else, or half-written: a clear error or a correct slower run."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_folders import reserve_in
from plan_starts import start_right

from edgeplan.errors import FormatError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime import raw_weights, weight_cache
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.plan_folder import build_plan_folder, cold_plan

Planned = Callable[..., Plan]


def _net(seed: int = 0) -> Graph:
    b = GraphBuilder(f"net{seed}", (1, 3, 16, 16))
    x = b.conv_bn(b.input, 16, 3, 2)
    x = b.relu(b.add(b.conv_bn(x, 16, 3, act=""), x))
    return b.build(b.fc(b.flatten(b.gap(x)), 7))


@pytest.fixture
def graph() -> Graph:
    return _net()


@pytest.fixture
def folder(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path) -> Path:
    plan = planned(model, graph, sources=["cached_read", "cached_mmap"], widen_from=-1)
    return build_plan_folder(dnnl, model, plan, model.parent / "plan")


def _damages(whole: bytes) -> dict[str, bytes]:
    program_flips = {f"byte {at}": at for at in range(0, len(whole), max(1, len(whole) // 23))}
    flipped = {name: whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for name, at in program_flips.items()}
    return {f"tenth {t}": whole[: len(whole) * t // 10] for t in range(10)} | flipped


def test_a_damaged_cache_is_noticed_and_built_again(
    dnnl: Dnnl, graph: Graph, wanted: Mapping[str, np.ndarray], folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = folder / "weights.cache"
    whole = cache.read_bytes()
    held = [(s.segment, s.segment + s.weight_bytes) for s in reserve_in(folder).steps if s.cached]
    first = min(start for start, _ in held)
    for name, content in _damages(whole).items():
        cache.write_bytes(content)
        caplog.clear()
        problem = start_right(dnnl, folder, graph, wanted)
        at = int(name.split()[1])
        matters = name.startswith("tenth") or at < first or any(start <= at < stop for start, stop in held)
        assert bool(problem) == matters, name  # padding between segments is never read
        assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == int(matters)
        assert cache.read_bytes() == whole or not matters, name
        assert start_right(dnnl, folder, graph, wanted) == ""


def test_a_missing_or_foreign_cache_is_built_again(
    dnnl: Dnnl, planned: Planned, graph: Graph, wanted: Mapping[str, np.ndarray], folder: Path, tmp_path: Path
) -> None:
    cache = folder / "weights.cache"
    whole = cache.read_bytes()
    cache.unlink()
    assert "cannot be opened" in start_right(dnnl, folder, graph, wanted)
    assert cache.read_bytes() == whole
    other = _net()
    (tmp_path / "other").mkdir()
    other_model = save_onnx(other, tmp_path / "other" / "net.onnx", seed=1)
    plan = planned(other_model, other, sources=["cached_read", "cached_mmap"], widen_from=-1)
    foreign = build_plan_folder(dnnl, other_model, plan, tmp_path / "other" / "plan") / "weights.cache"
    shutil.copy(foreign, cache)
    assert "something else" in start_right(dnnl, folder, graph, wanted)
    assert cache.read_bytes() == whole


@pytest.mark.parametrize("name", ["program.json", "plan.json", "reserve.json"])
def test_damaged_documents_are_refused(
    dnnl: Dnnl, graph: Graph, wanted: Mapping[str, np.ndarray], folder: Path, name: str
) -> None:
    whole = (folder / name).read_bytes()
    (folder / "weights.cache").unlink()  # so that the reserve is needed
    for damage, content in _damages(whole).items():
        (folder / name).write_bytes(content)
        with pytest.raises(FormatError, match=r"changed|version|does not fit|damaged") as caught:
            start_right(dnnl, folder, graph, wanted)
        assert caught.value.where, damage
        assert "edgeplan plan cold-start" in caught.value.next_step
    (folder / name).write_bytes(whole)
    start_right(dnnl, folder, graph, wanted)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"machine": "elsewhere"}, "machine is .*, the plan is for elsewhere"),
        ({"threads": 3}, "threads is 2, the plan is for 3"),
    ],
)
def test_a_plan_for_something_else_is_refused(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, change: dict[str, Any], match: str
) -> None:
    folder = build_plan_folder(dnnl, model, planned(model, graph, **change), model.parent / "other")
    with pytest.raises(FormatError, match=match):
        ColdSession(dnnl, folder, threads=2)


@pytest.mark.parametrize("field", ["library_version", "isa", "model_sha256"])
def test_a_plan_for_another_library_or_model_is_not_built(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, field: str
) -> None:
    other = {"library_version": "3.99.0", "isa": "sse41", "model_sha256": "0" * 64}[field]
    with pytest.raises(FormatError, match=other[:4]):
        build_plan_folder(dnnl, model, planned(model, graph, **{field: other}), model.parent / "plan")
    assert not (model.parent / "plan" / "program.json").exists()


def test_an_unknown_implementation_is_named(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path) -> None:
    plan = planned(model, graph, implementations=tuple(f"made-up-{i}" for i in range(9)))
    with pytest.raises(FormatError, match="offers no 'made-up"):
        build_plan_folder(dnnl, model, plan, model.parent / "plan")


def test_a_changed_model_is_refused_and_a_copy_taken(
    dnnl: Dnnl, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], folder: Path
) -> None:
    whole = model.read_bytes()
    os.utime(model)  # copied, or touched: the same contents
    assert start_right(dnnl, folder, graph, wanted) == ""
    model.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(FormatError, match="the model changed"):
        start_right(dnnl, folder, graph, wanted)
    (folder / model.name).write_bytes(whole)  # beside the plan: this one counts
    assert start_right(dnnl, folder, graph, wanted) == ""
    model.unlink()
    (folder / model.name).unlink()
    assert start_right(dnnl, folder, graph, wanted) == ""  # all weights come from the cache
    (folder / "weights.cache").unlink()
    with pytest.raises(ModelError, match="cannot open"):
        start_right(dnnl, folder, graph, wanted)


@pytest.mark.parametrize("source", ["raw", "cached_read"])
def test_a_read_that_fails_in_mid_run(
    dnnl: Dnnl,
    planned: Planned,
    graph: Graph,
    model: Path,
    wanted: Mapping[str, np.ndarray],
    source: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = build_plan_folder(dnnl, model, planned(model, graph, sources=[source]), model.parent / "plan")
    module = raw_weights if source == "raw" else weight_cache
    real, calls = module.read_fully, iter(range(100))

    def fail(descriptor: int, target: memoryview, offset: int) -> None:
        if next(calls) == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(descriptor, target, offset)

    monkeypatch.setattr(module, "read_fully", fail)
    with Path(os.devnull).open("rb") as nothing:  # compiled code reads first, and leaves what fails to Python
        monkeypatch.setattr(weight_cache.WeightCache, "trusted", (nothing.fileno(), 0))
        if source == "raw":
            with pytest.raises(ModelError, match="cannot read the weights: Input/output error"):
                start_right(dnnl, folder, graph, wanted)
        else:
            assert "Input/output error" in start_right(dnnl, folder, graph, wanted)
    monkeypatch.undo()
    assert start_right(dnnl, folder, graph, wanted) == ""


_KILLED = """
import os, signal, sys
from pathlib import Path
from edgeplan.runtime import cold_executor, plan_folder, weight_cache
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import FORMAT, read_folder
model, folder, how = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
real = weight_cache.header
def killed(*given):
    if (found := len([p for p in folder.parent.rglob("*.tmp")])):
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*given)
weight_cache.header = killed
if how == "build":
    plan_folder.build_plan_folder(Dnnl(), model, plan_folder.cold_plan(read_folder(folder)), folder)
else:
    import numpy as np
    with cold_executor.ColdSession(Dnnl(), folder, threads=2) as session:
        session.run({b.name: np.ones(b.shape, np.float32) for b in session.program.inputs})
"""


@pytest.mark.parametrize("how", ["build", "run"])
def test_a_process_killed_while_caching_leaves_nothing_that_matters(
    dnnl: Dnnl, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], folder: Path, how: str
) -> None:
    if how == "run":
        (folder / "weights.cache").unlink()
    done = subprocess.run(
        [sys.executable, "-c", _KILLED, str(model), str(folder), how], capture_output=True, check=False, timeout=500
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert len(list(folder.parent.rglob("*.tmp"))) == 1
    assert bool(start_right(dnnl, folder, graph, wanted)) == (how == "run")
    assert start_right(dnnl, folder, graph, wanted) == ""
    build_plan_folder(dnnl, model, cold_plan(read_folder(folder)), folder)
    assert start_right(dnnl, folder, graph, wanted) == ""
    for leftover in folder.glob(".weights.cache.*.tmp"):
        os.utime(leftover, (0, 0))
    build_plan_folder(dnnl, model, cold_plan(read_folder(folder)), folder)
    assert sorted(p.name for p in folder.iterdir()) == [
        "plan.json",
        "program.json",
        "program.tape",
        "reserve.json",
        "weights.cache",
    ]


def test_a_limited_cache_keeps_the_smallest_weights(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], caplog: pytest.LogCaptureFixture
) -> None:
    plan = planned(model, graph)
    for limit in (0, 8192, 1 << 20):
        caplog.clear()
        folder = build_plan_folder(dnnl, model, plan, model.parent / "plan", limit_bytes=limit)
        steps = reserve_in(folder).steps
        cached = [s.weight_bytes for s in steps if s.cached]
        raw = [s.weight_bytes for s in steps if s.source == "raw"]
        assert sum(cached) <= limit
        assert max(cached, default=0) <= min(raw, default=1 << 30)
        assert (folder / "weights.cache").exists() == bool(cached)
        assert ("do not fit" in caplog.text) == bool(raw)
        assert start_right(dnnl, folder, graph, wanted) == ""
