"""How much is read ahead is put back whatever ends the process that changed it; a file of a folder stands for the system's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgeplan.measurement.process import page_cache
from edgeplan.measurement.process.page_cache import FixedReadAheadError, read_ahead_kb, reading_ahead

LANE = "processes"  # see tests/conftest.py

_KILLED = """
import sys, time
from pathlib import Path
from edgeplan.measurement.process import page_cache
page_cache._DISKS = Path(sys.argv[1])
with page_cache.reading_ahead(Path(sys.argv[1]), 128):
    print("changed", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The number of the disk of `tmp_path`, in a file there."""
    monkeypatch.setattr(page_cache, "_DISKS", tmp_path)
    file = page_cache.read_ahead_file(tmp_path)
    file.parent.mkdir()
    file.write_text("8192\n")
    return file


def test_the_number_is_changed_for_the_block_alone(disk: Path, tmp_path: Path) -> None:
    assert read_ahead_kb(tmp_path) == 8192
    with reading_ahead(tmp_path, 128):
        assert read_ahead_kb(tmp_path) == 128
    assert disk.read_text() == "8192"


def test_an_error_in_the_block_puts_it_back(disk: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="meanwhile"), reading_ahead(tmp_path, 128):
        raise ValueError("meanwhile")
    assert disk.read_text() == "8192"


def test_a_kill_puts_it_back(disk: Path, tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "changed\n"
        assert disk.read_text() == "128"
        os.kill(process.pid, signal.SIGKILL)
    deadline = time.monotonic() + 30
    while disk.read_text() != "8192":
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_disk_without_the_number_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_cache, "_DISKS", tmp_path / "none")
    assert read_ahead_kb(tmp_path) is None
    with pytest.raises(FixedReadAheadError), reading_ahead(tmp_path, 128):
        pass
