"""A bench on a real engine whose measurements last milliseconds, and the fixture for tests that use one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from edgeplan.devices.config import DeviceFile
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.nodes import NodeConfig, Operand
from edgeplan.measurement import references
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import NodeSubject, Subject
from edgeplan.measurement.settings import MeasurementSettings, ReferenceExponents
from edgeplan.support.store import STORED_ROWS_ONLY

DEVICE = DeviceFile(format_version=1, name="dev", engine="onnxruntime")
SETTINGS = MeasurementSettings(
    blocks=3,
    min_runs=2,
    max_runs=3,
    block_ms=1.0,
    reference_runs=1,
    batch_size=2,
    batch_weight_mb=10,
    min_gap_seconds=0.0,
    max_noise=1.0,
    extra_blocks=0,
    max_noisy_share=1.0,
    retries=0,
    reference_exponents=ReferenceExponents(compute=1.0, bandwidth=0.0),
)


@pytest.fixture(autouse=True)
def measuring_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A state folder of the test's own, and references that take no three seconds to settle."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(STORED_ROWS_ONLY, raising=False)
    monkeypatch.setattr(references, "_SECONDS", 0.02)
    affinity = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, affinity)


def subjects(count: int = 3, *, profiled: bool = False) -> list[Subject]:
    """Small networks, each another."""
    found = []
    for n in range(count):
        b = GraphBuilder(f"tiny-{n}", (1, 4, 8, 8))
        found.append(Subject(b.build(b.relu(b.conv(b.input, 4 + n, 3))), profiled))
    return found


def open_bench(tmp_path: Path, workspace: str = "w", part: str = "rows", **changes: Any) -> Bench:
    """A bench with other settings, whose rows lie in a workspace of the test."""
    return Bench(DEVICE, SETTINGS.model_copy(update=changes), tmp_path / workspace / part / "dev")


def node_subjects(*, refused: bool = False) -> list[NodeSubject]:
    """Copies of a small and of a larger node; the last of them may be one that no engine can run."""
    x, y = Operand("float32", (1, 64)), Operand("float32", (1, 32))
    weights = Operand("float32", (64, 32), constant=True)
    configs = [NodeConfig("Relu", inputs=(x,), outputs=(x,)), NodeConfig("MatMul", inputs=(x, weights), outputs=(y,))]
    return [NodeSubject(config, 1 << 20) for config in [*configs, *([replace(configs[1], outputs=(x,))] if refused else [])]]
