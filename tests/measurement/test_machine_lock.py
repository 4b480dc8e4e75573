"""Processes meet at one lock, whatever their environment."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from edgeplan.chapters.partition.measuring.rows import PartitionRows
from edgeplan.chapters.registry import STAGES
from edgeplan.devices.config import DeviceFile
from edgeplan.errors import BusyError
from edgeplan.measurement import local, lock

#: Only the folder of the lock is the test's own, so that a run that is measuring now is left alone.
TAKE = """
import sys
from pathlib import Path
from edgeplan.errors import BusyError
from edgeplan.measurement import lock
lock.FOLDER = Path(sys.argv[1])
try:
    with lock.machine_lock(0.2):
        print("held", flush=True)
        sys.stdin.read()
except BusyError as error:
    print(error.what)
    sys.exit(error.exit_code)
"""


def take(folder: Path) -> subprocess.CompletedProcess[str]:
    """Another process tries to hold the machine, with a temporary folder of its own."""
    command, environment = _taking(folder)
    return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)


def _taking(folder: Path) -> tuple[list[str], Mapping[str, str]]:
    other = tempfile.mkdtemp(dir=folder)
    return [sys.executable, "-c", TAKE, str(folder)], {**os.environ, **dict.fromkeys(("TMPDIR", "TMP", "TEMP"), other)}


@contextmanager
def held(folder: Path) -> Iterator[int]:
    """Another process holds the machine: its number."""
    command, environment = _taking(folder)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        yield first.pid
        first.stdin.close()


def test_processes_with_other_temporary_folders_exclude_each_other(tmp_path: Path) -> None:
    with held(tmp_path) as pid:
        second = take(tmp_path)
        assert second.returncode == BusyError.exit_code, second.stderr
        assert second.stdout.startswith(f"another process (pid {pid}: {sys.executable} -c ")
    third = take(tmp_path)
    assert (third.returncode, third.stdout) == (0, "held\n"), third.stderr


_PACKAGE = Path(lock.__file__).parents[1]
#: What holds the machine, and what it takes the time of meanwhile.
_HOLDERS = {
    "chapters/cold_start/measuring/runs.py": "cold starts",
    "chapters/cold_start/stages/cold_gpu.py": "cold starts on a GPU",
    "chapters/partition/stages/partition_checked.py": "plans again, later",
    "chapters/memory/plan.py": "candidates of a plan, each when the search comes to it",
    "chapters/memory/stages/memory.py": "inferences within budgets, and what stock engines take",
    "cli/device.py": "handshakes of a pair",
    "chapters/partition/measuring/rows.py": "whatever a pair's rows lack",
    "measurement/device_check.py": "the references",
    "measurement/board/worker.py": "the same, for a host",
    "measurement/local.py": "kernels and models",
    "measurement/lock.py": "nothing: it is the lock",
    "profiling/disk.py": "the disk",
    "profiling/profiler.py": "stages of kernels",
    "comparing/api.py": "all ways to serve a model",
    "chapters/partition/api.py": "a model's own steps on a pair, and all ways to run it",
}


def test_only_what_measures_holds_the_machine() -> None:
    """What trains, detects, plans, checks outputs or writes tables is in no such module."""
    found = set()
    for path in _PACKAGE.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if any(isinstance(node, ast.Call) and getattr(node.func, "id", "") == "machine_lock" for node in nodes):
            found.add(str(path.relative_to(_PACKAGE)))
    assert found == _HOLDERS.keys()
    own = {stage.function.partition(":")[0].removeprefix("edgeplan.").replace(".", "/") + ".py": stage for stage in STAGES}
    assert all(own[path].rows for path in found & own.keys())  # a stage that holds it keeps rows


def test_work_that_takes_no_time_of_anything_waits_for_what_does_and_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "FOLDER", tmp_path)
    with held(tmp_path), pytest.raises(BusyError):
        lock.after_measurements(0.2)
    lock.after_measurements(5)
    done = take(tmp_path)
    assert (done.returncode, done.stdout) == (0, "held\n"), done.stderr


def test_rows_of_a_pair_hold_it_while_they_are_measured_only(tmp_path: Path) -> None:
    held = []

    def measure() -> pd.DataFrame:
        held.append(lock._held)
        return pd.DataFrame({"a": [1.0]})

    rows = PartitionRows(tmp_path, "pair", {"kind": ("a",)})
    for _ in range(2):
        rows.found("kind", 1, measure)
        assert lock._held == 0
    assert held == [1]


def test_models_are_looked_at_on_the_processors_that_were_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    one = frozenset(sorted(before)[:1])
    monkeypatch.setattr(local.cpus, "allowed", lambda: one)  # as under taskset
    seen = []

    def told(graph: str) -> list[SimpleNamespace]:
        seen.append(os.sched_getaffinity(0))
        return [SimpleNamespace(members=graph)]

    device = local.Local(DeviceFile(format_version=1, name="dev", engine="onnxruntime"))
    monkeypatch.setattr(device, "_engine", SimpleNamespace(told=told))
    assert device.executed(list("abc")) == [("a",), ("b",), ("c",)]  # type: ignore[arg-type,comparison-overlap]
    assert seen == [one] * 3
    assert os.sched_getaffinity(0) == before
