"""Weights that shrink or cannot be read while they are used, in processes that may die of it."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from edgeplan.errors import ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import CACHE_NAME
from edgeplan.runtime.native_session import NativeSession, open_session
from edgeplan.runtime.plan_folder import build_plan_folder

LANE = "processes"  # see tests/conftest.py

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


@pytest.fixture
def folder(dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path) -> Path:
    """A plan whose second convolution has weights of more than 2 MiB, which are mapped in several parts."""
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.conv_bn(b.input, 256, 3, 2)
    graph = b.build(b.fc(b.flatten(b.gap(b.conv_bn(x, 256, 3, 2))), 7))
    model = save_onnx(graph, tmp_path / "net.onnx")
    return build_plan_folder(dnnl, model, planned(model, graph, sources=["cached_mmap"], widen_from=-1), tmp_path / "plan")


@pytest.mark.parametrize("when", ["opened", "run"])
def test_a_cache_that_is_cut_is_told_and_ends_no_process(folder: Path, when: str) -> None:
    size = (folder / CACHE_NAME).stat().st_size
    sizes = [size * tenth // 10 // mmap.PAGESIZE * mmap.PAGESIZE for tenth in range(0, 10, 3)]
    command = [sys.executable, "-c", _RUNS, str(folder), when, *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"
    told = done.stdout.splitlines()
    assert len(told) == len(sizes)
    assert all("changed while they were in use" in line or "the weights are damaged" in line for line in told), told


def _zeros(session: NativeSession) -> dict[str, np.ndarray]:
    return {tensor.name: np.zeros(tensor.shape, tensor.dtype) for tensor in session.inputs}


def test_a_model_that_was_not_read_may_change(folder: Path) -> None:
    with open_session(folder) as session:
        os.utime(folder.parent / "net.onnx")
        assert session.run(_zeros(session))
        os.utime(folder / CACHE_NAME)
        with pytest.raises(ModelError, match="changed while they were in use"):
            session.run(_zeros(session))
