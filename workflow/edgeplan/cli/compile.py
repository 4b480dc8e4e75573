"""The command `edgeplan compile` compiles ahead what the first prediction or cold start would wait for."""

from __future__ import annotations

import time

import typer

from edgeplan.terminal import say


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("compile")(compile_ahead)


def compile_ahead() -> None:
    """Compile the runtime for this processor once, in a minute or two, so that no other command has to wait for it."""
    import numpy as np  # noqa: PLC0415  the command line should not wait for it

    started = time.monotonic()
    from edgeplan.chapters.cold_start.planners import descent  # noqa: F401, PLC0415  compiles when it is imported
    from edgeplan.predictors.trees import Forest  # noqa: PLC0415
    from edgeplan.predictors.walking import Walk  # noqa: PLC0415
    from edgeplan.runtime import kernels, native  # noqa: F401, PLC0415  likewise
    from edgeplan.runtime.native import partner  # noqa: F401, PLC0415  likewise

    kernels.compile_all()
    leaf = Forest.from_arrays(
        {
            "tree_start": np.array([0, 1], np.int32),
            "outputs": np.ones(1, np.int32),
            "scale": np.ones(1),
            "roots": np.zeros(1, np.int32),
            "feature": np.array([-1], np.int16),
            "value": np.zeros(1),
            "child": np.zeros((1, 2), np.int32),
        },
        features=1,
    )
    if walk := Walk.of(leaf, 0, 1):
        walk.raw(np.zeros((1, 1)))
    say(f"compiled for this processor ({time.monotonic() - started:.0f} s)")
