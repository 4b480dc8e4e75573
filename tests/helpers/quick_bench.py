"""A bench on a real engine whose measurements last milliseconds, and the fixture for tests that use one."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from edgeplan.devices.config import DeviceFile
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.nodes import NodeConfig, Operand
from edgeplan.measurement import lock, references
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Measurement, NodeSubject, Subject
from edgeplan.measurement.references import ReferenceTimes
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
    """A state folder and a lock of the test's own, and references that take no three seconds to settle."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(STORED_ROWS_ONLY, raising=False)
    monkeypatch.setattr(references, "_SECONDS", 0.02)
    monkeypatch.setattr(lock, "FOLDER", tmp_path)
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


def timed(median_us: Sequence[float], compute_us: float | Sequence[float] = 100.0, **fields: Any) -> Measurement:
    """A measurement in as many blocks, beside references that are as fast as on the quiet machine; or with other fields."""
    median, nodes = np.array(median_us), fields.get("nodes", ())
    times = {
        "least_us": median / 2,
        "median_us": median,
        "compute_us": np.full(len(median), compute_us),
        "bandwidth_us": np.full(len(median), 400.0),
        "measured_at": np.arange(len(median), dtype=np.float64),
        "node_us": np.zeros((len(median), len(nodes))),
    }
    how = {"nominal": ReferenceTimes(100.0, 400.0), "exponents": SETTINGS.reference_exponents}
    return Measurement(**{"subject": "s", "sample": 0, "nodes": nodes, **times, **how, **fields})


_HOLD = """
import sys
from pathlib import Path
from edgeplan.errors import BusyError
from edgeplan.measurement import lock
lock.FOLDER = Path(sys.argv[1])
try:
    with lock.machine_lock(0.2, name=sys.argv[2]):
        print("held", flush=True)
        sys.stdin.read()
except BusyError as error:
    print(error.what)
    sys.exit(error.exit_code)
"""


@contextmanager
def holder(name: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process, with a temporary folder of its own, that holds the machine until its input ends, or says who does."""
    command, pipe = [sys.executable, "-c", _HOLD, str(lock.FOLDER), name], subprocess.PIPE
    other = dict.fromkeys(("TMPDIR", "TMP", "TEMP"), tempfile.mkdtemp(dir=lock.FOLDER))
    with subprocess.Popen(command, env={**os.environ, **other}, stdin=pipe, stdout=pipe, text=True) as process:
        yield process
        process.kill()


@contextmanager
def held(name: str = "") -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the machine now."""
    with holder(name) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
