"""Prints what the functions of the interface return; a command is imported when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from edgeplan import __version__
from edgeplan.chapters import chapter_modules
from edgeplan.cli import run as cli_run
from edgeplan.cli.ending import guarded
from edgeplan.errors import ParamsError
from edgeplan.terminal import say

_ABOUT = (
    "Predict how long a neural network takes on a device, measure it there, and plan how it runs: a fast first inference, "
    "little memory, or two processors side by side."
)
#: Commands by group: the function of each, and its line in the list of commands, which a test holds to the command's own help.
COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "": {
        "predict": (
            "predict:predict",
            "Predict the latency of a model on a device, with its interval and the cost of each kernel.",
        ),
        "measure": (
            "measure:measure",
            "Measure a model on this machine, and print what was predicted for it beside what it took.",
        ),
        "compare": (
            "compare:compare",
            "Find the best way to serve a model on this machine: each engine, by threads and sessions, run in turns.",
        ),
        "export": (
            "export:export",
            "Write a published model with seeded weights as ONNX: any that the tables of this project name.",
        ),
        "prepare": (
            "preparation:prepare",
            "Write a model of static shape that computes the same: steering inputs, half precision, shape arithmetic.",
        ),
        "stage": ("stage:stage", "Run a stage of the pipeline in this workspace, with the values of params.yaml."),
    },
    "plan": {
        "cold-start": (
            "cold_start:plan_cold_start",
            "Plan the fastest first inference of a model: kernels, cached weights, and which core does what when.",
        ),
        "front": (
            "front:plan_front",
            "Plan a model in all ways: its fastest first inference, least memory and two processors, in one table.",
        ),
        "memory": (
            "memory:plan_memory",
            "Plan how a model runs within a budget of memory: its weights are read from the disk while it runs.",
        ),
        "partition": (
            "partition:plan_partition",
            "Plan which of two processors runs each operator, whole or split: of a model on a pair, or from costs.",
        ),
    },
    "device": {
        "adapt": (
            "adapt:device_adapt",
            "Predict for a new device after a minute of measuring here, from the predictors of an old device.",
        ),
        "check": (
            "device:device_check",
            "Report engine, versions, cores, clock behaviour and noise, and whether figures from this machine can be trusted.",
        ),
        "deploy": (
            "board:device_deploy",
            "Bring edgeplan's worker to a board over its transport: wheels from the lock; the board needs no network.",
        ),
        "bundle": (
            "board:device_bundle",
            "Write the archive that deploying sends, for a board that this machine does not reach.",
        ),
        "collect": (
            "board:device_collect",
            "Take rows that another machine has measured into this workspace, each once.",
        ),
        "init": (
            "device:device_init",
            "Write a device file for this machine: config/devices/NAME.yaml of the workspace, or of this folder.",
        ),
    },
}


class _Group(TyperGroup):
    """A group imports the module of a command when the command is called; its own help needs the lines of the table alone."""

    table: ClassVar[Mapping[str, tuple[str, str]]] = COMMANDS[""]

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._helps = False
        listed = {name: TyperCommand(name, help=about) for name, (_, about) in self.table.items()}
        self.commands = {**listed, **self.commands}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group, with its commands as the table has them."""
        self._helps = True
        super().format_help(ctx, formatter)
        self._helps = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command that is called."""
        if self._helps or cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        module, _, function = self.table[cmd_name][0].partition(":")
        alone = typer.Typer(add_completion=False)
        alone.command(cmd_name)(getattr(import_module(f"edgeplan.cli.{module}"), function))
        return typer.main.get_command(alone)


class _Plan(_Group):
    table = COMMANDS["plan"]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take the command that is named; a file in its place is the model of `plan front`."""
        if args[:1] == ["layout"] and not Path("layout").exists():
            raise ParamsError("the command `plan layout` is removed", next_step="call edgeplan.planning.layout.least")
        if args and args[0] not in self.commands and (Path(args[0]).suffix or Path(args[0]).exists()):
            args = ["front", *args]
        return super().resolve_command(ctx, args)


class _Device(_Group):
    table = COMMANDS["device"]


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command: contexts inherit them
)
device_app = typer.Typer(cls=_Device, help="Write device files, and check how well a machine measures.", no_args_is_help=True)
plan_app = typer.Typer(cls=_Plan, no_args_is_help=True)
app.add_typer(device_app, name="device")
app.add_typer(plan_app, name="plan")
for module in chapter_modules("commands"):
    module.register(app, plan_app)


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


@plan_app.callback()
def _plan() -> None:
    """Plan a fast first inference, a run within little memory, or two processors; `edgeplan plan MODEL` compares them."""


@app.command("run", help=cli_run.ABOUT, add_help_option=False, context_settings=cli_run.PASSED_ON)
def _run(context: typer.Context) -> None:
    cli_run.run(cli_run.parser().parse_args(context.args))


def main() -> None:
    """Run the command line; errors a user can correct end with their message and exit code."""
    guarded(app)
