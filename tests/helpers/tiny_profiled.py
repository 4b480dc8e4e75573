"""A small model with the kinds of steps that are profiled apart; shared by tests of profiles."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.profiling.settings import Cores, ProfileSettings

PLAN_TINY = ("plan", "cold-start", "tiny.onnx", "-d", "dev", "-o", "plan", "--layouts", "nhwc")
MORE_PLANS = ("small", "limited", "streamed", "plain", "continuous")  # that tests write into the workspace
QUICK = ProfileSettings(blocks=2, warm_runs=1, reference_runs=1, retries=0, max_noisy_share=1.0)


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Journals of the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def tiny() -> Graph:
    """Two equal convolutions, a pool and a classifier."""
    b = GraphBuilder("tiny", (1, 16, 12, 12))
    x = b.relu(b.bn(b.conv(b.input, 16, 3, name="c0"), name="b0"), name="r0")
    x = b.relu(b.conv(x, 16, 3, name="c1"), name="r1")
    x = b.relu(b.conv(x, 16, 3, name="c2"), name="r2")
    return b.build(b.fc(b.flatten(b.gap(x, name="g"), name="f"), 10, name="fc"))


def cores() -> Cores:
    return Cores(tuple(sorted(os.sched_getaffinity(0)))[:2])


def git(folder: Path, *arguments: str) -> str:
    named = ("-c", "user.name=tester", "-c", "user.email=tester@localhost")
    return subprocess.run(["git", *named, *arguments], cwd=folder, capture_output=True, text=True, check=True).stdout
