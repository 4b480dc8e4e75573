"""Processors that a process was given are all that it uses, and a quota of their time is not called other work."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from system_files import system_of

from edgeplan.devices.config import DeviceFile
from edgeplan.errors import DeviceError
from edgeplan.support import cpus
from edgeplan.support.subprocesses import environment

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
        (
            {"sys/fs/cgroup/cpu/a": _one(25_000), "sys/fs/cgroup/cpu/a/b": _one(-1)},
            "3:cpu:/a/b\n",
            _V1.format(top="/"),
            0.25,
            0.0,
        ),
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


def _given(code: str, given: set[int], group: Path | None = None) -> list[str]:
    """What a process says that may use the given processors, in a control group."""

    def enter() -> None:
        os.sched_setaffinity(0, given)
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment(),
        preexec_fn=enter,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


def test_what_takes_all_processors_takes_those_that_it_was_given() -> None:
    one = {max(os.sched_getaffinity(0))}
    code = (
        "import os; from edgeplan.devices.config import load_device\n"
        "from edgeplan.chapters.prediction.stages.fusion import ExecutedNodes; from edgeplan.support import cpus\n"
        "from pathlib import Path\n"
        "asked = ExecutedNodes(load_device('cpu-onnxruntime').model_copy(update={'cores': ()}), Path('none'), 'key')\n"
        "asked.ask([]); print(sorted(os.sched_getaffinity(0)), sorted(cpus.allowed()), cpus.workers())"
    )
    assert _given(code, one) == [f"{sorted(one)} {sorted(one)} 1"]


def test_a_core_that_was_not_given_is_refused() -> None:
    given = sorted(os.sched_getaffinity(0))
    if len(given) < 2:
        pytest.skip("one processor")
    code = (
        "from edgeplan.devices.config import DeviceFile; from edgeplan.errors import DeviceError\n"
        f"device = DeviceFile(format_version=1, name='d', engine='onnxruntime', cores=({given[1]},))\n"
        "try: device.pin()\n"
        "except DeviceError as error: print(error)"
    )
    told = _given(code, {given[0]})
    assert told[0] == f"core {given[1]} may not be used by this process"
    assert f"name cores among {given[0]}; or leave the list empty" in told[2]


@pytest.fixture
def tight_group() -> Iterator[Path]:
    """A control group that gets a twentieth of a processor's time."""
    top, two = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cgroup.controllers")
    folder = (Path("/sys/fs/cgroup") if two.is_file() else top) / f"edgeplan-test-{os.getpid()}"
    try:
        folder.mkdir()
        if two.is_file():
            (folder / "cpu.max").write_text("5000 100000")
        else:
            (folder / "cpu.cfs_period_us").write_text("100000")
            (folder / "cpu.cfs_quota_us").write_text("5000")
    except OSError as error:
        pytest.skip(f"no control group can be made here: {error}")
    try:
        yield folder
    finally:
        folder.rmdir()


def test_a_quota_that_stops_a_process_is_told_for_what_it_is(tight_group: Path) -> None:
    code = (
        "import time; from edgeplan.support import cpus\n"
        "before = cpus.throttled_ms(); end = time.process_time() + 0.05\n"
        "while time.process_time() < end: pass\n"
        "print(cpus.quota(), cpus.workers(), cpus.throttled_ms() > before); print(cpus.held_back()); print(cpus.calmer())"
    )
    numbers, held, calmer = _given(code, os.sched_getaffinity(0), tight_group)
    assert numbers == "0.05 1 True"
    assert "CPU quota of a control group around this process (0.05 of a processor's time)" in held
    assert "other work" not in calmer


def test_without_a_quota_other_work_is_to_stop() -> None:
    if cpus.quota() is not None:
        pytest.skip("there is a quota")
    assert cpus.held_back() == ""
    assert cpus.calmer() == "stop other work"


def test_spare_cores_that_were_not_given_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    core = min(os.sched_getaffinity(0))
    monkeypatch.setattr(cpus, "allowed", lambda: frozenset({core}))
    before = os.sched_getaffinity(0)
    try:
        DeviceFile(format_version=1, name="d", engine="onnxruntime", cores=(core,), spare_cores=(core + 1,)).pin()
        assert os.sched_getaffinity(0) == {core}
        with pytest.raises(DeviceError, match=r"may not be used|does not exist"):
            DeviceFile(format_version=1, name="d", engine="onnxruntime", cores=(core + 1,)).pin()
    finally:
        os.sched_setaffinity(0, before)
