"""The bandwidth of the disk, measured once for a machine, and bytes that are brought from it."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from plan_folders import wait_while

from edgeplan.errors import DeviceError, FormatError
from edgeplan.measurement.process import page_cache
from edgeplan.planning.profile import Disk
from edgeplan.profiling import disk
from edgeplan.runtime.readahead import Bringer

_MB = 1 << 20
Broken = Callable[[Exception], None]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(3 * _MB))
    return path


@pytest.fixture
def broken_disk(monkeypatch: pytest.MonkeyPatch) -> Broken:
    """From when it is given an error on, nothing can be sent from a file."""

    def broken(error: Exception) -> None:
        def fail(*_: object) -> int:
            raise error

        monkeypatch.setattr(os, "sendfile", fail)

    return broken


def _evict(*paths: Path) -> None:
    """Pages that were just written may still be on a processor's list of new ones, and stay the first time."""
    wait_while(lambda: page_cache.evict(paths) > 0)
    assert page_cache.cached_share(paths) == 0.0


def test_a_disk_is_measured_once_for_a_machine(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = file.with_name("disk.json")
    first = disk.kept_disk(kept, [file])
    assert first.mb_per_s > 0
    assert first.latency_ms >= 0
    monkeypatch.setattr(disk, "measure_disk", lambda *_, **__: Disk(1.0, 2.0))
    assert disk.kept_disk(kept, [file]) == first
    row = json.loads(kept.read_text())
    kept.write_text(json.dumps({key: value for key, value in row.items() if key != "how"}))
    assert disk.kept_disk(kept, [file]) == Disk(1.0, 2.0)  # what was measured another way is measured again
    monkeypatch.setattr(disk, "fingerprint", lambda: "another")
    assert disk.kept_disk(kept, [file]) == Disk(1.0, 2.0)


@pytest.mark.parametrize("disturbed", [1.0, 1.1])
def test_latency_and_bandwidth_follow_from_parts_of_a_file(disturbed: float) -> None:
    sizes = [5_000_000 * 2**k for k in range(6)]
    times = np.array([2.5 + size / 2.8e6 for size in sizes])  # 2,800 MB/s
    times[3] *= disturbed
    found = disk.fitted(sizes, times)
    assert found.mb_per_s == pytest.approx(2800, rel=0.1)
    assert found.latency_ms == pytest.approx(2.5, rel=0.1 if disturbed > 1 else 1e-6)
    assert disk.fitted([1000, 2000], np.array([3.0, 1.5])).mb_per_s > 0  # faster the more there is: no line fits


def test_parts_are_read_from_the_disk_each_time(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, float]] = []
    real = disk._reading_ms

    def reading(path: Path, size: int) -> float:
        seen.append((size, page_cache.cached_share([path])))
        return real(path, size)

    monkeypatch.setattr(disk, "_reading_ms", reading)
    disk.measure_disk([file])
    assert {share for _, share in seen} == {0.0}
    assert {size for size, _ in seen} == {3 * _MB // part for part in (32, 16, 8, 4, 2, 1)}


def test_a_disk_that_cannot_be_measured_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "evict", lambda _: 0.5)
    with pytest.raises(DeviceError, match="evicted"):
        disk.measure_disk([file])


@pytest.mark.parametrize("text", ["", "[]", '{"machine": "m", "mb_per_s": 0, "latency_ms": 1, "measured_at": 1}'])
def test_a_damaged_measurement_is_refused(file: Path, text: str) -> None:
    kept = file.with_name("disk.json")
    kept.write_text(text)
    with pytest.raises(FormatError, match="disk"):
        disk.kept_disk(kept, [file])


@pytest.mark.parametrize("sent", [True, False])
def test_bytes_are_brought_into_memory_and_counted(file: Path, broken_disk: Broken, sent: bool) -> None:
    if not sent:  # a file system whose files cannot be sent
        broken_disk(OSError(errno.EINVAL, "Invalid argument"))
    size = file.stat().st_size
    _evict(file)
    with Bringer() as bringer, file.open("rb", buffering=0) as opened:
        assert bringer.bring(opened.fileno(), size - 10, size + 5) == 10
        assert page_cache.cached_share([file]) < 1.0
        assert bringer.bring(opened.fileno(), 0, size) == size
        assert page_cache.cached_share([file]) == 1.0


def test_bytes_that_cannot_be_read_are_told(broken_disk: Broken) -> None:
    broken_disk(OSError(errno.EIO, "Input/output error"))
    with Bringer() as bringer, pytest.raises(OSError, match="Input/output"):
        bringer.bring(0, 0, 1)
