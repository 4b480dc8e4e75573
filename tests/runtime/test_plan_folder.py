"""Plan folders that are damaged, stale, of something else, or half-written: a clear error."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from plan_folders import records_in
from plan_starts import start_right

from edgeplan.errors import FormatError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime import loops
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.plan_folder import build_plan_folder, cold_plan
from edgeplan.runtime.program_file import PROGRAM_BIN

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


def test_a_damaged_cache_is_told(graph: Graph, wanted: Mapping[str, np.ndarray], folder: Path) -> None:
    cache = folder / "weights.cache"
    whole = cache.read_bytes()
    held = [(s.segment, s.segment + s.weight_bytes) for s in records_in(folder)[0] if s.cached]
    for name, content in _damages(whole).items():
        cache.write_bytes(content)
        at = int(name.split()[1])
        if name.startswith("tenth") or any(start <= at < stop for start, stop in held):
            with pytest.raises(ModelError, match="the weights are damaged") as caught:
                start_right(folder, graph, wanted)
            assert (caught.value.where, caught.value.next_step) == (
                str(cache),
                "plan the model again: edgeplan plan cold-start",
            )
        else:
            assert start_right(folder, graph, wanted), name  # padding between segments is never read
        assert cache.read_bytes() == content, "nothing is repaired"


def test_a_missing_or_foreign_cache_is_told_and_a_copy_is_checked(
    dnnl: Dnnl, planned: Planned, graph: Graph, wanted: Mapping[str, np.ndarray], folder: Path, tmp_path: Path
) -> None:
    cache = folder / "weights.cache"
    whole = cache.read_bytes()
    assert not start_right(folder, graph, wanted)
    cache.unlink()
    with pytest.raises(ModelError, match="the weights are damaged: they cannot be opened"):
        start_right(folder, graph, wanted)
    other = _net()
    (tmp_path / "other").mkdir()
    other_model = save_onnx(other, tmp_path / "other" / "net.onnx", seed=1)
    plan = planned(other_model, other, sources=["cached_read", "cached_mmap"], widen_from=-1)
    shutil.copy(build_plan_folder(dnnl, other_model, plan, tmp_path / "other" / "plan") / "weights.cache", cache)
    with pytest.raises(ModelError, match=r"the weights are damaged: those of step '\w+' were changed"):
        start_right(folder, graph, wanted)
    cache.write_bytes(whole)
    assert start_right(folder, graph, wanted), "checked: its stamp is another one"


def test_a_damaged_program_is_refused(graph: Graph, wanted: Mapping[str, np.ndarray], folder: Path) -> None:
    whole = (folder / PROGRAM_BIN).read_bytes()
    for damage, content in _damages(whole).items():
        (folder / PROGRAM_BIN).write_bytes(content)
        with pytest.raises(FormatError, match=r"the plan (is damaged|has another format)") as caught:
            start_right(folder, graph, wanted)
        assert caught.value.where == str(folder / PROGRAM_BIN), damage
        assert "edgeplan plan cold-start" in caught.value.next_step
    (folder / PROGRAM_BIN).write_bytes(whole)
    start_right(folder, graph, wanted)


def test_a_damaged_plan_is_refused(folder: Path) -> None:
    whole = (folder / "plan.json").read_bytes()
    for damage, content in _damages(whole).items():
        (folder / "plan.json").write_bytes(content)
        with pytest.raises(FormatError, match=r"changed|version|damaged") as caught:
            read_folder(folder)
        assert caught.value.where, damage
        assert "edgeplan plan cold-start" in caught.value.next_step


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


def test_a_changed_model_is_refused_where_weights_are_made_from_it(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], folder: Path
) -> None:
    whole, raw = model.read_bytes(), model.parent / "raw"
    build_plan_folder(dnnl, model, planned(model, graph, sources=["raw"]), raw)
    assert not (raw / "weights.cache").exists()
    start_right(raw, graph, wanted)
    model.write_bytes(whole)
    start_right(raw, graph, wanted)  # touched
    model.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(ModelError, match="the model changed since the plan was made") as caught:
        start_right(raw, graph, wanted)
    assert caught.value.next_step == "plan the model again: edgeplan plan cold-start"
    model.write_bytes(whole)
    build_plan_folder(dnnl, model, planned(model, graph, sources=["raw"]), raw)
    (raw / model.name).write_bytes(b"beside the plan: this one counts")
    with pytest.raises(ModelError, match="the model changed"):
        start_right(raw, graph, wanted)
    (raw / model.name).unlink()
    model.unlink()
    with pytest.raises(ModelError, match="cannot open the model"):
        start_right(raw, graph, wanted)
    start_right(folder, graph, wanted)  # all weights come from the cache


_KILLED = """
import os, signal, sys
from pathlib import Path
from edgeplan.runtime import plan_folder
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
model, folder = Path(sys.argv[1]), Path(sys.argv[2])
plan_folder.transformed = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
plan_folder.build_plan_folder(Dnnl(), model, plan_folder.cold_plan(read_folder(folder)), folder)
"""


def test_a_process_killed_while_caching_leaves_nothing_that_matters(
    dnnl: Dnnl, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], folder: Path
) -> None:
    command = [sys.executable, "-c", _KILLED, str(model), str(folder)]
    done = subprocess.run(command, capture_output=True, check=False, timeout=500)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert len(list(folder.parent.rglob("*.tmp"))) == 1
    assert not start_right(folder, graph, wanted)
    build_plan_folder(dnnl, model, cold_plan(read_folder(folder)), folder)
    assert not start_right(folder, graph, wanted)
    assert not list(folder.parent.rglob("*.tmp"))
    assert sorted(p.name for p in folder.iterdir()) == ["plan.json", PROGRAM_BIN, "weights.cache"]


def test_a_limited_cache_keeps_the_smallest_weights(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], caplog: pytest.LogCaptureFixture
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
