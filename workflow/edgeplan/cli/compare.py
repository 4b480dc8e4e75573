"""Runs `edgeplan compare`, which serves a model in all ways that there are here and says which is best for what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from edgeplan.cli.models import BatchOption, ModelArgument, SetOption, ShapeOption
from edgeplan.comparing import api
from edgeplan.comparing.result import Comparison, share_of, write_chart
from edgeplan.errors import ParamsError
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.measurement.others import DISTURBED
from edgeplan.terminal import escaped, figures_table, milliseconds, say, show
from edgeplan.workspace import WorkspaceOption

_MIB, _INTERRUPTED = 1 << 20, 130


def compare(
    model: ModelArgument,
    device: Annotated[
        str, typer.Option("--device", "-d", help="Name of a device, or path of a device file: its processors are used.")
    ] = "cpu-onednn",
    pair: Annotated[str, typer.Option(help="Pair of processors: its second one serves, too, alone and beside the first.")] = "",
    budget_seconds: Annotated[float, typer.Option(min=1.0, max=86400.0, help="Seconds that all of it may take.")] = 60.0,
    at_once: Annotated[int, typer.Option(min=1, max=100_000, help="Requests that come at once, for that goal.")] = 16,
    engine: Annotated[str, typer.Option(help="Engines to compare: onnxruntime,openvino. Default: all that are known.")] = "",
    against: Annotated[
        str, typer.Option(help="Another ONNX file to hold the model against, or a file of what --json printed.")
    ] = "",
    fail_above: Annotated[str, typer.Option(help="End with exit code 15 if it is for certain slower by more, as in 5%.")] = "",
    chart: Annotated[Path | None, typer.Option(help="File to draw speed against rate to, as SVG.")] = None,
    shape: ShapeOption = None,
    values: SetOption = None,
    batch: BatchOption = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Find the best way to serve a model on this machine: each engine, by threads and sessions, run in turns."""
    if fail_above and not against:
        raise ParamsError("nothing is held against", where="--fail-above", next_step="name a model: --against old.onnx")
    allowed = share_of(fail_above) if fail_above else None
    found = api.compare(
        model, device=device, budget_seconds=budget_seconds, engine=tuple(filter(None, engine.split(","))), against=against,
        pair=pair, at_once=at_once,
        preparation=Preparation.parsed(shape, values, batch),
    )  # fmt: skip
    if chart is not None:
        write_chart(found, chart)
    if as_json:
        say(json.dumps(found.document(), indent=2))
    else:
        print_comparison(found)
    if found.interrupted:
        raise typer.Exit(_INTERRUPTED)
    if allowed is not None:
        found.require(allowed)


def print_comparison(found: Comparison) -> None:
    """Print what each way took, what did not run, and a sentence for each goal."""
    if found.rows:
        table = figures_table(
            "engine", "first, ms", "later, ms", "95 %", "a second", f"{found.at_once} at once", "MiB", "difference", "turns"
        )
        for row in found.rows:
            between = f"{_short(row.low_ms)} to {_short(row.high_ms)}"
            difference = "" if row.difference is None else f"{row.difference:.0e}{'' if row.is_right else ' WRONG'}"
            table.add_row(
                row.name, f"{row.first_ms:.0f}", _short(row.latency_ms), between, f"{row.per_second:.4g}",
                _short(row.at_once_ms), f"{row.peak_bytes / _MIB:.0f}", difference, str(len(row.latencies_ms)),
            )  # fmt: skip
        show(table)
    for left in found.left_out:
        say(f"{left.name}: {left.reason}")
    for line in found.advice():
        say(line)
    if found.held:
        table = figures_table("engine", "ms", "other, ms", "times", "between", "rounds", "verdict")
        for held in found.held:
            times = (_short(held.latency_ms), _short(held.other_ms), f"{held.ratio:.3f}", f"{held.low:.3f} to {held.high:.3f}")
            table.add_row(held.name, *times, str(held.rounds), f"{held.verdict}{held.reason and f': {held.reason}'}")
        show(table)
    busy = f"; other work had {100 * found.others:.0f} % of their time" if found.others > DISTURBED else ""
    ended = "; interrupted" if found.interrupted else ""
    say(f"{escaped(found.model)}: {found.seconds:.0f} s on {len(found.processors)} processors{busy}{ended}")


def _short(ms: float) -> str:
    return milliseconds(ms, "")
