"""The command that writes a device file for this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from edgeplan.errors import DeviceError
from edgeplan.terminal import say
from edgeplan.workspace import WorkspaceOption

_DIGITS = 6  # more have the numbers of no cores


def register(app: typer.Typer) -> None:
    """Add the command to those of devices."""
    app.command("init")(device_init)


def device_init(
    name: Annotated[str, typer.Argument(help="Name of the new device: lower-case letters, digits and hyphens.")],
    engine: Annotated[str, typer.Option(help="Engine; without, the first that is installed.")] = "",
    threads: Annotated[int, typer.Option(min=0, max=1024, help="Threads of one inference; 0: one a core named, else 1.")] = 0,
    cores: Annotated[str, typer.Option(help="Processors to pin to, e.g. 2,3; without, the last that may be used.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Write a device file for this machine: config/devices/NAME.yaml of the workspace, or of this folder."""
    from edgeplan.devices.create import create_device  # noqa: PLC0415  `edgeplan --help` should not wait for pydantic

    device, path = create_device(name, engine=engine, threads=threads, cores=_numbers(cores), force=force)
    pinned = ", ".join(map(str, device.cores))
    say(f"{path}: {device.engine}, {device.threads} thread{'s' if device.threads > 1 else ''} on core(s) {pinned}")
    say("next:")
    for command, what in (
        (f"edgeplan device check {name}", "whether figures of this machine can be trusted"),
        (f"edgeplan measure MODEL.onnx --device {name}", "how long a model takes here"),
        (f"make reproduce DEVICE={name}", "measure kernels and train predictors, about 20 minutes"),
        *(
            [(f"edgeplan plan cold-start MODEL.onnx --device {name} --output plan", "the fastest first inference")]
            if device.engine == "onednn"
            else []
        ),
    ):
        say(f"  {command:<68} # {what}")


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if wrong := next((part for part in parts if not (part.isascii() and part.isdigit() and len(part) < _DIGITS)), None):
        raise DeviceError(f"{wrong!r} is no number of a core", where="--cores", next_step="name cores as in --cores 2,3")
    return tuple(map(int, parts))
