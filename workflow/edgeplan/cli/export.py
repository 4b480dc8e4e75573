"""The command that writes a model of the zoo: something to predict, plan and run where no model is at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeplan.errors import ModelError
from edgeplan.terminal import say
from edgeplan.writable import cannot_write

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from edgeplan.graph.ir import Graph


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(export)


def export(
    name: Annotated[str, typer.Argument(help="Model of the zoo; without one they are listed.")] = "",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="ONNX file to write; NAME.onnx unless given.")] = None,
) -> None:
    """Write a model of the zoo, with seeded weights, as ONNX."""
    from edgeplan.graph.onnx.write import save_onnx  # noqa: PLC0415  the command line should not wait for onnx

    known = _models()
    if not name:
        say("\n".join(sorted(known)))
        return
    if name not in known:
        raise ModelError(
            f"the zoo has no model {name!r}", where="edgeplan export", next_step="edgeplan export lists its models"
        )
    path = output or Path(f"{name}.onnx")
    try:
        save_onnx(known[name](), path)
    except OSError as error:
        raise cannot_write(error, path, instead="name another file with --output") from error
    say(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


def _models() -> Mapping[str, Callable[[], Graph]]:
    """All models of the zoo by name: base models behind the prior, and those of cold starts, which differ where names meet."""
    from edgeplan.zoo import prior_models  # noqa: PLC0415
    from edgeplan.zoo.cold_start_models import COLD_START_MODELS  # noqa: PLC0415

    prior = prior_models()
    return {**prior, **{f"{name}-cold-start" if name in prior else name: build for name, build in COLD_START_MODELS.items()}}
