"""Runs `edgeplan predict`, which predicts the latency of a model on a device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
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
    for line in warnings(found):
        say(line, err=True)
    if as_json:
        say(json.dumps(prediction_document(found), indent=2))
        return
    if found.about:
        say(found.about)
        say(f"for this machine, after a minute of measuring: edgeplan device adapt NAME --from {found.device}")
    _print_prediction(found)


def prediction_document(found: Prediction) -> dict[str, Any]:
    """Return a prediction as `--json` prints it."""
    document = asdict(found)
    document["missing"] = list(found.missing)
    document["unfamiliar"] = [{"name": name, "why": why} for name, why in found.unfamiliar]
    document["stand_ins"] = [{"name": name, "kind": kind, "predicted_as": other} for name, kind, other in found.stand_ins]
    document["kernels"] = list(document["kernels"])
    del document["about"]  # for people
    return document


def reach(found: Prediction) -> str:
    """Tell how far a prediction reaches: its interval; with guesses among the kernels that it has none."""
    bounds = f"{found.low_ms:.3f} to {found.high_ms:.3f} ms"
    if found.interval is not None:
        return f"{100 * found.interval:.0f} % interval {bounds}"
    count = len({node for node, _ in found.unfamiliar})
    guesses = f"{count} kernel{'s are guesses' if count > 1 else ' is a guess'}"
    return f"no interval: {guesses}, {100 * found.guess_share:.1f} % of it; at least {bounds}"


def _print_prediction(found: Prediction) -> None:
    def name(text: object) -> str:
        return escape(escaped(str(text)))  # of a file that may hold anything: square brackets are no markup here

    lines = [f"{name(found.model)} on {found.device}: [bold]{found.latency_ms:.3f} ms[/bold] ({reach(found)})"]
    if found.coverage != 1.0:
        lines.append(f"covers {100 * found.coverage:.1f} % of the kernels; without: {name(', '.join(found.missing))}")
    if found.stand_ins:
        lines.append(f"{100 * found.stand_in_share:.1f} % of it is of kinds that were not measured")
    table = Table("kernel", "type", "implementation", box=None, pad_edge=False)
    table.add_column("ms", justify="right")
    table.add_column("share", justify="right")
    for kernel in found.kernels:
        share = f"{100 * kernel.share:.1f} %"
        table.add_row(name(kernel.name), kernel.type, kernel.implementation, f"{kernel.latency_ms:.4f}", share)
    if found.call_ms:  # part of the latency: without it the lines do not add up to the whole
        table.add_row("(call)", "", "", f"{found.call_ms:.4f}", f"{100 * found.call_ms / found.latency_ms:.1f} %")
    show(*lines, table)


def warnings(found: Prediction) -> Iterator[str]:
    """Yield a line on the kernels that are guesses, and one on those of kinds that were not measured."""
    if found.unfamiliar:
        listed = _listed(found.unfamiliar)
        yield f"warning: unlike anything measured on this device, so guesses without an interval: {listed}"
    if found.stand_ins:
        how = {"bytes": "by the bytes moved, at the pace of kinds that were measured"}
        listed = _listed([(n, f"{kind}: {how.get(to, f'as {to} of the same sizes')}") for n, kind, to in found.stand_ins])
        yield f"warning: of kinds not measured on this device, so that they may be off by more: {listed}"


def _listed(nodes: Sequence[tuple[str, str]]) -> str:
    """List nodes by what is said of them, some of each."""
    of: dict[str, list[str]] = {}
    for node, why in nodes:
        of.setdefault(why, []).append(escaped(node))
    return "; ".join(
        f"{', '.join(names[:_NAMED])}{f' and {len(names) - _NAMED} more' if len(names) > _NAMED else ''} ({why})"
        for why, names in of.items()
    )
