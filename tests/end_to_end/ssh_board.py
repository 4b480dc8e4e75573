"""A board for tests: an ssh server in a network namespace of its own, joined to one for the host by a pair of interfaces.

Nothing of the machine's own network is touched. It takes root and OpenSSH's server; `lacking` says what there is not.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

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
