"""A board behind a real ssh server: the whole way, a pulled cable, a full disk, a clock that jumps, wrong keys."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from ssh_board import ROOT, SshBoard, lacking, ssh_board

from edgeplan.measurement.rows import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.skipif(bool(lacking()), reason=lacking() or "no reason")]
_HOST = Path(__file__).with_name("board_host.py")


@pytest.fixture
def board(tmp_path: Path) -> Iterator[SshBoard]:
    (tmp_path / "board").mkdir()
    with ssh_board(tmp_path / "board") as running:
        yield running


def host(board: SshBoard, device: Path, folder: Path, *words: object) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow"), "XDG_STATE_HOME": str(folder / "host-state")}
    command = [sys.executable, str(_HOST), str(device), str(folder / "rows/dev"), *map(str, words)]
    return board.on_host(*command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment)


def output_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def first_row(process: subprocess.Popen[str]) -> None:
    """Wait until a row has come."""
    assert process.stdout is not None
    told = ""
    for line in iter(process.stdout.readline, ""):
        told += line
        if "measured" in line:
            return
    pytest.fail(f"the host ended:\n{told}")


def journalled(disk: Path) -> Counter[str]:
    lines = [line for path in disk.rglob("worker/**/*.jsonl") for line in path.read_text().splitlines()]
    return Counter(json.loads(line)["row"]["name"] for line in lines)


def stored(folder: Path) -> Counter[str]:
    return Counter(row["subject"] for path in (folder / "rows").rglob("*.parquet") for row in read_rows(path))


def test_rows_come_over_ssh_with_the_board_s_own_python(board: SshBoard, tmp_path: Path) -> None:
    (tmp_path / "board/environment").write_text("")
    wrapper = tmp_path / "board/plain"
    wrapper.write_text(
        f'#!/bin/sh\nPYTHONPATH={ROOT / "workflow"} XDG_STATE_HOME={tmp_path}/board/disk exec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    code, output = output_of(host(board, board.device(tmp_path / "dev.yaml", python=str(wrapper)), tmp_path, 4))
    assert code == 0, output
    assert sum(stored(tmp_path).values()) == 4
    assert set(journalled(tmp_path / "board/disk").values()) == {1}


def test_a_pulled_cable_loses_nothing(board: SshBoard, tmp_path: Path) -> None:
    process = host(board, board.device(tmp_path / "dev.yaml"), tmp_path, 40)
    first_row(process)
    time.sleep(0.3)
    board.link("down")
    assert process.stdout is not None
    told = ""
    while "the link was cut" not in told:
        told = process.stdout.readline()
        assert told, "the host ended"
    board.link("up")
    code, output = output_of(process)
    assert code == 0, output
    assert set(stored(tmp_path).values()) == set(journalled(tmp_path / "board/disk").values()) == {1}
    assert len(stored(tmp_path)) == 40


def test_a_full_disk_is_told_and_then_gone_on_from(tmp_path: Path) -> None:
    folder = tmp_path / "board"
    folder.mkdir()
    with ssh_board(folder, disk_mib=4) as board:
        there = ["nsenter", "-t", str(board.there.pid), "-m"]
        device = board.device(tmp_path / "dev.yaml")
        code, output = output_of(host(board, device, tmp_path, 4))
        assert code == 0, output
        fill = f"cat /dev/zero > {folder}/disk/filler"
        subprocess.run([*there, "sh", "-c", fill], check=False, capture_output=True)
        code, output = output_of(host(board, device, tmp_path, 40))
        assert (code, "the disk is full" in output) == (6, True), output
        assert "next:" in output
        assert "Traceback" not in output
        assert sum(stored(tmp_path).values()) >= 4
        subprocess.run([*there, "rm", f"{folder}/disk/filler"], check=True)
        code, output = output_of(host(board, device, tmp_path, 40))
        assert code == 0, output
        lines = subprocess.run(
            [*there, "sh", "-c", f"cat {folder}/disk/edgeplan/worker/*/*.jsonl"], capture_output=True, check=True
        )
        assert Counter(json.loads(line)["row"]["name"] for line in lines.stdout.splitlines()) == stored(tmp_path)
    assert set(stored(tmp_path).values()) == {1}


@pytest.mark.parametrize(
    ("transport", "what", "next_step"),
    [
        ({"config": "wrong_host_config"}, "another host key", "ssh-keygen -R board"),
        ({"config": "wrong_key_config"}, "refused the key", "ssh-copy-id board"),
        ({"host": "nowhere.invalid"}, "is not known", "transport.host"),
        ({"python": "/opt/nowhere/python"}, "no Python at /opt/nowhere/python", "edgeplan device deploy dev"),
        ({"python": "/bin/true"}, "no worker answers", "edgeplan device deploy dev"),
        ({"python": "/usr/bin/python3"}, "not installed there", "edgeplan device deploy dev"),
    ],
)
def test_what_is_wrong_with_the_way_is_told(
    board: SshBoard, tmp_path: Path, transport: dict[str, str], what: str, next_step: str
) -> None:
    if "config" in transport:
        transport = {"config": str(tmp_path / "board" / transport["config"])}
    device = board.device(tmp_path / "dev.yaml", **transport)  # type: ignore[arg-type]
    code, output = output_of(host(board, device, tmp_path, 1))
    assert code == 3, output
    assert what in output
    assert next_step in output
    assert "Traceback" not in output
    assert not list((tmp_path / "rows").rglob("*"))
