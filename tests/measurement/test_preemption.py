"""Runs that others interrupt, and processors that others use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from edgeplan.measurement import others
from edgeplan.measurement.others import timed_runs
from edgeplan.support.cpus import busy_ticks, least_loaded, others_load, pin_threads

LANE = "processes"  # see tests/conftest.py

PROCESSOR = max(os.sched_getaffinity(0))
BUSY = "import os, sys; os.sched_setaffinity(0, [int(sys.argv[1])]); print('on', flush=True)\nwhile True: pass"


@contextmanager
def busy(*processors: int) -> Iterator[None]:
    """A process that never sleeps on each processor."""
    started = [subprocess.Popen([sys.executable, "-c", BUSY, str(p)], stdout=subprocess.PIPE, text=True) for p in processors]
    try:
        for process in started:
            assert process.stdout is not None
            assert process.stdout.readline() == "on\n"
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


@pytest.fixture
def _here() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {PROCESSOR})
    yield
    os.sched_setaffinity(0, before)


def spin(ms: float) -> None:
    """Work of a fixed amount of processor time."""
    end = time.thread_time_ns() + int(ms * 1e6)
    while time.thread_time_ns() < end:
        pass


@pytest.mark.usefixtures("_here")
@pytest.mark.parametrize("ms", [1.0, 30.0])
def test_beside_a_process_that_never_sleeps_a_run_takes_about_its_own_time(ms: float) -> None:
    with busy(PROCESSOR):
        found = timed_runs(lambda: spin(ms), least=4, most=20, block_ms=4 * ms, threads=1)
    assert ms <= min(found) / 1e6 < 1.5 * ms


@pytest.mark.usefixtures("_here")
def test_interrupted_runs_do_not_count_while_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([0, 1, 1, 1, 1, 2, 2, 2, 2, 2])  # the first and the third of five runs are interrupted
    monkeypatch.setattr(others, "switches", lambda: next(counts))
    durations = iter([9.0, 1.0, 9.0, 1.0, 1.0])
    found = timed_runs(lambda: spin(next(durations)), least=3, most=3, block_ms=100.0, threads=1)
    assert len(found) == 3
    assert max(found) / 1e6 < 8.0


def test_of_several_threads_durations_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter(range(1000))
    monkeypatch.setattr(others, "switches", lambda: next(counts))
    found = timed_runs(lambda: time.sleep(0.002), least=2, most=4, block_ms=1.0, threads=2)
    assert min(found) >= 2_000_000


def test_ticks_of_a_processor_are_those_it_was_not_idle() -> None:
    lines = ["cpu  1 1 1 1 1 1 1 1 0 0", "cpu0 10 20 30 1000 500 1 2 3 9 9", "cpu12 1 0 0 7 0 0 0 4 0 0", "intr 5"]
    assert busy_ticks(lines) == {0: 66, 12: 5}


@pytest.mark.parametrize(
    ("cores", "spare", "load", "expected"),
    [
        ((1,), (0,), {0: 0.0, 1: 0.9}, (0,)),
        ((1,), (0,), {0: 0.85, 1: 0.9}, (1,)),
        ((1,), (0,), {1: 0.9}, (1,)),
        ((1,), (), {1: 0.9}, (1,)),
        ((1, 2), (0, 3), {0: 0.0, 1: 0.9, 2: 0.8, 3: 0.1}, (0, 3)),
        ((1, 2), (0,), {0: 0.0, 1: 0.9, 2: 0.8}, (0, 2)),
        ((1,), (0,), {}, (1,)),
    ],
)
def test_a_processor_is_left_for_one_that_others_use_clearly_less(
    cores: tuple[int, ...], spare: tuple[int, ...], load: dict[int, float], expected: tuple[int, ...]
) -> None:
    assert least_loaded(cores, spare, load) == expected


def test_the_load_of_a_busy_processor_is_seen() -> None:
    with busy(PROCESSOR):
        assert others_load([PROCESSOR], 0.3)[PROCESSOR] > 0.5
    assert others_load([9999]) == {}


def test_all_threads_are_pinned() -> None:
    code = (
        "import os, threading, time\n"
        "from edgeplan.support.cpus import pin_threads\n"
        "hold = threading.Event(); found = []\n"
        "t = threading.Thread(target=lambda: (hold.wait(), found.append(os.sched_getaffinity(0)))); t.start()\n"
        f"pin_threads([{PROCESSOR}]); hold.set(); t.join(); print(found[0])"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == f"{{{PROCESSOR}}}\n"
    )


def test_a_processor_that_does_not_exist_is_refused() -> None:
    with pytest.raises(OSError, match="Invalid argument"):
        pin_threads([9999])
