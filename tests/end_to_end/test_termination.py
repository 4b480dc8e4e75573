"""Runs that are ended, killed or meet each other: what they started ends, what they measured so far is kept."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from system_files import MARK, family, left
from workspace import DEVICE, ROOT, Workspace, make_workspace

from edgeplan.chapters.running import LOCK
from edgeplan.measurement.lock import lock_path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_BEGIN_SECONDS = 600.0
#: Until nothing is left: what is asked to end has five seconds for it, where somebody waits; what has lost its parent has two.
_ASKED_SECONDS, _ORPHANED_SECONDS = 8.0, 2.0


def _commands(workspace: Workspace) -> dict[str, tuple[str, ...]]:
    make = ("make", "reproduce", f"DEVICE={DEVICE}", "PROFILE=tiny", f"VENV={Path(sys.executable).parents[1]}")
    return {
        "make": make,
        "make --temp": (*make, "OPTIONS=--temp"),
        "dvc exp": ("dvc", "exp", "run", *workspace.values()),
        "dvc exp --temp": ("dvc", "exp", "run", "--temp", *workspace.values()),
        "dvc": ("dvc", "repro", f"sampling@{DEVICE}"),
        "snakemake": ("snakemake", "--cores", "2", f"results/{DEVICE}/measurements/kernels.parquet"),
    }


def _environment_is_current() -> bool:
    """Whether `make` installs nothing."""
    kept = Path(sys.executable).parents[1] / "requirements.lock"
    locks = b"".join((ROOT / name).read_bytes() for name in ("requirements.lock", "requirements-no-deps.lock"))
    return kept.is_file() and kept.read_bytes() == locks


@contextlib.contextmanager
def _started(workspace: Workspace, command: tuple[str, ...]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    mark = uuid.uuid4().hex
    marked = Workspace(workspace.folder, {**workspace.environment, MARK: mark})
    process = marked.start(*command)
    try:
        yield process, mark
    finally:
        for pid in family(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """With the values of the tiny profile, and the models that all commands begin with."""
    made = make_workspace(tmp_path_factory.mktemp("terminated"))
    made.take_tiny_values()
    made.run("dvc", "repro", "zoo")
    made.commit("models")
    return made


def _rows(workspace: Workspace) -> list[Path]:
    """Files of rows, in the workspace and in the copies of it that experiments are run in."""
    folders = (workspace.folder, *workspace.folder.glob(".dvc/tmp/exps/standalone/*"))
    return [path for folder in folders for path in (folder / "data/rows").rglob("*.parquet")]


def _wait_for(happens: Callable[[], object], process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _BEGIN_SECONDS
    while not happens():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def _is_measuring(workspace: Workspace, mark: str) -> bool:
    """Whether there are rows, and a stage is running."""
    return len(_rows(workspace)) > 1 and any("edgeplan stage" in line for line in family(mark).values())


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL], ids=lambda sent: sent.name)
@pytest.mark.parametrize("name", ["make", "make --temp", "dvc exp", "dvc exp --temp", "dvc", "snakemake"])
def test_what_was_started_ends(workspace: Workspace, name: str, sent: signal.Signals) -> None:
    if name.startswith("make") and not _environment_is_current():
        pytest.skip("make would install into this environment")
    for measured in (f"tree/data/rows/{DEVICE}", f"tree/results/{DEVICE}", "tree/.dvc/tmp/exps", "state"):
        shutil.rmtree(workspace.folder.parent / measured, ignore_errors=True)
    with _started(workspace, _commands(workspace)[name]) as (process, mark):
        _wait_for(lambda: _is_measuring(workspace, mark), process)
        os.kill(process.pid, sent)
        process.wait()
        asked = sent == signal.SIGTERM and name in ("make", "make --temp", "snakemake")
        assert left(mark, _ASKED_SECONDS if asked else _ORPHANED_SECONDS) == {}
    with FileLock(lock_path(), timeout=0, mode=0o666), (workspace.folder / LOCK).open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    if name.endswith("--temp"):  # DVC may delete the copy; journals hold what was measured, too
        assert list((workspace.folder.parent / "state").glob("edgeplan/journal/**/*.*"))
    else:
        assert workspace.rows()
    if sent == signal.SIGTERM:
        assert not list((workspace.folder.parent / "tmp").glob("edgeplan-*")), "temporary folders"


@pytest.fixture
def fresh(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path)


def test_second_run_is_told_that_the_first_is_busy(fresh: Workspace) -> None:
    with _started(fresh, ("dvc", "exp", "run", *fresh.values())) as (first, _):
        _wait_for(lambda: len(_rows(fresh)) > 1, first)
        start = time.monotonic()
        status, output = fresh.result("dvc", "repro")
        assert status != 0
        assert "blocked by" in output or "is measuring" in output
        assert time.monotonic() - start < 60
        status, output = fresh.result("snakemake", "--cores", "2")
        assert status != 0
        assert "another run is building in this folder" in output


@pytest.mark.parametrize("whole", [True, False], ids=["with its scripts", "alone"])
def test_a_killed_snakemake_leaves_nothing_to_unlock(fresh: Workspace, whole: bool) -> None:
    """Killed in the middle of a rule, with all that it started, as by a power cut; or alone."""
    wanted = fresh.folder / "data/zoo/models.parquet"
    command = ("snakemake", "--cores", "1", "data/zoo/models.parquet")
    with _started(fresh, command) as (first, _):
        _wait_for(lambda: [*(fresh.folder / ".snakemake/incomplete").glob("*")], first)  # outputs of the rule that runs
        (os.killpg if whole else os.kill)(first.pid, signal.SIGKILL)
        first.wait()
        assert not wanted.exists()
        output = fresh.run(*command)
    assert "unlock" not in output
    assert wanted.is_file()
    assert "Nothing to be done" in fresh.run(*command)
