from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from edgeplan.engines import base
from edgeplan.engines.cold import Artefact
from edgeplan.graph.builder import GraphBuilder
from edgeplan.measurement.process import page_cache
from edgeplan.measurement.process.counters import Counters, first_touch_ms
from edgeplan.measurement.process.inputs import digest, random_inputs
from edgeplan.measurement.process.job import RunJob, RunResult
from edgeplan.support.tensors import relative_error

GOOD: dict[str, Any] = {
    "setting": "onnxruntime",
    "threads": 2,
    "cpus": [0, 1],
    "artefact": {"main": "m.onnx", "files": ["m.onnx"]},
    "inputs": {"input": [1, 3, 8, 8]},
    "state": "evicted",
}


def test_a_job_survives_its_journey_as_json() -> None:
    job = RunJob.model_validate(GOOD)
    assert RunJob.model_validate_json(job.model_dump_json()) == job


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threads", 0),
        ("threads", "many"),
        ("cpus", [0, 0]),
        ("cpus", [-1]),
        ("inputs", {}),
        ("inputs", {"input": [1, 0, 8, 8]}),
        ("inputs", {"": [1]}),
        ("state", "lukewarm"),
        ("warm_runs", -1),
        ("seed", -1),
        ("setting", ""),
        ("format_version", 2),
        ("kind", "prepare"),
        ("colour", "red"),
        ("artefact", {"main": "m.onnx", "files": []}),
        ("artefact", {"main": "m.onnx", "files": ["other.bin"]}),
    ],
)
def test_nonsense_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValidationError, match=field.split(".", maxsplit=1)[0]):
        RunJob.model_validate(GOOD | {field: value})


def test_results_keep_infinity_through_json() -> None:
    result = RunResult(cold_ms=1.0, output_error=math.inf)
    assert RunResult.model_validate_json(result.model_dump_json()) == result
    assert RunResult.model_validate(json.loads(result.model_dump_json())) == result


def test_main_must_be_among_what_is_evicted() -> None:
    with pytest.raises(ValidationError, match="would not be evicted"):
        Artefact(main=Path("a"), files=(Path("b"),))


def test_inputs_are_those_of_the_engines() -> None:
    b = GraphBuilder("g", (1, 3, 4, 4))
    other = b.add_input("second", (2, 5))
    graph = b.build(b.relu(b.input), other)
    ours = random_inputs({name: graph.shape(name) for name in graph.inputs}, seed=7)
    for name, value in base.random_inputs(graph, seed=7).items():
        np.testing.assert_array_equal(ours[name], value)


def test_relative_error() -> None:
    b = np.array([[1.0, -4.0]], np.float32)
    assert relative_error([b], [b]) == 0
    assert relative_error([b + np.float32(0.5)], [b]) == pytest.approx(0.125)
    assert relative_error([b.T], [b]) == math.inf
    assert relative_error([b * np.float32(np.nan)], [b]) == math.inf
    assert relative_error([], [b]) == math.inf
    assert relative_error([b], [0 * b]) == math.inf


def test_digest_depends_on_every_byte() -> None:
    b = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert digest([b]) == digest([b.copy()])
    assert digest([b]) != digest([np.nextafter(b, np.float32(9), dtype=np.float32)])


def test_eviction_is_seen_in_the_page_cache_and_in_the_bytes_read(tmp_path: Path) -> None:
    file = tmp_path / "weights.bin"
    file.write_bytes(os.urandom(3_000_001))
    page_cache.read_through([file])
    assert page_cache.cached_share([file]) == 1.0
    if page_cache.evict([file]) > 0:
        pytest.skip("this file system keeps its pages")
    assert page_cache.cached_share([file]) == 0.0
    before = Counters.of().read
    total, milliseconds = page_cache.read_through([file])
    assert total == 3_000_001
    assert milliseconds > 0
    assert Counters.of().read - before >= 3_000_001
    assert page_cache.read_bandwidth_mb_per_s([file]) > 0


def test_a_file_mapped_elsewhere_is_reported_as_not_evicted(tmp_path: Path) -> None:
    file = tmp_path / "held.bin"
    file.write_bytes(os.urandom(1 << 20))
    holder = (
        "import mmap, sys; f = open(sys.argv[1], 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ); "
        "sum(m[::4096]); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen([sys.executable, "-c", holder, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert page_cache.evict([file]) > 0
        assert page_cache.read_bandwidth_mb_per_s([file]) == 0.0
        other.communicate()
    assert page_cache.evict([file]) == 0


def test_empty_files_hold_no_pages(tmp_path: Path) -> None:
    file = tmp_path / "empty"
    file.touch()
    assert page_cache.cached_share([file]) == 0.0


def test_first_touch_faults_in_every_page() -> None:
    before = Counters.of().minor_faults
    assert first_touch_ms(64 * 4096) > 0
    assert Counters.of().minor_faults > before
    assert first_touch_ms(10) == 0.0
