"""Runs `edgeplan predict`, which predicts the latency of a model on a device."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from edgeplan.chapters.prediction import api
from edgeplan.chapters.prediction.api import Prediction
from edgeplan.cli.preparation import BatchOption, SetOption, ShapeOption, preparation
from edgeplan.terminal import escaped, say, show
from edgeplan.workspace import ResultsOption, WorkspaceOption

_NAMED = 3  # kernels of a warning
_SEEN = 0.005  # of the time
_SECONDS = 5.0

_Device = Annotated[str, typer.Option("--device", "-d", help="Name of a device, or path of a device file.")]


def predict(
    model: Annotated[Path, typer.Argument(help="ONNX file.")],
    device: _Device = "cpu-onnxruntime",
    results: ResultsOption = None,
    shape: ShapeOption = None,
    values: SetOption = None,
    batch: BatchOption = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    measure: Annotated[
        float,
        typer.Option(min=0.0, max=600.0, help="Seconds to measure, on the device, what is known least; it is kept."),
    ] = 0.0,
) -> None:
    """Predict the latency of a model on a device, with its interval and the cost of each kernel."""
    found = api.predict(model, device, results=results, measure=measure, preparation=preparation(shape, values, batch))
    for line in warnings(found):
        say(line, err=True)
    if as_json:
        say(json.dumps(prediction_document(found), indent=2))
        return
    if found.about:
        say(found.about)
        say(f"for this machine, after a minute of measuring: edgeplan device adapt NAME --from {found.device}")
    if found.predicted_for.told_by:
        say(f"what is executed was told by {found.predicted_for.told_by}, another than was measured")
    _print_prediction(found)


def prediction_document(found: Prediction) -> dict[str, Any]:
    """Return a prediction as `--json` prints it."""
    document = asdict(found)
    document["kernels"] = list(document["kernels"])
    del document["about"]  # for people
    return document


def reach(found: Prediction) -> str:
    """Tell how far a prediction reaches: its interval, or that it has none."""
    if found.low_ms is None or found.high_ms is None:
        return f"no interval: {100 * found.shares['guessed']:.0f} % of it is guessed"
    return f"{100 * found.interval:.0f} % interval {found.low_ms:.3f} to {found.high_ms:.3f} ms"


def _print_prediction(found: Prediction) -> None:
    def name(text: object) -> str:
        return escape(escaped(str(text)))  # of a file that may hold anything: square brackets are no markup here

    lines = [f"{name(found.model)} on {found.device}: [bold]{found.latency_ms:.3f} ms[/bold] ({reach(found)})"]
    table = Table("kernel", "type", "operators", box=None, pad_edge=False)
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    table.add_column("from")
    for kernel in found.kernels:
        share = f"{100 * kernel.share:.1f} %"
        held = name(", ".join(kernel.operators))
        table.add_row(name(kernel.name), name(kernel.type), held, f"{kernel.latency_ms:.4f}", share, kernel.source)
    # part of the latency: without it the lines do not add up to the whole
    table.add_row(
        "(call, between kernels)", "", "", f"{found.call_ms:.4f}", f"{100 * found.call_ms / found.latency_ms:.1f} %", ""
    )
    show(*lines, table)
    show(", ".join(f"{100 * share:.0f} % {source}" for source, share in found.shares.items()))


def warnings(found: Prediction) -> Iterator[str]:
    """Yield a line on the kernels that are guesses, if they take a share that one would see."""
    guessed = sorted((k for k in found.kernels if k.source == "guessed"), key=lambda k: -k.latency_ms)
    if guessed and found.shares["guessed"] >= _SEEN:
        names = ", ".join(escaped(kernel.name) for kernel in guessed[:_NAMED])
        more = f" and {len(guessed) - _NAMED} more" if len(guessed) > _NAMED else ""
        share = 100 * found.shares["guessed"]
        yield f"warning: {share:.0f} % of the time is guessed ({names}{more}); --measure {_SECONDS:g} measures it on the device"
