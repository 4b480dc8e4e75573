"""Processors that a process was given, and those that others use or interrupt."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from system_files import system_of

from edgeplan.devices.config import DeviceFile
from edgeplan.errors import DeviceError
from edgeplan.measurement import others
from edgeplan.measurement.others import timed_runs
from edgeplan.support import cpus
from edgeplan.support.cpus import busy_ticks, least_loaded, others_load
from edgeplan.support.subprocesses import child_environment

LANE = "processes"  # see tests/conftest.py

PACKAGE = Path(cpus.__file__).parents[1]
#: They tell how many a machine has: its fingerprint, and why a core cannot be had.
_OF_THE_MACHINE = {"support/machine.py", "devices/config.py"}
_V1 = (
    "33 31 0:30 {top} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
    "34 31 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
)
_V2 = "41 31 0:38 {top} /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def _one(quota: int, throttled_ns: int = 0) -> dict[str, str]:
    """The files of a group of cgroup v1."""
    stat = f"nr_periods 1\nnr_throttled 1\nthrottled_time {throttled_ns}"
    return {"cpu.cfs_quota_us": str(quota), "cpu.cfs_period_us": "100000", "cpu.stat": stat}


@pytest.mark.parametrize(
    ("groups", "cgroup", "mounts", "quota", "throttled"),
    [
        ({"sys/fs/cgroup/cpu/a/b": _one(50_000, 2_000_000)}, "3:cpu,cpuacct:/a/b\n", _V1.format(top="/"), 0.5, 2.0),
        ({"sys/fs/cgroup/cpu": _one(150_000)}, "3:cpu,cpuacct:/docker/1\n", _V1.format(top="/docker/1"), 1.5, 0.0),
        ({"sys/fs/cgroup/cpu/a": _one(-1)}, "3:cpu:/a\n", _V1.format(top="/"), None, 0.0),
        (
            {
                "sys/fs/cgroup/a": {"cpu.max": "200000 100000", "cpu.stat": "usage_usec 9\nthrottled_usec 500"},
                "sys/fs/cgroup/a/b": {"cpu.max": "75000 100000", "cpu.stat": "usage_usec 9\nthrottled_usec 1500"},
            },
            *("0::/a/b\n", _V2.format(top="/"), 0.75, 2.0),
        ),
        ({"sys/fs/cgroup/a": {"cpu.max": "max 100000"}}, "0::/a\n", _V2.format(top="/"), None, 0.0),
        ({}, "", "", None, 0.0),
    ],
)
def test_a_quota_is_the_least_of_all_groups_around_a_process(
    tmp_path: Path, groups: Mapping[str, Mapping[str, str]], cgroup: str, mounts: str, quota: float | None, throttled: float
) -> None:
    root = system_of(tmp_path, groups, cgroup, mounts)
    assert cpus.quota(root / "proc", root) == quota
    assert cpus.throttled_ms(root / "proc", root) == throttled


def test_nothing_counts_the_processors_of_the_machine_to_use_them() -> None:
    """Pools have as many workers as the process was given processors, neither by the machine's count nor by default."""
    counted, free = set(), set()
    for path in (*PACKAGE.rglob("*.py"), *(PACKAGE.parent / "scripts").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if "cpu_count(" in text:
            counted.add(str(path.relative_to(PACKAGE.parent)).removeprefix("edgeplan/"))
        if re.search(r"PoolExecutor\((mp_context|initializer|\))", text):
            free.add(path.name)
    assert counted == _OF_THE_MACHINE
    assert not free


def _given(code: str, given: set[int]) -> str:
    """What a process says that may use the given processors."""
    with cpus.pinned(*given):
        command = [sys.executable, "-c", code]
        return subprocess.run(command, env=child_environment(), capture_output=True, text=True, check=True).stdout.strip()


def test_what_takes_all_processors_takes_those_that_it_was_given() -> None:
    one = {max(os.sched_getaffinity(0))}
    code = (
        "import os; from edgeplan.devices.config import load_device\n"
        "from edgeplan.measurement.local import Local; from edgeplan.support import cpus\n"
        "asked = Local(load_device('cpu-onnxruntime').model_copy(update={'cores': ()}))\n"
        "asked.executed([]); print(sorted(os.sched_getaffinity(0)), sorted(cpus.allowed()), cpus.workers())"
    )
    assert _given(code, one) == f"{sorted(one)} {sorted(one)} 1"


@pytest.mark.parametrize(("quota", "stopped_ms", "held"), [(None, 1e12, False), (0.05, 0.0, False), (0.05, 1e12, True)])
def test_a_quota_that_stops_a_process_is_told_for_what_it_is(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, stopped_ms: float, *, held: bool
) -> None:
    monkeypatch.setattr(cpus, "quota", lambda: quota)
    monkeypatch.setattr(cpus, "throttled_ms", lambda: stopped_ms)
    told = "the CPU quota of a control group around this process (0.05 of a processor's time)"
    assert cpus.held_back() == (told if held else "")
    assert (cpus.calmer() == "stop other work") is not held


def test_spare_cores_that_were_not_given_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(cpus, "allowed", lambda: frozenset({core}))
    with cpus.pinned():
        DeviceFile(format_version=1, name="d", engine="onnxruntime", cores=(core,), spare_cores=(core + 1,)).pin()
        assert os.sched_getaffinity(0) == {core}
        with pytest.raises(DeviceError, match=r"may not be used|does not exist"):
            DeviceFile(format_version=1, name="d", engine="onnxruntime", cores=(core + 1,)).pin()


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


def spin(ms: float) -> None:
    """Work of a fixed amount of processor time."""
    end = time.thread_time_ns() + int(ms * 1e6)
    while time.thread_time_ns() < end:
        pass


@pytest.mark.parametrize("ms", [1.0, 30.0])
def test_beside_a_process_that_never_sleeps_a_run_takes_about_its_own_time(ms: float) -> None:
    with busy(PROCESSOR), cpus.pinned(PROCESSOR):
        found = timed_runs(lambda: spin(ms), least=4, most=20, block_ms=4 * ms, threads=1)
    assert ms <= min(found) / 1e6 < 1.5 * ms


def test_interrupted_runs_do_not_count_while_others_do(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = iter([0, 1, 1, 1, 1, 2, 2, 2, 2, 2])  # the first and the third of five runs are interrupted
    monkeypatch.setattr(others, "switches", lambda: next(counts))
    durations = iter([40.0, 1.0, 40.0, 1.0, 1.0])
    found = timed_runs(lambda: spin(next(durations)), least=3, most=3, block_ms=100.0, threads=1)
    assert len(found) == 3
    assert max(found) / 1e6 < 36.0


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
        ((1, 2), (0, 3), {0: 0.0, 1: 0.9, 2: 0.8, 3: 0.1}, (0, 3)),
        ((1, 2), (0,), {0: 0.0, 1: 0.9, 2: 0.8}, (0, 2)),
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
    assert _given(code, os.sched_getaffinity(0)) == f"{{{PROCESSOR}}}"
