"""Runs the commands of `edgeplan device`: files and checks of devices, and what boards are sent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

import typer

from edgeplan.chapters.partition.measuring.opened import Opened, opened
from edgeplan.chapters.prediction.adapting import Adapted, adapt_device
from edgeplan.devices.config import load_device
from edgeplan.devices.create import create_device, create_pair
from edgeplan.devices.pairs import load_pair
from edgeplan.engines.registry import engine_class
from edgeplan.errors import DeviceError, ParamsError
from edgeplan.measurement.board.deploy import deploy
from edgeplan.measurement.device_check import check_device, report_lines
from edgeplan.measurement.lock import machine_lock
from edgeplan.runtime.partitioned.session import Synchronisation, handshake
from edgeplan.terminal import say
from edgeplan.workspace import ResultsOption, WorkspaceOption

_MIB = 1 << 20
_DIGITS = 6  # more have the numbers of no cores
_HANDSHAKES = 200  # of each way to wait


def device_init(
    name: Annotated[str, typer.Argument(help="Name of the new device: lower-case letters, digits and hyphens.")],
    engine: Annotated[str, typer.Option(help="Engine; without, the first that is installed.")] = "",
    threads: Annotated[int, typer.Option(min=0, max=1024, help="Threads of one inference; 0: one a core named, else 1.")] = 0,
    cores: Annotated[str, typer.Option(help="Processors to pin to, e.g. 2,3; without, the last that may be used.")] = "",
    force: Annotated[bool, typer.Option("--force", help="Overwrite a file that is there.")] = False,
    pair: Annotated[str, typer.Option(help="Write a pair file: this machine's CPU beside the device of this name.")] = "",
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Write a device file for this machine: config/devices/NAME.yaml of the workspace, or of this folder."""
    if pair:
        made, path = create_pair(name, pair, cores=_numbers(cores), force=force)
        say(f"{path}: {made.description}")
        say(f"next:\n  edgeplan device check --pair {name}\n  edgeplan compare MODEL.onnx --pair {name}")
        return
    device, path = create_device(name, engine=engine, threads=threads, cores=_numbers(cores), force=force)
    pinned = ", ".join(map(str, device.cores))
    say(f"{path}: {device.engine}, {device.threads} thread{'s' if device.threads > 1 else ''} on core(s) {pinned}")
    say("next:")
    for offered, command, what in (
        (True, f"edgeplan device check {name}", "whether figures of this machine can be trusted"),
        (True, f"edgeplan measure MODEL.onnx --device {name}", "how long a model takes here"),
        (
            engine_class(device.engine).reports_nodes,
            f"edgeplan device adapt {name}", "predictors from those of another device, in a minute",
        ),
        (True, f"make reproduce DEVICE={name}", "measure kernels and train predictors"),
        (
            device.engine == "onednn",
            f"edgeplan plan cold-start MODEL.onnx --device {name} --output plan", "the fastest first inference",
        ),
    ):  # fmt: skip
        if offered:
            say(f"  {command:<68} # {what}")


def _numbers(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if wrong := next((part for part in parts if not (part.isascii() and part.isdigit() and len(part) < _DIGITS)), None):
        raise DeviceError(f"{wrong!r} is no number of a core", where="--cores", next_step="name cores as in --cores 2,3")
    return tuple(map(int, parts))


def device_check(
    name: Annotated[str, typer.Argument(help="Name of a device, or path of a device file.")] = "",
    pair: Annotated[
        str, typer.Option("--pair", help="Name of a pair of processors, or path of its file, in place of a device.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=1.0, max=600.0, help="Seconds of watching the machine.")] = 10.0,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Report engine, versions, cores, clock behaviour and noise, and whether figures from this machine can be trusted."""
    if bool(name) == bool(pair):
        what, next_step = "a device or a pair is checked", "name one: DEVICE, or --pair PAIR"
        raise ParamsError(what, where="edgeplan device check", next_step=next_step)
    if pair:
        with machine_lock(), opened(load_pair(pair)) as found_pair:
            told = list(_pair_lines(found_pair))
        for line in told:
            say(line)
        return
    found = check_device(name, seconds)
    for line in report_lines(found):
        say(line)
    if not found.trusted:
        raise typer.Exit(7)


def _pair_lines(found: Opened) -> Iterator[str]:
    """Tell how the processors of a pair wait for each other, and what that costs."""
    yield f"pair        {found.pair.name}"
    for side, processor in zip(found.pair.processors, found.processors, strict=True):
        about = processor.capabilities
        on = f" on core(s) {', '.join(map(str, about.cores))}" if about.cores else ""
        yield f"{side.name:<12}{about.name}{on}; {about.version}"
    yield f"memory      shared: {found.other.capabilities.sharing}"
    yield f"waits by    {found.synchronisation}: {found.why}"
    for how in Synchronisation:
        try:
            made = handshake(*found.processors, how, _HANDSHAKES)
            yield f"handshake   by {how}: least {made.least_us:.1f} us, median {made.median_us:.1f} us a step"
        except DeviceError as error:
            yield f"handshake   by {how}: {error.what}"


def device_adapt(
    name: Annotated[str, typer.Argument(help="Name of the new device, or path of its file: edgeplan device init writes one.")],
    old: Annotated[str, typer.Option("--from", help="Old device; without, the one of the same engine.")] = "",
    seconds: Annotated[float, typer.Option(min=5.0, max=3600.0, help="Seconds to measure.")] = 60.0,
    batch: Annotated[int, typer.Option(min=1, max=64, help="Images that models are predicted for at once.")] = 1,
    results: ResultsOption = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Predict for a new device after a minute of measuring here, from the predictors of an old device."""
    for line in told(adapt_device(name, old, seconds=seconds, batch=batch, results=results), seconds):
        say(line)


def told(found: Adapted, seconds: float) -> list[str]:
    """Tell in lines what was measured, and what accuracy to expect."""
    lines = [
        f"{found.folder}: {found.device} from {found.old}",
        f"measured {found.kernels} kernels and {found.models} whole models in {found.seconds:.0f} s",
    ]
    if math.isnan(found.expected_within_10pct):
        return [*lines, f"too few whole models to say how good it is; next: --seconds {max(60, 4 * seconds):.0f}"]
    lines.append(f"expect {100 * found.expected_within_10pct:.0f} % of models within 10 %")
    return [*lines, f"next: edgeplan predict MODEL.onnx --device {found.device}"]


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
