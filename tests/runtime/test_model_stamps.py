"""Raw weights come from the model that was planned, which is known by what the file system says of its file."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from plan_starts import start_right

from edgeplan.errors import ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder


@pytest.fixture
def graph() -> Graph:
    b = GraphBuilder("net", (1, 3, 16, 16))
    return b.build(b.fc(b.flatten(b.gap(b.conv_bn(b.input, 16, 3, 2))), 7))


def _folder(dnnl: Dnnl, planned: Callable[..., Plan], graph: Graph, model: Path, first: str) -> Path:
    """A plan with weights in its cache behind a first step whose weights come from elsewhere."""
    plan = planned(model, graph, sources=[first, *["cached_read"] * 9])
    return build_plan_folder(dnnl, model, plan, model.parent / "plan")


@pytest.mark.parametrize("how", ["written", "replaced", "touched", "beside", "changed", "cut", "gone"])
def test_a_model_of_another_stamp_is_known_by_its_contents(
    dnnl: Dnnl, planned: Callable[..., Plan], graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], how: str
) -> None:
    folder, before = _folder(dnnl, planned, graph, model, "raw"), model.stat()
    assert not start_right(folder, graph, wanted)
    time.sleep(0.02)  # a tick of the clock of the file system
    if how == "beside":
        shutil.copy2(model, folder)
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
    if how not in ("changed", "cut", "gone"):
        assert not start_right(folder, graph, wanted)
        return
    with pytest.raises(ModelError, match="cannot open the model" if how == "gone" else "the model changed since") as caught:
        open_session(folder)
    assert caught.value.where == str(model)
    assert "plan" in caught.value.next_step


def test_a_model_whose_weights_are_cached_is_not_needed(
    dnnl: Dnnl, planned: Callable[..., Plan], graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], tmp_path: Path
) -> None:
    folder = _folder(dnnl, planned, graph, model, "cached_mmap")
    model.unlink()
    assert not start_right(folder, graph, wanted)
    copied = Path(shutil.copytree(folder, tmp_path / "elsewhere"))
    for _ in range(2):  # nothing is written at a run
        assert start_right(copied, graph, wanted), "the stamp is another one: weights are held to their checksums"
