"""Links this host to a worker: a process whose input and output are the worker's, whose error output tells of failures."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections import deque
from collections.abc import Sequence

from edgeplan.devices.config import DeviceFile, SshTransport
from edgeplan.errors import DeviceError
from edgeplan.measurement.board.wire import MAX_ANSWER_BYTES, Answer, Request, answer_of, line_of
from edgeplan.support.answers import LineReader

_TOLD_BYTES = 4000
_END_SECONDS = 5.0


class LinkCutError(Exception):
    """The link to a worker has ended, or says nothing any more."""


class Link:
    """Runs a command, which no shell sees, that reaches a worker. It is not ended with this one: the worker ends its batch."""

    def __init__(self, command: Sequence[str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(  # noqa: S603  no shell
            list(command), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        assert self._process.stdin and self._process.stdout and self._process.stderr  # noqa: S101, PT018  pipes
        self._input, self._errors = self._process.stdin, self._process.stderr
        self._reader = LineReader(self._process.stdout.fileno(), MAX_ANSWER_BYTES)
        self._told = deque[bytes](maxlen=40)
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def send(self, request: Request) -> None:
        """Send a request to the worker."""
        try:
            self._input.write(line_of(request))
            self._input.flush()
        except (OSError, ValueError) as error:
            raise LinkCutError from error

    def receive(self, timeout_s: float) -> Answer:
        """Receive the next answer of the worker."""
        try:
            line = self._reader.next(timeout_s)
        except TimeoutError as error:
            raise LinkCutError from error
        if line is None:
            raise LinkCutError
        return answer_of(line)

    def close(self) -> None:
        """Let the worker go: it ends when its input does, or with its batch. It is never killed."""
        self.drop()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)

    def drop(self) -> None:
        """Turn away from the worker."""
        for stream in (self._input, self._process.stdout):
            with contextlib.suppress(OSError, ValueError):
                if stream is not None:
                    stream.close()

    def ended(self) -> tuple[int, str]:
        """Wait shortly for the end, and tell the exit code and the last lines of error output."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            code = -1
        self._listener.join(1.0)
        return code, b"".join(self._told)[-_TOLD_BYTES:].decode(errors="backslashreplace").strip()

    def _listen(self) -> None:
        with self._errors:
            while chunk := os.read(self._errors.fileno(), _TOLD_BYTES):
                self._told.append(chunk)


def open_link(device: DeviceFile) -> Link:
    """Start what reaches a device's worker."""
    board = device.board
    assert board is not None  # noqa: S101  who calls has looked
    command = board.worker_command()
    try:
        return Link(command)
    except OSError as error:
        raise DeviceError(
            f"cannot start {command[0]!r}: {error.strerror}",
            where=f"device {device.name!r}, field transport",
            next_step="install the OpenSSH client (apt-get install openssh-client)"
            if command[0] == "ssh"
            else "name a program that is there: transport.argv",
        ) from error


#: What error output holds where a worker did not start, what that means, and what to do; the first that fits counts.
_CAUSES = (
    ("REMOTE HOST IDENTIFICATION HAS CHANGED", "{place} has another host key than the one that is known",
     "if it was set up anew: ssh-keygen -R {host}; else another machine answers under its name"),
    ("Host key verification failed", "the host key of {place} is not known",
     "compare its fingerprint once: ssh {host} true; then run the command again"),
    ("Could not resolve hostname", "{place} is not known", "correct transport.host, or name it in ~/.ssh/config"),
    ("Permission denied", "{place} refused the key", "let it know yours: ssh-copy-id {host}; then try: ssh {host} true"),
    ("Connection refused", "{place} refuses connections", "start its ssh server; try: ssh {host} true"),
    ("timed out", "{place} does not answer", "switch it on, check the network; try: ssh {host} true"),
    ("No route to host", "{place} does not answer", "switch it on, check the network; try: ssh {host} true"),
    ("edgeplan needs Python", "the Python of {place} is too old: {said}",
     "install Python 3.11 or newer there, name it in transport.python, then: edgeplan device deploy {name}"),
    ("No module named", "edgeplan is not installed there, or not whole: {said}", "edgeplan device deploy {name}"),
    ("o such file or directory", "there is no Python at {python} of {place}",
     "edgeplan device deploy {name}; or name an interpreter that has edgeplan: transport.python"),
    ("not found", "there is no Python at {python} of {place}",
     "edgeplan device deploy {name}; or name an interpreter that has edgeplan: transport.python"),
)  # fmt: skip


def start_failure(device: DeviceFile, code: int, said: str) -> DeviceError:
    """Make the error for a worker that did not start, from exit code and error output of the command."""
    board = device.board
    assert board is not None  # noqa: S101  likewise
    ssh = isinstance(board, SshTransport)
    last = (said.splitlines() or [f"exit code {code}, no word"])[-1]
    words = {
        "place": board.place,
        "host": board.host if isinstance(board, SshTransport) else "",
        "python": board.python if isinstance(board, SshTransport) else "the command's end",
        "name": device.name,
        "said": last[:300],
    }
    where = f"device {device.name!r}: {last[:300]}"
    for sign, what, next_step in _CAUSES:
        if sign in said and (ssh or "{host}" not in next_step):
            return DeviceError(what.format(**words), where=where, next_step=next_step.format(**words))
    return DeviceError(
        f"no worker answers at {board.place}",
        where=where,
        next_step=f"run the command by hand; or edgeplan device deploy {device.name}",
    )
