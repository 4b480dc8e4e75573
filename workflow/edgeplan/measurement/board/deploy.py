"""Deploying brings edgeplan's worker to a board that may have no way to an index: `edgeplan device deploy`."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgeplan.devices.config import CommandTransport, DeviceFile, SshTransport
from edgeplan.errors import DeviceError
from edgeplan.measurement.board.bundle import BoardTarget, bundle_digest, write_bundle
from edgeplan.measurement.board.link import start_failure
from edgeplan.support.files import validate
from edgeplan.support.scratch import ScratchFolder

_PROBE_SECONDS, _INSTALL_SECONDS = 120.0, 3600.0
_MOST_BYTES = 100_000


class BoardProbe(BaseModel):
    """Holds what a board's Python tells of the board and of itself."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    python: tuple[Annotated[int, Field(ge=0, le=99)], Annotated[int, Field(ge=0, le=99)]]
    architecture: Annotated[str, Field(pattern=r"^[A-Za-z0-9_]{0,32}$")]
    glibc: Annotated[int, Field(ge=0, le=999)]
    installed: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")]


@dataclass(frozen=True, slots=True)
class Deployed:
    """A deployment tells what bundle (its digest) is there now, and the bytes sent, if it is a `fresh` one."""

    target: BoardTarget
    digest: str
    fresh: bool
    size_bytes: int


def deploy(device: DeviceFile, *, python: str = "python3", force: bool = False) -> Deployed:
    """Bring a worker to a board, unless it has this very one and nobody says `force`.

    `python` is the interpreter there that makes the environment.
    """
    where = f"device {device.name!r}"
    _require_reachable(device)
    told = validate(_asked(device, python, "probe", None, _PROBE_SECONDS), BoardProbe, DeviceError, "the board's answer", where)
    target = BoardTarget(told.python, told.architecture, told.glibc)
    if device.architecture and device.architecture != told.architecture:
        raise DeviceError(
            f"the board is a {told.architecture}, and its file says {device.architecture}",
            where=f"{where}, field architecture",
            next_step="correct the field, or the transport: another machine may have answered",
        )
    target.require_supported(device.engine, where)
    digest = bundle_digest(device.engine, target)
    if told.installed == digest and not force:
        return Deployed(target, digest, fresh=False, size_bytes=0)
    with ScratchFolder("deploy") as folder:
        archive = Path(folder, "bundle.tar")
        write_bundle(device.engine, target, archive, digest, where)
        found = _asked(device, python, "install", archive, _INSTALL_SECONDS)
        size = archive.stat().st_size
    if found.get("installed") != digest:
        needs_venv = "ensurepip" in str(found.get("error")) or found.get("venv") is True
        raise DeviceError(
            f"the board could not install it: {str(found.get('error', 'no reason'))[:600]}",
            where=where,
            next_step="install the module venv there: apt-get install python3-venv"
            if needs_venv
            else "what was there before is there still; free space on the board, then run the same command again",
        )
    return Deployed(target, digest, fresh=True, size_bytes=size)


def _require_reachable(device: DeviceFile) -> None:
    board = device.board
    if board is None:
        raise DeviceError(
            "the device is on this machine, where edgeplan is installed",
            where=f"device {device.name!r}, field transport",
            next_step="nothing is to be deployed; a board has transport: {kind: ssh, host: ...}",
        )
    if isinstance(board, CommandTransport) and not board.deploy:
        raise DeviceError(
            "the transport is a command, and it is not said how to run another one there",
            where=f"device {device.name!r}, field transport.deploy",
            next_step="name the command up to the interpreter, e.g. deploy: [docker, exec, -i, BOARD]",
        )


def _asked(
    device: DeviceFile, python: str, what: Literal["probe", "install"], archive: Path | None, timeout_s: float
) -> dict[str, Any]:
    """Run `install.py` on the board, and give what it prints."""
    board = device.board
    assert board is not None  # noqa: S101  who calls has looked
    script = Path(__file__).with_name("install.py").read_text(encoding="utf-8")
    words = (python, "-c", script, what)
    command = board.reaching(*words) if isinstance(board, SshTransport) else [*board.deploy, *words]
    try:
        with (archive or Path(os.devnull)).open("rb") as sent:
            done = subprocess.run(command, stdin=sent, capture_output=True, check=False, timeout=timeout_s)  # noqa: S603  no shell
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"the board did not answer in {timeout_s:g} s",
            where=f"device {device.name!r}",
            next_step="see whether it is up, then run the same command again: what was there before is there still",
        ) from error
    except OSError as error:
        raise start_failure(device, 127, f"{command[0]}: {error.strerror}") from error
    lines = done.stdout[-_MOST_BYTES:].decode(errors="backslashreplace").strip().splitlines()
    if done.returncode == 127:
        raise DeviceError(
            f"there is no {python} on the board",
            where=f"device {device.name!r} at {board.place}",
            next_step="install it there (apt-get install python3 python3-venv), or name another: --python",
        )
    try:
        found = json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        said = done.stderr[-_MOST_BYTES:].decode(errors="backslashreplace").strip()
        raise start_failure(device, done.returncode, said) from error
    if not isinstance(found, dict):
        raise start_failure(device, done.returncode, "no answer")
    return found
