"""Weights from the disk: its bandwidth measured once for a machine, and weights asked for before they are fetched."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cold_session_support import wait_while

from edgeplan.errors import DeviceError, FormatError
from edgeplan.measurement.process import page_cache
from edgeplan.planning.profile import Disk
from edgeplan.profiling import disk
from edgeplan.runtime import reading_ahead
from edgeplan.runtime.bringing import Bringer
from edgeplan.runtime.native import words

_MB = 1 << 20
Broken = Callable[[Exception], list[int]]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(3 * _MB))
    return path


@pytest.fixture
def broken_disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], list[int]]:
    """From when it is given an error on, nothing can be sent from a file; grows by one for each attempt."""

    def broken(error: Exception) -> list[int]:
        tried: list[int] = []

        def fail(*_: object) -> int:
            tried.append(1)
            raise error

        monkeypatch.setattr(os, "sendfile", fail)
        return tried

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


def _shared(files: list[tuple[int, ...]], descriptors: tuple[int, int]) -> SimpleNamespace:
    """A session's shared part, as far as reading ahead looks at it: rows of source, segment and bytes of each step."""
    size = words.HEAD_PLACE
    records = np.zeros(size * len(files), np.int64)
    for k, row in enumerate(files):
        records[size * k : size * k + 3] = row
    tape = SimpleNamespace(records=records, record_starts=np.arange(len(files)) * size)
    program = SimpleNamespace(step_count=len(files), sources=("raw", "cached_mmap"))
    cached, raw = descriptors
    weights = SimpleNamespace(places=lambda step: [(raw, step * _MB, step * _MB + 8)], descriptors=(raw,))
    objects = SimpleNamespace(store=SimpleNamespace(flags=np.zeros(words.FLAGS, np.int64)))
    cache, steps = SimpleNamespace(descriptor=cached), list(range(len(files)))
    return SimpleNamespace(
        objects=objects, program=program, steps=steps, tape=SimpleNamespace(tape=tape), cache=cache, raw=weights
    )


_ROWS = [
    (words.MAPPED, 0, 100_000),
    (words.NO_WEIGHTS, 0, 0),
    (words.COPIED, 100_000, 50_000),  # beside the first: read together
    (words.BY_PYTHON, 0, 0),  # raw weights, of the model's file
    (words.MAPPED, 150_000, 5 * _MB // 2),
]


def test_weights_are_read_in_the_order_of_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[int]] = []  # descriptor, first byte and the one after the last of what was read in one go
    told: list[int] = []
    shared = _shared(_ROWS, (7, 8))
    flags = shared.objects.store.flags

    def send(_: int, descriptor: int, at: int, count: int) -> int:
        if asked and asked[-1][0] == descriptor and asked[-1][2] == at and told[-1] == flags[words.ARRIVED]:
            asked[-1][2] += count
        else:
            asked.append([descriptor, at, at + count])
            told.append(int(flags[words.ARRIVED]))
        return count

    monkeypatch.setattr(os, "sendfile", send)
    reader = reading_ahead.ReadingAhead()
    reader.go_on(shared)
    reader.run()
    assert asked == [[7, 0, 150_000], [8, 3 * _MB, 3 * _MB + 8], [7, 150_000, 150_000 + 5 * _MB // 2]]
    assert told == [0, 3, 4]  # steps before which all have come, until then
    assert flags[words.ARRIVED] == len(_ROWS)


def test_only_what_is_not_in_memory_is_read_ahead(file: Path) -> None:
    descriptor = os.open(file, os.O_RDONLY)
    try:
        shared = _shared(_ROWS, (descriptor, descriptor))
        page_cache.read_through([file])
        assert reading_ahead.reading_ahead(shared) is None
        _evict(file)
        reader = reading_ahead.reading_ahead(shared)
        assert reader is not None
        reader.join()
        assert page_cache.cached_share([file]) == 1.0
    finally:
        os.close(descriptor)


def test_reading_ahead_ends_when_it_is_told_to_or_the_disk_fails(broken_disk: Broken) -> None:
    calls = broken_disk(OSError(errno.EIO, "Input/output error"))
    shared = _shared(_ROWS, (7, 8))
    reader = reading_ahead.ReadingAhead()
    reader.go_on(shared)
    reader.run()  # whoever fetches the weights tells of it
    assert len(calls) == 1
    assert shared.objects.store.flags[words.ARRIVED] == len(_ROWS)  # nobody waits
    reader = reading_ahead.ReadingAhead()
    reader.go_on(_shared(_ROWS, (7, 8)))
    reader.end()
    reader.run()
    assert len(calls) == 1


def _plan_folder(tmp_path: Path) -> tuple[Path, Path]:
    """A plan folder as far as reading ahead looks at it, evicted, and its weight cache."""
    folder = tmp_path / "plan"
    folder.mkdir()
    for name in ("program.json", "program.tape", "plan.json"):
        (folder / name).write_bytes(bytes(10_000))
    cache = folder / "weights.cache"
    cache.write_bytes(bytes(4 * _MB))
    _evict(*folder.iterdir())
    return folder, cache


def _begun(folder: Path) -> reading_ahead.ReadingAhead:
    """A head start on an evicted plan folder; asked for again where the disk answered each look into memory at once."""
    for _ in range(10):
        assert page_cache.evict(folder.iterdir()) == 0.0
        if reader := reading_ahead.head_start(folder):
            return reader
    raise AssertionError("no head start on a plan that is not in memory")


def _open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def test_a_plan_is_read_from_the_disk_before_its_program_is_known(tmp_path: Path) -> None:
    folder, cache = _plan_folder(tmp_path)
    reader = _begun(folder)
    wait_while(lambda: page_cache.cached_share(folder.iterdir()) < 1.0)
    assert page_cache.cached_share(folder.iterdir()) == 1.0
    descriptor = os.open(cache, os.O_RDONLY)
    try:
        shared = _shared([(words.MAPPED, 0, _MB), (words.MAPPED, _MB, _MB)], (descriptor, descriptor))
        assert reading_ahead.reading_ahead(shared, reader) is reader
        reader.join()
        assert shared.objects.store.flags[words.ARRIVED] == 2
    finally:
        os.close(descriptor)
    assert reading_ahead.head_start(folder) is None  # all of it is there
    cache.unlink()
    assert reading_ahead.head_start(folder) is None  # there is nothing to begin with


def test_a_start_does_without_a_head_start_where_none_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = _plan_folder(tmp_path)
    before = _open_files()

    def refused(_: reading_ahead.ReadingAhead) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(reading_ahead.ReadingAhead, "start", refused)
        assert reading_ahead.head_start(folder) is None
    cache.unlink()
    os.mkfifo(cache)  # nobody ever writes to it
    assert reading_ahead.head_start(folder) is None
    cache.unlink()
    cache.mkdir()
    reader = reading_ahead.head_start(folder)
    if reader is not None:
        reader.end()
    assert _open_files() == before


def test_lanes_do_not_wait_for_a_reader_that_lacks_memory(broken_disk: Broken) -> None:
    broken_disk(MemoryError())
    reader = reading_ahead.ReadingAhead(os.open(os.devnull, os.O_RDONLY))
    reader.start()
    shared = _shared(_ROWS, (7, 8))
    reading_ahead.reading_ahead(shared, reader)
    reader.join()
    assert shared.objects.store.flags[words.ARRIVED] == len(_ROWS)


def test_a_head_start_ends_when_its_plan_cannot_be_run_or_the_disk_fails(tmp_path: Path, broken_disk: Broken) -> None:
    folder, _ = _plan_folder(tmp_path)
    before = _open_files()
    reader = _begun(folder)
    reader.end()  # the program was never known
    assert _open_files() == before
    broken_disk(OSError(errno.EIO, "Input/output error"))
    reader = _begun(folder)
    shared = _shared(_ROWS, (7, 8))
    reading_ahead.reading_ahead(shared, reader)
    reader.join()
    assert shared.objects.store.flags[words.ARRIVED] == len(_ROWS)  # nobody waits


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
