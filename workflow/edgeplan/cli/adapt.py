"""Runs the command `edgeplan device adapt`."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from edgeplan.chapters.prediction.adapting import Adapted, adapt_device
from edgeplan.terminal import say
from edgeplan.workspace import ResultsOption, WorkspaceOption


def device_adapt(
    name: Annotated[str, typer.Argument(help="Name of the new device, or path of its file: edgeplan device init writes one.")],
    old: Annotated[
        str,
        typer.Option("--from", help="Old device; without, the one of the same engine."),
    ] = "",
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
