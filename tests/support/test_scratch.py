"""Temporary folders and memory cgroups of processes that were killed are gone once another begins."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from edgeplan.measurement.process.memory_group import NoGroupError, memory_group
from edgeplan.support.scratch import ScratchFolder

_KILLED = """
import os, signal
from pathlib import Path
{made}
print(folder, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
_SCRATCH = """
from edgeplan.support.scratch import ScratchFolder
held = ScratchFolder({what!r}, {within})
folder = held.name
(Path(folder) / "left").write_text("behind")
"""
_GROUP = """
from edgeplan.measurement.process.memory_group import memory_group
with memory_group() as group:
    folder = group._path
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _left_by(code: str) -> Path:
    """The folder that a process makes before it kills itself."""
    done = subprocess.run([sys.executable, "-c", _KILLED.format(made=code)], capture_output=True, text=True, check=False)
    folder = Path(done.stdout.strip() or "nothing")
    assert folder.is_dir(), done.stderr
    return folder


def test_what_a_killed_process_left_is_deleted_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    left = _left_by(_SCRATCH.format(what="one", within=None))
    assert left.parent == tmp_path
    unheld = tmp_path / "edgeplan-mine"
    unheld.mkdir()
    with ScratchFolder("two") as first, ScratchFolder("two") as second:
        assert not left.exists()
        assert Path(first).is_dir(), "it is held"
        assert Path(second).is_dir()
    assert list(tmp_path.iterdir()) == [unheld], "not one of ours"


def test_a_folder_beside_a_file_is_deleted_by_the_next_of_its_name(tmp_path: Path) -> None:
    left = _left_by(_SCRATCH.format(what=".model[1].onnx.", within=f"Path({str(tmp_path)!r})"))
    with ScratchFolder(".other.onnx.", tmp_path):
        assert left.is_dir()
    with ScratchFolder(".model[1].onnx.", tmp_path):
        assert not left.exists()
    assert list(tmp_path.iterdir()) == []


def test_the_memory_cgroup_of_a_killed_process_is_removed_by_the_next() -> None:
    try:
        with memory_group() as group:
            place = group._path.parent
    except NoGroupError as error:
        pytest.skip(str(error))
    left = _left_by(_GROUP)
    assert left.parent == place
    with memory_group() as group:
        assert not left.exists()
        with memory_group():
            assert group._path.is_dir(), "it is held"


def _open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_descriptors_do_not_add_up(tmp_path: Path) -> None:
    before = _open()
    for _ in range(3):
        with ScratchFolder("some", tmp_path):
            pass
        ScratchFolder("other", tmp_path).cleanup()
    assert _open() == before
