"""Runs that are killed or meet each other."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from workspace import Workspace, make_workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

WAIT_SECONDS = 600


def _wait_for_rows(workspace: Workspace, process: subprocess.Popen[str]) -> None:
    """Wait until the run has stored its first batches."""
    end = time.monotonic() + WAIT_SECONDS
    while len(list((workspace.folder / "data/rows").rglob("*.parquet"))) < 2:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.2)


@contextlib.contextmanager
def _killed_at_last(process: subprocess.Popen[str]):  # noqa: ANN202 - a generator for a with statement
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path)


def test_killed_run_loses_at_most_a_batch_and_goes_on(workspace: Workspace) -> None:
    values = workspace.values("-S", "measurement.batch_size=4")
    first = workspace.start("dvc", "exp", "run", *values)
    with _killed_at_last(first):
        _wait_for_rows(workspace, first)
    kept = workspace.rows()
    assert kept
    half_written = next((workspace.folder / "data/rows").rglob("*.parquet")).with_name(".rows.parquet.k1ll3d.tmp")
    half_written.write_bytes(b"half")  # what a kill in the middle of a write leaves behind; it seldom comes at such a moment
    os.utime(half_written, (0, time.time() - 60))
    workspace.run("dvc", "exp", "run", *values)
    assert not list((workspace.folder / "data/rows").rglob(".*.tmp"))
    assert kept <= workspace.rows(), "stored rows were lost or measured again"


def test_second_run_is_told_that_the_first_is_busy(workspace: Workspace) -> None:
    first = workspace.start("dvc", "exp", "run", *workspace.values())
    with _killed_at_last(first):
        _wait_for_rows(workspace, first)
        start = time.monotonic()
        status, output = workspace.result("dvc", "repro")
        assert status != 0
        assert "blocked by" in output or "is measuring" in output
        assert time.monotonic() - start < 60
        status, output = workspace.result("snakemake", "--cores", "2")
        assert status != 0
        assert "another run is building in this folder" in output


@pytest.mark.parametrize("whole", [True, False], ids=["with its scripts", "alone"])
def test_a_killed_snakemake_leaves_nothing_to_unlock(workspace: Workspace, whole: bool) -> None:
    """Killed in the middle of a rule, with all that it started, as by a power cut; or alone."""
    wanted = workspace.folder / "data/zoo/models.parquet"
    command = ("snakemake", "--cores", "1", "data/zoo/models.parquet")
    first = workspace.start(*command)
    with _killed_at_last(first):
        end = time.monotonic() + WAIT_SECONDS
        while not [*(workspace.folder / ".snakemake/incomplete").glob("*")]:  # outputs of the rule that runs
            assert first.poll() is None, first.communicate()[0]
            assert time.monotonic() < end
            time.sleep(0.02)
        (os.killpg if whole else os.kill)(first.pid, signal.SIGKILL)
        first.wait()
        assert not wanted.exists()
        output = workspace.run(*command)
    assert "unlock" not in output
    assert wanted.is_file()
    assert "Nothing to be done" in workspace.run(*command)
