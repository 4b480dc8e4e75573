"""Prepares models as exporters write them, by options of commands and by `edgeplan prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edgeplan import api
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.terminal import escaped, say
from edgeplan.workloads.registry import named_models

ModelArgument = Annotated[Path, typer.Argument(help="ONNX file.")]
DeviceOption = Annotated[str, typer.Option("--device", "-d", help="Name of a device, or path of a device file.")]
PlanOption = Annotated[Path, typer.Option("--output", "-o", help="Folder to write the plan to.")]
ShapeOption = Annotated[
    list[str] | None, typer.Option("--shape", help="Shape of an input with open axes: input=1,3,224,224. Repeatable.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Value of an input that steers the graph: sr=16000. Repeatable.")
]
BatchOption = Annotated[int | None, typer.Option(min=1, help="Size of the open batch axis. Default: 1.")]


def prepare(
    model: Annotated[Path, typer.Argument(help="ONNX file as it was exported.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="ONNX file to write.")],
    shape: ShapeOption = None,
    values: SetOption = None,
    batch: BatchOption = None,
    check: Annotated[bool, typer.Option(help="Compare outputs with the original's on ONNX Runtime.")] = False,
) -> None:
    """Write a model of static shape that computes the same: steering inputs, half precision, shape arithmetic."""
    made = api.prepare(model, output, preparation=Preparation.parsed(shape, values, batch), check=check)
    if made.path == model:
        say(f"{escaped(str(model))} is static as it is: nothing was written")
    else:
        say(f"{escaped(str(output))}: {output.stat().st_size / 1e6:.1f} MB")
    if made.difference is not None:
        say(f"largest difference from the original: {made.difference:.1e} of the largest magnitude")
    say(f"{made.operators} operators, inputs " + ", ".join(f"{escaped(n)} {list(sizes)}" for n, sizes in made.inputs.items()))


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
