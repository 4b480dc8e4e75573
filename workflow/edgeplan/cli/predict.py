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
from edgeplan.chapters.prediction.api import Measured, Prediction
from edgeplan.cli.models import BatchOption, DeviceOption, ModelArgument, SetOption, ShapeOption
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.terminal import escaped, say, show
from edgeplan.workspace import ResultsOption, WorkspaceOption

_NAMED = 3  # kernels of a warning
_SEEN = 0.005  # of the time
_SECONDS = 5.0


def predict(
    model: ModelArgument,
    device: DeviceOption = "cpu-onnxruntime",
    results: ResultsOption = None,
    shape: ShapeOption = None,
    values: SetOption = None,
    batch: BatchOption = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    measure: Annotated[
        float, typer.Option(min=0.0, max=600.0, help="Seconds to measure, on the device, what is known least; it is kept.")
    ] = 0.0,
) -> None:
    """Predict the latency of a model on a device, with its interval and the cost of each kernel."""
    found = api.predict(model, device, results=results, measure=measure, preparation=Preparation.parsed(shape, values, batch))
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


#: Noise of blocks, and share of waiting, beyond which a figure is called noisy.
_NOISY, _WAITED = 0.05, 0.02


def measure(
    model: ModelArgument,
    device: DeviceOption = "cpu-onnxruntime",
    seconds: Annotated[float, typer.Option(min=1.0, max=600.0, help="About how long to measure.")] = 20.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    rows: Annotated[Path | None, typer.Option(help="Folder of measured rows. Default: the workspace's.")] = None,
    results: ResultsOption = None,
    shape: ShapeOption = None,
    values: SetOption = None,
    batch: BatchOption = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Measure a model on this machine, and print what was predicted for it beside what it took."""
    found = api.measure(
        model, device, seconds=seconds, results=results, rows=rows, preparation=Preparation.parsed(shape, values, batch)
    )
    if as_json:
        say(json.dumps(measured_document(found), indent=2))
        return
    _print(found)


def measured_document(found: Measured) -> dict[str, object]:
    """Return a measurement as `--json` prints it."""
    kernels = [{**asdict(kernel), "deviation": kernel.deviation} for kernel in found.kernels]
    prediction = None if found.prediction is None else prediction_document(found.prediction)
    judged = {"deviation": found.deviation, "inside_interval": found.inside}
    return {**asdict(found), "prediction": prediction, **judged, "kernels": kernels}


def _print(found: Measured) -> None:
    lines = [escape(escaped(line)) for line in headlines(found)]
    if not found.kernels:
        show(*lines)
        return
    table = Table("kernel", "type", box=None, pad_edge=False)
    for title in ("predicted ms", "measured ms", "deviation"):
        table.add_column(title, justify="right")
    for kernel in found.kernels:
        times = ("" if ms is None else f"{ms:.4f}" for ms in (kernel.predicted_ms, kernel.measured_ms))
        deviation = "" if kernel.deviation is None else f"{100 * kernel.deviation:+.1f} %"
        table.add_row(escape(escaped(kernel.name)), escape(kernel.type), *times, deviation)
    show(*lines, table)


def headlines(found: Measured) -> Iterator[str]:
    """Yield the lines on a measurement without its kernels."""
    yield f"{found.model} on {found.device}"
    noisy = ": noisy, trust it no further" if found.noise > _NOISY else ""
    differ = f"blocks differ by +-{100 * found.noise:.1f} %{noisy}"
    yield f"measured    {found.latency_ms:.3f} ms as it ran (least {found.least_ms:.3f} ms); {differ}"
    yield f"            {found.normalised_ms:.3f} ms where the machine is quiet: it was {found.slowness:.2f} times as slow"
    if found.throttled > _WAITED:
        yield f"noise       a CPU quota stopped the model for {100 * found.throttled:.0f} % of the time: it takes less without"
    if found.waited > _WAITED:
        yield f"noise       other work had the processor for {100 * found.waited:.0f} % of the time: the model alone takes less"
    prediction = found.prediction
    if prediction is None or found.deviation is None:
        yield f"predicted   {found.without_prediction}"
        yield f"            to have predictions: {found.next_step}"
    else:
        yield f"predicted   {prediction.latency_ms:.3f} ms ({reach(prediction)})"
        side = "inside" if found.inside else "outside"
        told = "" if found.inside is None else f"; the measured latency is {side} the interval"
        yield f"deviation   {100 * found.deviation:+.1f} %{told}"
        if prediction.about:
            yield f"            {prediction.about};"
            adapt = f"edgeplan device adapt NAME --from {found.device}"
            yield f"            for this one: {adapt} (a minute), or make reproduce DEVICE={found.device}"
        yield from (f"            {line.removeprefix('warning: ')}" for line in warnings(prediction))
    if found.without_kernels:
        yield f"kernels     {found.without_kernels}"
