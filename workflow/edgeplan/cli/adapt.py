"""Runs the command `edgeplan device adapt`."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from edgeplan.chapters.prediction.adapting import Adapted, adapt_device
from edgeplan.terminal import say
from edgeplan.workspace import ResultsOption, WorkspaceOption

#: So many points more within 10 % are worth four times the seconds.
_WORTH = 0.02


def device_adapt(
    name: Annotated[str, typer.Argument(help="Name of the new device, or path of its file: edgeplan device init writes one.")],
    old: Annotated[
        str,
        typer.Option("--from", help="Old device; without, the one of the same engine that errs least, or all."),
    ] = "",
    seconds: Annotated[float, typer.Option(min=5.0, max=3600.0, help="Seconds to measure.")] = 60.0,
    within: Annotated[
        float, typer.Option(min=0.5, max=1.0, help="Share of models within 10 % at which measuring ends early.")
    ] = 1.0,
    batch: Annotated[int, typer.Option(min=1, max=64, help="Images that models are predicted for at once.")] = 1,
    results: ResultsOption = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Predict for a new device after a minute of measuring here, from the predictors of an old device."""
    for line in told(adapt_device(name, old, seconds=seconds, share=within, batch=batch, results=results), seconds):
        say(line)


def told(found: Adapted, seconds: float) -> list[str]:
    """Tell in lines what was measured, what accuracy to expect, and whether more measuring would pay."""
    what = f"{found.carriers} carriers ({found.kernels} kernels) and {found.models} whole models"
    lines = [
        f"{found.folder}: {found.device} from {', '.join(found.old)}",
        f"measured {what} in {found.seconds:.0f} s",
    ]
    now, later = found.expected_within_10pct, found.expected_at_four_times
    if math.isnan(now):
        return [*lines, f"too few whole models to say how good it is; next: --seconds {max(60, 4 * seconds):.0f}"]
    lines.append(
        f"expect {100 * now:.0f} % of models within 10 %; intervals of 90 % reach {100 * found.interval:.0f} % "
        "to either side of a typical model"
    )
    if later - now >= _WORTH:
        lines.append(f"more would pay: about {100 * later:.0f} % from --seconds {4 * seconds:.0f}")
    else:
        lines.append("more seconds would hardly help; for what they leave, measure in full: make reproduce")
    return [*lines, f"next: edgeplan predict MODEL.onnx --device {found.device}"]
