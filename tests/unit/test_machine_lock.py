"""Processes meet at one lock, whatever their environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from edgeplan.errors import BusyError
from edgeplan.measurement import lock

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


def take(folder: Path, temporary: str) -> tuple[list[str], Mapping[str, str]]:
    other = folder / temporary
    other.mkdir()
    return [sys.executable, "-c", TAKE, str(folder)], {**os.environ, **dict.fromkeys(("TMPDIR", "TMP", "TEMP"), str(other))}


def test_processes_with_other_temporary_folders_exclude_each_other(tmp_path: Path) -> None:
    command, environment = take(tmp_path, "one")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        command, environment = take(tmp_path, "two")
        second = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        assert second.returncode == BusyError.exit_code, second.stderr
        assert second.stdout.startswith(f"another process (pid {first.pid}: {sys.executable} -c ")
        first.stdin.close()
    command, environment = take(tmp_path, "three")
    third = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert (third.returncode, third.stdout) == (0, "held\n"), third.stderr


def test_the_path_follows_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    before = lock.lock_path()
    for name in ("TMPDIR", "TMP", "TEMP", "HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, "/")
    monkeypatch.setattr("tempfile.tempdir", None)  # what is asked for again
    assert lock.lock_path() == before
    assert before.parent.is_dir()
    assert before.is_absolute()
