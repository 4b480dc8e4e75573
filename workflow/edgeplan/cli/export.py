"""The command `edgeplan export` writes a named model: something to predict, plan and run where no model is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgeplan.terminal import say


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(export)


def export(
    name: Annotated[str, typer.Argument(help="Name of a model; without one the models are listed.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="ONNX file to write. Default: NAME.onnx.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the names of all models.")] = False,
) -> None:
    """Write a published model with seeded weights as ONNX: any that the tables of this project name."""
    from edgeplan.api import export as export_model  # noqa: PLC0415  the command line should not wait for onnx

    if listed or not name:
        from edgeplan.workloads.models import named_models  # noqa: PLC0415  likewise

        say("\n".join(sorted(named_models())))
        return
    path = export_model(name, output)
    say(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
