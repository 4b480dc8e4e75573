"""Prints what the functions of the interface return; a command is imported when it is called."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from edgeplan import __version__
from edgeplan.cli import run as cli_run
from edgeplan.cli.ending import guarded
from edgeplan.errors import ParamsError
from edgeplan.terminal import say

_ABOUT = (
    "Predict how long a neural network takes on a device, measure it there, and plan how it runs: a fast first inference, "
    "little memory, or two processors side by side."
)
#: Commands by group, each with its module and function.
COMMANDS: Mapping[str, Mapping[str, str]] = {
    "": {
        "predict": "predict:predict",
        "measure": "predict:measure",
        "compare": "compare:compare",
        "export": "models:export",
        "prepare": "models:prepare",
        "stage": "stage:stage",
    },
    "plan": {
        "cold-start": "cold_start:plan_cold_start",
        "front": "front:plan_front",
        "memory": "memory:plan_memory",
        "partition": "partition:plan_partition",
    },
    "device": {
        "adapt": "device:device_adapt",
        "check": "device:device_check",
        "deploy": "device:device_deploy",
        "init": "device:device_init",
    },
}


def _about(place: str) -> str:
    """Read a command's line of help, without importing what it needs."""
    module, _, name = place.partition(":")
    tree = ast.parse((Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8"))
    found = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name)
    return ast.get_docstring(found) or ""


class _Group(TyperGroup):
    """A group imports the module of a command when the command is called; its own help reads that one's text alone."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.table, self._helps = COMMANDS.get(self.name or "", COMMANDS[""]), False
        self.commands = {**{name: TyperCommand(name) for name in self.table}, **self.commands}

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the group, with its commands as their functions say."""
        for name, place in self.table.items():
            self.commands[name].help = _about(place)
        self._helps = True
        super().format_help(ctx, formatter)
        self._helps = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command that is called."""
        if self._helps or cmd_name not in self.table:
            return super().get_command(ctx, cmd_name)
        module, _, function = self.table[cmd_name].partition(":")
        alone = typer.Typer(add_completion=False)
        alone.command(cmd_name)(getattr(import_module(f"edgeplan.cli.{module}"), function))
        return typer.main.get_command(alone)


class _Plan(_Group):
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Take the command that is named; a file in its place is the model of `plan front`."""
        if args[:1] == ["layout"] and not Path("layout").exists():
            raise ParamsError("the command `plan layout` is removed", next_step="call edgeplan.planning.layout.least")
        if args and args[0] not in self.commands and (Path(args[0]).suffix or Path(args[0]).exists()):
            args = ["front", *args]
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},  # of every command: contexts inherit them
)
device_app = typer.Typer(cls=_Group, help="Write device files, and check how well a machine measures.", no_args_is_help=True)
plan_app = typer.Typer(cls=_Plan, no_args_is_help=True)
app.add_typer(device_app, name="device")
app.add_typer(plan_app, name="plan")


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
