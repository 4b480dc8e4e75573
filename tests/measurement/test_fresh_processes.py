"""What a cold run is told, and the memory, the files and the processors that it begins with."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plan_folders import wait_while
from pydantic import ValidationError

from edgeplan.engines import base
from edgeplan.graph.ir import Graph, Tensor
from edgeplan.measurement.process import page_cache
from edgeplan.measurement.process import prepare_machine as settling
from edgeplan.measurement.process.counters import Counters, first_touch_ms
from edgeplan.measurement.process.inputs import outputs_digest, random_inputs
from edgeplan.measurement.process.job import RunJob, RunResult
from edgeplan.measurement.process.page_cache import FixedReadAheadError, read_ahead_kb, reading_ahead
from edgeplan.measurement.process.prepare_machine import prepare_machine
from edgeplan.support.tensors import relative_error

LANE = "processes"  # see tests/conftest.py

GOOD: dict[str, Any] = {
    "setting": "onnxruntime",
    "threads": 2,
    "cpus": [0, 1],
    "artefact": {"main": "m.onnx", "files": ["m.onnx"]},
    "inputs": {"input": [1, 3, 8, 8]},
    "state": "evicted",
}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("threads", 0),
        ("cpus", [0, 0]),
        ("cpus", [-1]),
        ("inputs", {}),
        ("inputs", {"input": [1, 0, 8, 8]}),
        ("state", "lukewarm"),
        ("format_version", 2),
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


def test_inputs_are_those_of_the_engines() -> None:
    shapes = {"first": (1, 3, 4, 4), "second": (2, 5)}
    graph = Graph("g", (), tuple(shapes), (), {name: Tensor(name, shape) for name, shape in shapes.items()})
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
    assert outputs_digest([b]) == outputs_digest([b.copy()])
    assert outputs_digest([b]) != outputs_digest([np.nextafter(b, np.float32(9), dtype=np.float32)])


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


def test_first_touch_faults_in_every_page() -> None:
    before = Counters.of().minor_faults
    assert first_touch_ms(64 * 4096) > 0
    assert Counters.of().minor_faults > before
    assert first_touch_ms(10) == 0.0


_FAULTS_OF_A_LIBRARY = """
import ctypes, resource, sys
from edgeplan.measurement.process import prepare_machine
library = ctypes.CDLL(sys.argv[1])
if sys.argv[2] == "mapped":
    prepare_machine.map_code()
address = next(l for l in open("/proc/self/maps") if sys.argv[1] in l and "r-x" in l).split("-")
start, end = int(address[0], 16), int(address[1].split()[0], 16)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for page in range(start, end, 4096):
    ctypes.c_char.from_address(page).value
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _library() -> str:
    """One that this process has loaded."""
    return next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "multiarray" in line)


def test_code_that_was_mapped_is_not_faulted_in_again() -> None:
    path = _library()

    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", _FAULTS_OF_A_LIBRARY, path, how], capture_output=True, check=True)
        return int(done.stdout)

    assert faults("mapped") < 0.1 * faults("plain")


def test_a_library_that_left_the_page_cache_is_read_again() -> None:
    library = Path(_library())
    if page_cache.evict([library]) == 1.0:
        pytest.skip("this file system keeps its pages")
    settling.map_code()
    assert page_cache.cached_share([library]) == 1.0


def test_memory_is_given_back() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    before = resident()
    settling.back_memory(16 << 20)
    assert resident() - before < 16 << 20


def test_files_are_looked_at_and_stay_in_the_page_cache(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("empty", "weights")]
    for file, size in zip(files, (0, 10_001), strict=True):
        file.write_bytes(b"w" * size)
    page_cache.evict(files)
    assert page_cache.cached_share(files[:1]) == 0.0, "an empty file holds no pages"
    settling.back_files(files)
    assert page_cache.cached_share(files) == 1.0


_BUSY, _FREE = 1.9, 1.1
Looks = list[float]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "weights"
    found.write_bytes(bytes(1 << 20))
    return found


def _evict(file: Path) -> None:
    wait_while(lambda: page_cache.evict([file]) > 0)


@pytest.fixture
def looks(file: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Looks]:
    """Processors that are busy at each look but the last; grows by the share of the file in memory then.

    While they are waited for, somebody else does `meanwhile`.
    """

    def watched(*told: float, meanwhile: Callable[[], object] = lambda: None) -> Looks:
        left, shares = list(told), Looks()

        def look(*_: object, **__: object) -> float:
            shares.append(page_cache.cached_share([file]))
            meanwhile()
            return left.pop(0)

        monkeypatch.setattr(settling, "wait_until_free", look)
        return shares

    return watched


@pytest.mark.parametrize("evicted", [True, False])
def test_what_a_wait_may_have_undone_is_done_again_and_the_look_comes_last(
    file: Path, looks: Callable[..., Looks], evicted: bool
) -> None:
    seen = looks(_BUSY, _FREE, meanwhile=lambda: page_cache.read_through([file]) if evicted else _evict(file))
    assert prepare_machine([file], (0,), evicted=evicted, usual_us=100.0) == _FREE
    assert seen == [0.0 if evicted else 1.0] * 2


def test_processors_that_stay_disturbed_are_waited_for_so_long_and_no_longer(
    looks: Callable[..., Looks], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "_WAIT_SECONDS", -1.0)
    seen = looks(_BUSY)
    assert prepare_machine([], (0,), evicted=True, usual_us=100.0) == _BUSY
    assert len(seen) == 1


def test_without_a_usual_time_nothing_is_waited_for(file: Path, looks: Callable[..., Looks]) -> None:
    seen = looks()
    assert prepare_machine([file], (0,), evicted=False, usual_us=0.0) == 1.0
    assert seen == []
    assert page_cache.cached_share([file]) == 1.0


_KILLED = """
import sys, time
from pathlib import Path
from edgeplan.measurement.process import page_cache
page_cache._DISKS = Path(sys.argv[1])
with page_cache.reading_ahead(Path(sys.argv[1]), 128):
    print("changed", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The number of the disk of `tmp_path`, in a file there."""
    monkeypatch.setattr(page_cache, "_DISKS", tmp_path)
    file = page_cache.read_ahead_file(tmp_path)
    file.parent.mkdir()
    file.write_text("8192\n")
    return file


def test_the_number_is_changed_for_the_block_alone(disk: Path, tmp_path: Path) -> None:
    assert read_ahead_kb(tmp_path) == 8192
    with reading_ahead(tmp_path, 128):
        assert read_ahead_kb(tmp_path) == 128
    assert disk.read_text() == "8192"
    with pytest.raises(ValueError, match="meanwhile"), reading_ahead(tmp_path, 128):
        raise ValueError("meanwhile")
    assert disk.read_text() == "8192"


def test_a_kill_puts_it_back(disk: Path, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "changed\n"
        assert disk.read_text() == "128"
        os.kill(process.pid, signal.SIGKILL)
    wait_while(lambda: disk.read_text() != "8192")
    assert disk.read_text() == "8192"


def test_a_disk_without_the_number_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_DISKS", tmp_path / "none")
    assert read_ahead_kb(tmp_path) is None
    with pytest.raises(FixedReadAheadError), reading_ahead(tmp_path, 128):
        pass
