"""What commands ask of models as exporters write them, and the command that prepares one: `edgeplan prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeplan.errors import ModelError
from edgeplan.terminal import escaped, say
from edgeplan.writable import cannot_write

if TYPE_CHECKING:
    from edgeplan.graph.onnx.prepare import Preparation

ShapeOption = Annotated[
    list[str] | None, typer.Option("--shape", help="Shape of an input with open axes: input=1,3,224,224. Repeatable.")
]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Value of an input that steers the graph: sr=16000. Repeatable.")
]
BatchOption = Annotated[int | None, typer.Option(min=1, help="Size of the open batch axis. Default: 1.")]


def preparation(shapes: list[str] | None, values: list[str] | None, batch: int | None) -> Preparation:
    """What the options ask for."""
    from edgeplan.graph.onnx.prepare import Preparation  # noqa: PLC0415  `edgeplan --help` should not wait for onnx

    return Preparation.parsed(shapes or (), values or (), batch)


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(prepare)


def prepare(
    model: Annotated[Path, typer.Argument(help="ONNX file as it was exported.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="ONNX file to write.")],
    shape: ShapeOption = None,
    values: SetOption = None,
    batch: BatchOption = None,
    check: Annotated[bool, typer.Option(help="Compare outputs with the original's on ONNX Runtime.")] = False,
) -> None:
    """Write a model of static shape that computes the same: open axes, steering inputs, half precision, shape arithmetic."""
    from edgeplan.graph.onnx.compare import largest_difference  # noqa: PLC0415  see `preparation`
    from edgeplan.graph.onnx.prepare import prepare_file  # noqa: PLC0415
    from edgeplan.graph.onnx.read import load_onnx  # noqa: PLC0415

    if output.exists() and output.resolve() == model.resolve():
        raise ModelError("a model is not written over itself", where=str(output), next_step="name another file with -o")
    wanted = preparation(shape, values, batch)
    try:
        made = prepare_file(model, wanted, output)
    except OSError as error:
        raise cannot_write(error, output, instead="name another file with -o") from error
    if made == model:
        say(f"{escaped(str(model))} is static as it is: nothing was written")
    else:
        say(f"{escaped(str(output))}: {output.stat().st_size / 1e6:.1f} MB")
    if check and made != model:
        say(f"largest difference from the original: {largest_difference(model, made, wanted):.1e} of the largest magnitude")
    graph = load_onnx(made)
    say(f"{len(graph.operators)} operators, inputs " + ", ".join(f"{escaped(n)} {list(graph.shape(n))}" for n in graph.inputs))
