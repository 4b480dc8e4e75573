"""The command `edgeplan export` writes a named model: something to predict, plan and run where no model is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgeplan import api
from edgeplan.terminal import say
from edgeplan.workloads.registry import named_models


def export(
    name: Annotated[str, typer.Argument(help="Name of a model; without one the models are listed.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="ONNX file to write. Default: NAME.onnx.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the names of all models.")] = False,
) -> None:
    """Write a published model with seeded weights as ONNX: any that the tables of this project name."""
    if listed or not name:
        say("\n".join(sorted(named_models())))
        return
    path = api.export(name, output)
    say(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
