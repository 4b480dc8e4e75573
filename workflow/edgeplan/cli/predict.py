"""Runs `edgeplan predict`, which predicts the latency of a model on a device."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from edgeplan.chapters.prediction import api
from edgeplan.chapters.prediction.model_prediction import Prediction
from edgeplan.cli.preparation import BatchOption, SetOption, ShapeOption, preparation
from edgeplan.terminal import escaped, say, show
from edgeplan.workspace import ResultsOption, WorkspaceOption

_NAMED = 3  # kernels of a warning

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
    partial: Annotated[bool, typer.Option(help="Report what can be predicted when some kernels have no predictor.")] = False,
) -> None:
    """Predict the latency of a model on a device, with its interval and the cost of each kernel."""
    found = api.predict(model, device, results=results, partial=partial, preparation=preparation(shape, values, batch))
    document = prediction_document(found)
    _warn(found)
    if as_json:
        say(json.dumps(document, indent=2))
        return
    if found.about:
        say(found.about)
        say(f"for this machine, after a minute of measuring: edgeplan device adapt NAME --from {found.device}")
    _print_prediction(document)


def prediction_document(found: Prediction) -> dict[str, Any]:
    """Return a prediction as `--json` prints it."""
    document = asdict(found)
    document["missing"] = list(found.missing)
    document["unfamiliar"] = [{"name": name, "why": why} for name, why in found.unfamiliar]
    document["stand_ins"] = [{"name": name, "kind": kind, "predicted_as": other} for name, kind, other in found.stand_ins]
    document["kernels"] = list(document["kernels"])
    del document["about"]  # for people
    return document


def _print_prediction(found: dict[str, object]) -> None:
    def name(text: object) -> str:
        return escape(escaped(str(text)))  # of a file that may hold anything: square brackets are no markup here

    latency = (
        f"{name(found['model'])} on {found['device']}: [bold]{found['latency_ms']:.3f} ms[/bold] "
        f"({100 * found['interval']:.0f} % interval {found['low_ms']:.3f} to {found['high_ms']:.3f} ms)"  # type: ignore[operator]
    )
    lines = [latency]
    if found["coverage"] != 1.0:
        without = ", ".join(found["missing"])  # type: ignore[arg-type]
        lines.append(f"covers {100 * found['coverage']:.1f} % of the kernels; without: {name(without)}")  # type: ignore[operator]
    if found["stand_ins"]:
        lines.append(f"{100 * found['stand_in_share']:.1f} % of it is of kinds that were not measured")  # type: ignore[operator]
    table = Table("kernel", "type", "implementation", box=None, pad_edge=False)
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    for kernel in found["kernels"]:  # type: ignore[attr-defined]
        share = f"{100 * kernel['share']:.1f} %"
        table.add_row(name(kernel["name"]), kernel["type"], kernel["implementation"], f"{kernel['latency_ms']:.4f}", share)
    if found["call_ms"]:  # part of the latency: without it the lines do not add up to the whole
        share = f"{100 * found['call_ms'] / found['latency_ms']:.1f} %"  # type: ignore[operator]
        table.add_row("(call)", "", "", f"{found['call_ms']:.4f}", share)
    show(*lines, table)


def _warn(found: Prediction) -> None:
    """Say on the error stream which kernels are guesses, a line for each reason: the interval does not cover them."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for name, why in found.unfamiliar:
        told, then = f"unlike anything measured on this device ({why}):", "; the prediction of these kernels is a guess that"
        nodes.setdefault((told, f"{then} the interval does not cover"), []).append(name)
    for name, kind, other in found.stand_ins:
        how = "by the bytes moved, at the pace of kinds that were" if other == "bytes" else f"as {other} of the same sizes"
        told = f"nothing of kind {kind} was measured on this device:"
        nodes.setdefault((told, f" predicted {how}; the interval is wider for that"), []).append(name)
    for (told, then), names in nodes.items():
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        say(f"warning: {told} {', '.join(map(escaped, names[:_NAMED]))}{more}{then}", err=True)
