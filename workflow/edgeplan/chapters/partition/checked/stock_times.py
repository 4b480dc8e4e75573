"""Stock engines on all cores of a pair, each in a process of its own: what a plan would have to beat there."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from edgeplan.errors import EdgeplanError
from edgeplan.measurement.process import stock
from edgeplan.support.scratch import ScratchFolder

_RUNS = 12
_FIRST = 2  # inferences that find nothing in the caches, and threads asleep


def stock_times(model: Path, cores: tuple[int, ...], settings: Sequence[str]) -> dict[str, float]:
    """Median times of inferences in ms, float32, by setting; what is not installed or cannot run the model is left out."""
    found: dict[str, float] = {}
    inputs = stock.inputs_of(model)
    with ScratchFolder("stock") as scratch:
        for setting in settings:
            folder = Path(scratch) / setting
            folder.mkdir()
            try:
                artefact = stock.prepared(setting, model, inputs, folder, len(cores))
                ran = stock.run_stock(setting, artefact, inputs, cores, _RUNS + _FIRST)
            except EdgeplanError:
                continue
            found[setting] = statistics.median(ran.run_ms[_FIRST:])
    return found
