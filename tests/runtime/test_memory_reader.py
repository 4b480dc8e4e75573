"""The planner's reader is the one that runs: sizes of reads, times of loads that are alone and that share the disk."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from edgeplan.planning.layout import Ints, buffers
from edgeplan.planning.memory.workload import CHUNK_BYTES, Floats, Placement, Reader, Workload, simulated

LANE = "fast"  # see tests/conftest.py


def _loads(weights: list[int], after: list[int], reader: Reader) -> Floats:
    """When the loads of one inference end whose steps take no time."""
    none = np.zeros(0, dtype=np.int64)
    work = Workload(np.zeros(len(weights)), np.array(weights, dtype=np.int64), buffers([], [], [], []))
    begins: Ints = np.cumsum(work.weight_bytes) - work.weight_bytes
    waits = np.array(after, dtype=np.int64)
    placed = Placement(none, np.where(work.weight_bytes > 0, begins, -1), waits, waits, int(work.weight_bytes.sum()))
    return simulated(work, reader, placed).load_end[0]


def test_reads_are_as_large_as_planned() -> None:
    header = (Path(__file__).parents[2] / "native/src/session/reader.h").read_text()
    factor, shift = map(int, re.findall(r"CHUNK_BYTES = (\d+) << (\d+);", header)[0])
    assert factor << shift == CHUNK_BYTES


def test_a_load_that_is_alone_has_all_of_the_bandwidth_and_waits_for_its_read() -> None:
    assert _loads([0, 1000, 1000], [-1, 0, 1], Reader(100.0, 2, 3.0)) == pytest.approx([0.0, 13.0, 26.0])


def test_two_reads_in_flight_share_the_bandwidth_and_hide_their_waiting() -> None:
    # pieces of 600 bytes: the second waits for its answer while the first is read
    assert _loads([0, 1200, 600], [-1, 0, 0], Reader(100.0, 2, 3.0, 600)) == pytest.approx([0.0, 15.0, 21.0])
    assert _loads([0, 1200, 600], [-1, 0, 0], Reader(100.0, 1, 3.0, 600)) == pytest.approx([0.0, 18.0, 27.0])


def test_neighbours_that_may_be_loaded_are_read_together() -> None:
    assert _loads([0, 100, 100, 100], [-1, 0, 0, 0], Reader(100.0, 1, 3.0)) == pytest.approx([0.0, 6.0, 6.0, 6.0])
    assert _loads([0, 100, 100, 100], [-1, 0, 1, 1], Reader(100.0, 1, 3.0)) == pytest.approx([0.0, 4.0, 9.0, 9.0])


def test_what_was_read_is_widened_while_the_next_is_read() -> None:
    alone, beside = Reader(100.0, 2, 3.0, widened_per_ms=500.0), Reader(100.0, 2, 3.0, 600, 500.0)
    assert _loads([0, 1000, 1000], [-1, 0, 1], alone) == pytest.approx([0.0, 15.0, 30.0])
    # the third read begins when the first is widened: 3 + 6 + 1.2; the bytes of each take 6 ms one after the other
    assert _loads([0, 1200, 600], [-1, 0, 0], beside) == pytest.approx([0.0, 16.2, 22.2])
    slow = Reader(100.0, 2, 0.0, 600, 50.0)  # slower than reading: what was read waits for its turn
    assert _loads([0, 600, 600], [-1, 0, 0], slow) == pytest.approx([0.0, 18.0, 30.0])


def test_a_read_of_halves_brings_twice_its_bytes() -> None:
    assert Reader.measured(100.0, 2, 3.0, 0.0) == Reader(100.0, 2, 3.0)
    assert Reader.measured(100.0, 2, 3.0, 500.0) == Reader(100.0, 2, 3.0, 2 * CHUNK_BYTES, 500.0)
