"""A board behind a real ssh server: the whole way, a pulled cable, a full disk, a clock that jumps, wrong keys.

The server is in a network namespace of its own, joined to one for the host by a pair of interfaces: nothing of the machine's
own network is touched. It takes root and OpenSSH's server; `lacking` says what there is not.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from edgeplan.measurement.rows import read_rows

ROOT = Path(__file__).parents[2]
SSHD, _ADDRESS, _PORT = "/usr/sbin/sshd", "10.9.1.2", "22022"
_TOOLS = ("unshare", "nsenter", "ip", "ssh", "ssh-keygen")
#: What the board's "Python" is: the real worker, whose references settle at once, with a lock of its own.
_PYTHON = """#!/bin/sh
export PYTHONPATH={package} XDG_STATE_HOME={state}{temporary}
exec {python} -c '
from pathlib import Path
from edgeplan.measurement import lock, references
from edgeplan.measurement.board import worker
references._SECONDS = 0.02
lock.FOLDER = Path("{folder}")
worker.main()
'
"""


def lacking() -> str:
    """The reason why there can be no such board here; "" if there can."""
    if os.geteuid() != 0:
        return "namespaces of the network take root"
    missing = [name for name in _TOOLS if shutil.which(name) is None] + ([] if Path(SSHD).is_file() else ["sshd"])
    if missing:
        return f"not installed: {', '.join(missing)}"
    tried = subprocess.run(["unshare", "-n", "-m", "true"], capture_output=True, check=False)
    return "" if tried.returncode == 0 else "this container makes no namespaces"


@dataclass
class SshBoard:
    """A running board; `folder` is its disk, `there` and `here` are processes that hold the namespaces."""

    folder: Path
    there: subprocess.Popen[bytes]
    here: subprocess.Popen[bytes]
    server: subprocess.Popen[bytes] | None = None

    def on_host(self, *command: str, **given: object) -> subprocess.Popen[str]:
        """Start a command where the host is."""
        entered = ["nsenter", "-t", str(self.here.pid), "-n", *command]
        return subprocess.Popen(entered, text=True, **given)  # type: ignore[call-overload, no-any-return]

    def link(self, state: str) -> None:
        """Plug the cable ("up") or pull it ("down")."""
        _run("nsenter", "-t", str(self.here.pid), "-n", "ip", "link", "set", "v0", state)

    def device(self, path: Path, *, python: str = "", **transport: str) -> Path:
        """Write a device file that reaches the board."""
        document = {
            "format_version": 2,
            "name": path.stem,
            "engine": "onnxruntime",
            "transport": {
                "kind": "ssh",
                "host": "board",
                "python": python or str(self.folder / "python"),
                "config": str(self.folder / "ssh_config"),
                "reconnect_seconds": 120.0,
                **transport,
            },
        }
        path.write_text(yaml.safe_dump(document))
        return path


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def _key(path: Path) -> None:
    _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))


@contextlib.contextmanager
def ssh_board(folder: Path, *, disk_mib: int = 0) -> Iterator[SshBoard]:
    """Run a board; with `disk_mib` its state and temporary files lie on a disk of that size.

    Args:
        folder: of its keys and files.
        disk_mib: of the disk, mounted where only the board sees it.
    """
    holders = [subprocess.Popen(["unshare", "-n", "-m", "sleep", "infinity"]) for _ in range(2)]
    board = SshBoard(folder, *holders)
    try:
        _wait_for_namespace(holders)
        _network(board)
        state = folder / "disk"
        state.mkdir()
        there = ["nsenter", "-t", str(board.there.pid), "-n", "-m"]
        if disk_mib:
            _run(*there, "mount", "-t", "tmpfs", "-o", f"size={disk_mib}m", "tmpfs", str(state))
        temporary = f" TMPDIR={state}" if disk_mib else ""
        path, package = folder / "python", ROOT / "workflow"
        path.write_text(_PYTHON.format(folder=folder, package=package, state=state, temporary=temporary, python=sys.executable))
        path.chmod(0o755)
        board.server = _server(board, there)
        yield board
    finally:
        for process in (board.server, *holders):
            if process is not None:
                process.kill()
                process.wait()


def _wait_for_namespace(holders: Sequence[subprocess.Popen[bytes]]) -> None:
    own = Path("/proc/self/ns/net").readlink()
    end = time.monotonic() + 20
    while any(Path(f"/proc/{one.pid}/ns/net").readlink() == own for one in holders):
        assert time.monotonic() < end, "no namespace"
        time.sleep(0.02)


def _network(board: SshBoard) -> None:
    def ip(holder: subprocess.Popen[bytes], *words: str) -> None:
        _run("nsenter", "-t", str(holder.pid), "-n", "ip", *words)

    ip(board.here, "link", "add", "v0", "type", "veth", "peer", "name", "v1", "netns", str(board.there.pid))
    for holder, name, address in ((board.here, "v0", "10.9.1.1/24"), (board.there, "v1", f"{_ADDRESS}/24")):
        ip(holder, "address", "add", address, "dev", name)
        ip(holder, "link", "set", name, "up")
        ip(holder, "link", "set", "lo", "up")


def _server(board: SshBoard, there: Sequence[str]) -> subprocess.Popen[bytes]:
    folder = board.folder
    for name in ("host_key", "user_key", "other_key"):
        _key(folder / name)
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    (folder / "known_hosts").write_text(f"[{_ADDRESS}]:{_PORT} {(folder / 'host_key.pub').read_text()}")
    (folder / "wrong_hosts").write_text(f"[{_ADDRESS}]:{_PORT} {(folder / 'other_key.pub').read_text()}")
    Path("/run/sshd").mkdir(exist_ok=True)
    settings = {
        "ListenAddress": _ADDRESS, "Port": _PORT, "HostKey": folder / "host_key", "PidFile": "none", "UsePAM": "no",
        "AuthorizedKeysFile": folder / "authorized_keys", "StrictModes": "no", "PermitRootLogin": "yes",
        "PasswordAuthentication": "no", "ClientAliveInterval": 3, "ClientAliveCountMax": 2, "UseDNS": "no",
    }  # fmt: skip
    (folder / "sshd_config").write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    for config, known, key in (
        ("ssh_config", "known_hosts", "user_key"),
        ("wrong_key_config", "known_hosts", "other_key"),
        ("wrong_host_config", "wrong_hosts", "user_key"),
    ):
        (folder / config).write_text(
            f"Host board\n HostName {_ADDRESS}\n Port {_PORT}\n User root\n IdentityFile {folder / key}\n"
            f" IdentitiesOnly yes\n UserKnownHostsFile {folder / known}\n GlobalKnownHostsFile /dev/null\n"
            " StrictHostKeyChecking yes\n"
        )
    with (folder / "sshd.log").open("wb") as log:
        return subprocess.Popen([*there, SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stderr=log)


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
