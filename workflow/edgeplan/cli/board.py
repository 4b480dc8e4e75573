"""Runs `edgeplan device deploy`, `bundle` and `collect`, which bring edgeplan to other machines and rows back."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from edgeplan.devices.config import load_device
from edgeplan.errors import ParamsError
from edgeplan.measurement.board.bundle import BoardTarget, write_bundle
from edgeplan.measurement.board.deploy import deploy
from edgeplan.measurement.rows import collect
from edgeplan.terminal import say
from edgeplan.workspace import WorkspaceOption, workspace

_MIB = 1 << 20


def device_deploy(
    name: Annotated[str, typer.Argument(help="Name of a device whose transport is not local, or path of its file.")],
    python: Annotated[str, typer.Option(help="Python there that makes the environment.")] = "python3",
    force: Annotated[bool, typer.Option("--force", help="Bring it, even if the board has this very one.")] = False,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Bring edgeplan's worker to a board over its transport: wheels from the lock; the board needs no network."""
    device = load_device(name)
    done = deploy(device, python=python, force=force)
    if done.fresh:
        say(f"{done.size_bytes / _MIB:.0f} MiB brought to {device.name}, {done.target.told}")
    else:
        say(f"{device.name} has it already: {done.target.told}")
    say(f"next: edgeplan device check {device.name}")


def device_bundle(
    name: Annotated[str, typer.Argument(help="Name of a device, or path of its file: it says which engine is needed.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The archive to write.")],
    python: Annotated[str, typer.Option("--python-version", help="Python of the board, e.g. 3.12.")] = "3.11",
    architecture: Annotated[str, typer.Option(help="Processor of the board: x86_64 or aarch64.")] = "x86_64",
    glibc: Annotated[int, typer.Option(min=0, max=999, help="Minor version of the board's C library: 36 is 2.36.")] = 31,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Write the archive that deploying sends, for a board that this machine does not reach."""
    match = re.fullmatch(r"([0-9])\.([0-9]{1,2})", python)
    if match is None:
        raise ParamsError(f"{python!r} is no version of Python", where="--python-version", next_step="name one, e.g. 3.12")
    target = BoardTarget((int(match[1]), int(match[2])), architecture, glibc)
    device = load_device(name)
    target.require_supported(device.engine, f"device {device.name!r}")
    write_bundle(device.engine, target, output, f"device {device.name!r}")
    say(f"{output}: {output.stat().st_size / _MIB:.0f} MiB for {target.told}")
    script = Path(__file__).parents[1] / "measurement/board/install.py"
    say(f"next: carry it there with {script}, then: python3 install.py install < {output.name}")


def device_collect(
    name: Annotated[str, typer.Argument(help="Name of the device whose rows these are.")],
    source: Annotated[Path, typer.Argument(help="Folder data/rows/NAME of another machine, or a tar archive of it.")],
    workspace_folder: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Take rows that another machine has measured into this workspace, each once."""
    for found in collect(name, source, workspace().rows):
        say(f"{found.stage} {found.key}: {found.fresh} rows taken, {found.known} were here")
