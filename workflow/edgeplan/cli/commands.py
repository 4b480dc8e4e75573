"""The command line: it prints what the functions of `edgeplan.api` return."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edgeplan import __version__
from edgeplan.cli import compile as cli_compile
from edgeplan.cli import device as cli_device
from edgeplan.cli import export as cli_export
from edgeplan.cli import measure as cli_measure
from edgeplan.cli import plan as cli_plan
from edgeplan.cli import preparation as cli_preparation
from edgeplan.cli import run as cli_run
from edgeplan.cli import stage as cli_stage
from edgeplan.cli.preparation import BatchOption, SetOption, ShapeOption, preparation
from edgeplan.errors import EdgeplanError, ParamsError
from edgeplan.support.termination import end_orderly
from edgeplan.terminal import CLOSED, ending, escaped, prepare, say, show
from edgeplan.workspace import ResultsOption, WorkspaceOption
from edgeplan.writable import expected

if TYPE_CHECKING:
    from edgeplan.chapters.prediction.model_prediction import Prediction

_ABOUT = (
    "Predict how long a neural network takes on a device, measure it there, and plan how it runs: a fast first inference, "
    "little memory, or two processors side by side."
)
app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command: contexts inherit them
)
device_app = typer.Typer(help="Write device files, and check how well a machine measures.", no_args_is_help=True)
app.add_typer(device_app, name="device")
cli_plan.register(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"edgeplan {__version__}")
        raise typer.Exit


@app.callback(help=_ABOUT)
def _edgeplan(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version of edgeplan.")
    ] = False,
) -> None:
    """Hold the options of `edgeplan` itself."""


_Device = Annotated[str, typer.Option("--device", "-d", help="Name of a device, or path of a device file.")]


@app.command()
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
    from edgeplan.api import predict as predict_model  # noqa: PLC0415  `edgeplan --help` should not wait for onnx

    found = predict_model(model, device, results=results, partial=partial, preparation=preparation(shape, values, batch))
    document = prediction_document(found)
    _warn_of_unfamiliar(found.unfamiliar)
    _warn_of_stand_ins(found.stand_ins)
    if as_json:
        say(json.dumps(document, indent=2))
        return
    if found.about:
        say(found.about)
    _print_prediction(document)


def prediction_document(found: Prediction) -> dict[str, Any]:
    """A prediction as `--json` prints it."""
    document = asdict(found)
    document["missing"] = list(found.missing)
    document["unfamiliar"] = [{"name": name, "why": why} for name, why in found.unfamiliar]
    document["stand_ins"] = [{"name": name, "kind": kind, "predicted_as": other} for name, kind, other in found.stand_ins]
    document["kernels"] = list(document["kernels"])
    del document["about"]  # for people
    return document


def _print_prediction(found: dict[str, object]) -> None:
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

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


def _warn_of_stand_ins(found: Sequence[tuple[str, str, str]]) -> None:
    """On the error stream: which kernels are of kinds that were not measured, a line for each kind."""
    nodes: dict[tuple[str, str], list[str]] = {}
    for name, kind, other in found:
        nodes.setdefault((kind, other), []).append(name)
    for (kind, other), names in nodes.items():
        shown = ", ".join(escaped(name) for name in names[:3])
        told = f"warning: nothing of kind {kind} was measured on this device: {shown}"
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004
        how = "by the bytes moved, at the pace of kinds that were" if other == "bytes" else f"as {other} of the same sizes"
        say(f"{told}{more} predicted {how}; the interval is wider for that", err=True)


def _warn_of_unfamiliar(found: Sequence[tuple[str, str]]) -> None:
    """On the error stream, as warnings are: what the interval does not cover, a line for each reason."""
    nodes: dict[str, list[str]] = {}
    for name, why in found:
        nodes.setdefault(why, []).append(name)
    for why, names in nodes.items():
        shown = ", ".join(escaped(name) for name in names[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""  # noqa: PLR2004
        told = f"warning: unlike anything measured on this device ({why}): {shown}{more}"
        say(f"{told}; the prediction of these kernels is a guess that the interval does not cover", err=True)


@device_app.command("check")
def device_check(
    name: Annotated[str, typer.Argument(help="Name of a device, or path of a device file.")] = "",
    pair: Annotated[
        str, typer.Option("--pair", help="Name of a pair of processors, or path of its file, in place of a device.")
    ] = "",
    seconds: Annotated[float, typer.Option(min=1.0, max=600.0, help="Seconds of watching the machine.")] = 10.0,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Report engine, versions, cores, clock behaviour and noise, and whether figures from this machine can be trusted."""
    from edgeplan.measurement.device_check import check_device, report_lines  # noqa: PLC0415

    if bool(name) == bool(pair):
        what, next_step = "a device or a pair is checked", "name one: DEVICE, or --pair PAIR"
        raise ParamsError(what, where="edgeplan device check", next_step=next_step)
    if pair:
        from edgeplan.chapters.partition.inference import check_lines, check_pair  # noqa: PLC0415
        from edgeplan.devices.pairs import load_pair  # noqa: PLC0415

        for line in check_lines(check_pair(load_pair(pair))):
            say(line)
        return
    found = check_device(name, seconds)
    for line in report_lines(found):
        say(line)
    if not found.trusted:
        raise typer.Exit(7)


cli_device.register(device_app)
cli_measure.register(app)
cli_run.register(app)
cli_export.register(app)
cli_compile.register(app)
cli_preparation.register(app)
cli_stage.register(app)


def main() -> None:
    """Run the command line; errors a user can mend end with their message and exit code."""
    prepare()
    end_orderly()
    output, code = sys.stdout, 0
    try:
        app()
    except EdgeplanError as error:
        code = _told(error)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 0
        if sys.stdout is not output:  # what typer does when the reader has left
            code = CLOSED
    except OSError as error:
        if (full := ending(output, suspected=True)) is None:
            if (message := expected(error)) is None:
                raise
            code = _told(message)
        else:
            sys.exit(_unwritten(*full))
    if (full := ending(output)) is not None:
        code = _unwritten(*full)
    sys.exit(code)


def _told(error: EdgeplanError) -> int:
    """Print an error. Returns its exit code."""
    with suppress(OSError):  # nobody can be told where the error stream is full or closed
        say(f"error: {error}", err=True)
    return error.exit_code


def _unwritten(message: str, code: int) -> int:
    """Print why the output did not take what was printed, if anybody has to know. Returns the exit code."""
    with suppress(OSError):
        if message:
            say(message, err=True)
    return code
