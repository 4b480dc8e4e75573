"""The command line: it prints what the functions of `edgeplan.api` return."""

from __future__ import annotations

from typing import Annotated

import typer

from edgeplan import __version__
from edgeplan.cli import compile as cli_compile
from edgeplan.cli import device as cli_device
from edgeplan.cli import export as cli_export
from edgeplan.cli import measure as cli_measure
from edgeplan.cli import plan as cli_plan
from edgeplan.cli import predict as cli_predict
from edgeplan.cli import preparation as cli_preparation
from edgeplan.cli import run as cli_run
from edgeplan.cli import stage as cli_stage
from edgeplan.cli.ending import guarded
from edgeplan.errors import ParamsError
from edgeplan.terminal import say
from edgeplan.workspace import WorkspaceOption

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
        from edgeplan.chapters.partition.pair_check import check_pair  # noqa: PLC0415
        from edgeplan.devices.pairs import load_pair  # noqa: PLC0415

        for line in check_pair(load_pair(pair)):
            say(line)
        return
    found = check_device(name, seconds)
    for line in report_lines(found):
        say(line)
    if not found.trusted:
        raise typer.Exit(7)


cli_predict.register(app)
cli_device.register(device_app)
cli_measure.register(app)


@app.command("run", help=cli_run.ABOUT, add_help_option=False, context_settings=cli_run.PASSED_ON)
def _run(context: typer.Context) -> None:
    cli_run.run(cli_run.parser().parse_args(context.args))


cli_export.register(app)
cli_compile.register(app)
cli_preparation.register(app)
cli_stage.register(app)


def main() -> None:
    """Run the command line; errors a user can mend end with their message and exit code."""
    guarded(app)
