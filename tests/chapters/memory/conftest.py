"""What tests of the chapter on memory share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgeplan.chapters.memory.folders import RunCores
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.memory_group import NoGroupError, memory_group


@pytest.fixture(scope="session")
def groups() -> None:
    """Memory cgroups, of a system that gives some."""
    try:
        with memory_group():
            pass
    except NoGroupError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def cores() -> RunCores:
    """The first processor computes, the others read."""
    return RunCores.of(sorted(os.sched_getaffinity(0)), 1)


@pytest.fixture(scope="session")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of whose 13 MiB of weights most need not be in memory at a time."""
    b = GraphBuilder("wide", (1, 3, 32, 32))
    x = b.flatten(b.maxpool(b.relu(b.conv("input", 16, 3)), 4, 4))
    for width in (2048, 512, 512):
        x = b.relu(b.fc(x, width))
    return save_onnx(b.build(b.fc(x, 10)), tmp_path_factory.mktemp("wide") / "wide.onnx")
