"""The command `edgeplan export` writes a named model: something to predict, plan and run where no model is at hand."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from edgeplan.errors import ModelError, StoreError
from edgeplan.terminal import say

_NEAR = 5


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(export)


def export(
    name: Annotated[str, typer.Argument(help="Name of a model; without one the models are listed.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="ONNX file to write. Default: NAME.onnx.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the names of all models.")] = False,
) -> None:
    """Write a published model with seeded weights as ONNX: any that the tables of this project name."""
    from edgeplan.workloads.models import named_models  # noqa: PLC0415  the command line should not wait for onnx

    known = named_models()
    if listed or not name:
        say("\n".join(sorted(known)))
        return
    if name not in known:
        near = get_close_matches(name, known, _NEAR)
        raise ModelError(
            f"there is no model {name!r} to export",
            where="edgeplan export",
            next_step=f"edgeplan export --list shows all{'; near: ' + ', '.join(near) if near else ''}",
        )
    path = output or Path(f"{name}.onnx")
    if path.is_dir():
        next_step = f"name a file: -o {path / (name + '.onnx')}"
        raise StoreError("cannot write: this is a folder", where=str(path), next_step=next_step)
    known[name]().save(path)
    say(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
