"""Runs `edgeplan stage`, which runs one stage of the pipeline, for Snakemake, DVC and people alike."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import edgeplan
from edgeplan.chapters.running import run_stage
from edgeplan.support import lifeline, termination
from edgeplan.workspace import VARIABLE


def stage(
    name: Annotated[str, typer.Argument(help="Name of the stage, as in dvc.yaml.")],
    device: Annotated[str, typer.Option("--device", "-d", help="Name of the device that it runs for.")] = "",
    pair: Annotated[str, typer.Option("--pair", help="Name of the pair of processors that it runs for.")] = "",
) -> None:
    """Run a stage of the pipeline in this workspace, with the values of params.yaml."""
    _take_code_of_workspace()
    os.environ.pop(VARIABLE, None)  # what is built here is of this workspace
    lifeline.end_with_holder(asked=True)
    termination.end_with_starter()
    run_stage(name, {key: value for key, value in (("device", device), ("pair", pair)) if value})


def _take_code_of_workspace() -> None:
    """Go on in the package of this checkout: clones and experiments share an environment, and have code of their own."""
    package = Path("workflow/edgeplan").resolve()
    if (package / "__init__.py").is_file() and package != Path(edgeplan.__file__).resolve().parent:
        path = [str(package.parent), *filter(None, [os.environ.get("PYTHONPATH", "")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(path)
        os.execv(sys.executable, [sys.executable, "-m", "edgeplan", *sys.argv[1:]])  # noqa: S606  no shell
