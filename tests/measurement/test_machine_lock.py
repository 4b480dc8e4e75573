"""Processes meet at one lock, whatever their environment."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from quick_bench import held, holder, measuring_alone  # noqa: F401  a fixture

from edgeplan.chapters.partition.measuring.rows import PartitionRows
from edgeplan.chapters.registry import STAGES
from edgeplan.devices.config import DeviceFile
from edgeplan.errors import BusyError
from edgeplan.measurement import local, lock


def take() -> tuple[int, str]:
    """Another process tries to hold the machine."""
    with holder() as other:
        said, _ = other.communicate()
    return other.returncode, said


def test_processes_with_other_temporary_folders_exclude_each_other() -> None:
    with held() as first:
        code, said = take()
        assert code == BusyError.exit_code
        assert said.startswith(f"another process (pid {first.pid}: {sys.executable} -c ")
    assert take() == (0, "held\n")


_PACKAGE = Path(lock.__file__).parents[1]
#: What holds the machine, in chapters and beside them.
_HOLDERS = {
    *(f"chapters/cold_start/{name}.py" for name in ("measuring/runs", "stages/cold_gpu")),
    *(f"chapters/partition/{name}.py" for name in ("stages/partition_checked", "measuring/rows", "api")),
    *(f"chapters/memory/{name}.py" for name in ("plan", "stages/memory")),
    *(f"measurement/{name}.py" for name in ("device_check", "board/worker", "local", "lock")),
    *("cli/device.py", "profiling/disk.py", "profiling/profiler.py", "comparing/api.py"),
}


def test_only_what_measures_holds_the_machine() -> None:
    """What trains, detects, plans, checks outputs or writes tables is in no such module."""
    found = set()
    for path in _PACKAGE.rglob("*.py"):
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if any(isinstance(node, ast.Call) and getattr(node.func, "id", "") == "machine_lock" for node in nodes):
            found.add(str(path.relative_to(_PACKAGE)))
    assert found == _HOLDERS
    own = {stage.function.partition(":")[0].removeprefix("edgeplan.").replace(".", "/") + ".py": stage for stage in STAGES}
    assert all(own[path].rows for path in found & own.keys())  # a stage that holds it keeps rows


def test_work_that_takes_no_time_of_anything_waits_for_what_does_and_holds_nothing() -> None:
    with held(), pytest.raises(BusyError):
        lock.after_measurements(0.2)
    lock.after_measurements(5)
    assert take() == (0, "held\n")


def test_rows_of_a_pair_hold_it_while_they_are_measured_only(tmp_path: Path) -> None:
    seen = []

    def measure() -> pd.DataFrame:
        seen.append(lock._held)
        return pd.DataFrame({"a": [1.0]})

    rows = PartitionRows(tmp_path, "pair", {"kind": ("a",)})
    for _ in range(2):
        rows.found("kind", 1, measure)
        assert lock._held == 0
    assert seen == [1]


def test_models_are_looked_at_on_the_processors_that_were_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    before = os.sched_getaffinity(0)
    one = frozenset(sorted(before)[:1])
    monkeypatch.setattr(local.cpus, "allowed", lambda: one)  # as under taskset
    seen = []

    def told(graph: str) -> list[SimpleNamespace]:
        seen.append(os.sched_getaffinity(0))
        return [SimpleNamespace(members=graph)]

    device = local.Local(DeviceFile(format_version=1, name="dev", engine="onnxruntime"))
    monkeypatch.setitem(vars(device), "_engine", SimpleNamespace(told=told))
    assert device.executed(list("abc")) == [("a",), ("b",), ("c",)]  # type: ignore[arg-type,comparison-overlap]
    assert seen == [one] * 3
    assert os.sched_getaffinity(0) == before
