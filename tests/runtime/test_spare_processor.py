"""Whether a processor is free for reading threads is read from the kernel's books, and from what this process may use."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgeplan.runtime.streaming import spare
from edgeplan.runtime.streaming.spare import SpareProcessor

_TICKS = 100
Machine = Callable[[float, tuple[float, ...], float, float], None]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A machine of two processors (0 and 1 of three); it is told its time, and the seconds of each processor's work."""
    path = tmp_path / "stat"
    now = SimpleNamespace(wall=0.0, own=0.0)

    def tell(wall: float, busy: tuple[float, ...], own: float, nice: float = 0.0) -> None:
        now.wall, now.own = wall, own
        rows = [
            f"cpu{k} {round(_TICKS * s)} {round(_TICKS * nice)} 0 99 0 0 0 0 0 0" for k, s in enumerate((*busy, 1e3 * wall))
        ]
        path.write_text("\n".join(["cpu 9 9 9 9 9 9 9 9 9 9", *rows, "intr 1 2 3", "ctxt 4"]) + "\n")

    monkeypatch.setattr(spare, "_STAT", str(path))
    monkeypatch.setattr(spare, "time", SimpleNamespace(monotonic=lambda: now.wall, process_time=lambda: now.own))
    monkeypatch.setattr(spare.os, "sched_getaffinity", lambda _pid: {0, 1})
    monkeypatch.setattr(spare.os, "sysconf", lambda _name: _TICKS)
    monkeypatch.setattr(spare, "quota", lambda: None)
    tell(0.0, (0.0, 0.0), 0.0)
    return tell


def test_a_processor_is_free_until_others_use_it_and_again_when_they_have_left(machine: Machine) -> None:
    asked = SpareProcessor(1)
    assert asked.free()  # nobody is known to use it
    machine(1.0, (1.0, 0.1), 1.0, 0.0)  # this process used one
    assert asked.free()
    machine(2.0, (2.0, 1.1), 2.0, 0.0)
    assert not asked.free()
    machine(3.0, (2.5, 2.1), 2.5, 0.0)  # this process shares one with others
    assert not asked.free()
    machine(4.0, (3.5, 2.1), 3.5, 0.0)
    assert asked.free()


def test_a_little_more_or_less_changes_nothing(machine: Machine) -> None:
    asked = SpareProcessor(1)
    machine(1.0, (1.0, 0.5), 1.0, 0.0)
    assert asked.free()
    machine(2.0, (2.0, 1.5), 2.0, 0.0)
    assert not asked.free()
    machine(3.0, (3.0, 2.0), 3.0, 0.0)
    assert not asked.free()


def test_moments_tell_nothing_and_polite_work_gives_way(machine: Machine) -> None:
    asked = SpareProcessor(1)
    machine(0.05, (0.05, 0.05), 0.0, 0.0)
    assert asked.free()
    machine(1.0, (1.0, 0.05), 1.0, 0.9)
    assert asked.free()


def test_as_many_threads_as_processors_leave_none(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(1.0, (0.0, 0.0), 0.0, 0.0)
    assert not SpareProcessor(2).free()
    monkeypatch.setattr(spare, "quota", lambda: 1.5)  # of a container
    assert not SpareProcessor(1).free()
    monkeypatch.setattr(spare, "quota", lambda: 2.0)
    assert SpareProcessor(1).free()


def test_where_nobody_tells_the_processors_are_taken_for_free(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(0.0, (0.0, 0.0), 0.0, 0.0)
    monkeypatch.setattr(spare, "_STAT", "/nowhere/stat")
    asked = SpareProcessor(1)
    machine(1.0, (1.0, 1.0), 0.0, 0.0)
    assert asked.free()


def test_processes_that_never_sleep_are_seen() -> None:
    allowed = os.sched_getaffinity(0)
    busy = [
        subprocess.Popen([sys.executable, "-c", f"import os\nos.sched_setaffinity(0, {{{processor}}})\nwhile True: pass"])
        for processor in allowed
    ]
    try:
        time.sleep(0.5)
        asked = SpareProcessor(max(1, len(allowed) - 1))
        time.sleep(1.0)
        assert not asked.free()
    finally:
        for process in busy:
            process.kill()
            process.wait()
