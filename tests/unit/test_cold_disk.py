"""Weights from the disk: its bandwidth measured once for a machine, and weights asked for before they are fetched."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from edgeplan.cold import page_cache
from edgeplan.cold.profiling import disk
from edgeplan.errors import DeviceError, FormatError
from edgeplan.planning.cold_start.profile import Disk
from edgeplan.runtime import reading_ahead
from edgeplan.runtime.native import words

_MB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(3 * _MB))
    return path


def test_a_disk_is_measured_once_for_a_machine(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = file.with_name("disk.json")
    first = disk.kept_disk(kept, [file])
    assert first.mb_per_s > 0
    assert first.latency_ms > 0
    monkeypatch.setattr(disk, "measure_disk", lambda *_, **__: Disk(1.0, 2.0))
    assert disk.kept_disk(kept, [file]) == first
    monkeypatch.setattr(disk, "fingerprint", lambda: "another")
    assert disk.kept_disk(kept, [file]) == Disk(1.0, 2.0)


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


def _program(rows: list[tuple[int, int, int]]) -> SimpleNamespace:
    """A session's shared part, as far as reading ahead looks at it: rows of source, segment and bytes of each step."""
    size = words.HEAD_PLACE
    records = np.zeros(size * len(rows), np.int64)
    for k, row in enumerate(rows):
        records[size * k : size * k + 3] = row
    tape = SimpleNamespace(records=records, record_starts=np.arange(len(rows)) * size)
    program = SimpleNamespace(step_count=len(rows), steps=list(range(len(rows))))
    return SimpleNamespace(program=program, tape=SimpleNamespace(tape=tape), cache=SimpleNamespace(descriptor=7))


def test_weights_are_asked_for_in_large_pieces_in_the_order_of_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int] | str] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, at, size, _: asked.append((at // _MB, size // _MB)) or fd)
    rows = [
        (words.MAPPED, 1 * _MB, 1 * _MB),
        (words.NO_WEIGHTS, 0, 0),
        (words.COPIED, 2 * _MB, 1 * _MB),
        (words.BY_PYTHON, 0, 0),  # raw weights, of the model's file
        (words.MAPPED, 3 * _MB, 2 * _MB),
        (words.MAPPED, 5 * _MB, 2 * _MB),
        (words.MAPPED, 7 * _MB, 10 * _MB),
        (words.MAPPED, 17 * _MB, 1 * _MB),
    ]
    shared = _program(rows)
    shared.raw = SimpleNamespace(read_ahead=lambda step: asked.append(f"raw of {step}"))
    reading_ahead._read_ahead(shared)
    assert asked == [(1, 2), "raw of 3", (3, 4), (7, 4), (11, 4), (15, 2), (17, 1)]
