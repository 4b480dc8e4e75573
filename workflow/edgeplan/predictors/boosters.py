"""Text models on many rows: LightGBM walks trees faster than numpy once its import is paid for."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Job = TypeVar("Job")

#: Rounds walked over all rows before the next ones. LightGBM takes row after row through all the trees asked for: those of
#: so many rounds stay in the fast caches; those of a whole model do not, and take about 2.5 times as long.
_ROUNDS = 50


def raw_scores(text: str, rows: Floats) -> Floats:
    """Raw scores of rows by one text model (n, outputs), on the calling thread; equal to `Forest.raw` but for rounding."""
    from lightgbm import Booster  # noqa: PLC0415  its import takes longer than a small prediction

    booster = Booster(model_str=text)
    rounds = booster.current_iteration()
    averaged = "average_output" in text.split("\nTree=", 1)[0].split("\n")
    total = np.zeros((len(rows), booster.num_model_per_iteration()))
    for first in range(0, rounds, _ROUNDS):
        count = min(_ROUNDS, rounds - first)
        part = booster.predict(rows, raw_score=True, start_iteration=first, num_iteration=count, num_threads=1)
        total += np.reshape(part, total.shape)
    # Raw scores of a random forest are sums, too; its prediction is their mean.
    return total / rounds if averaged else total


def on_all_cores(work: Callable[[Job], None], jobs: Iterable[Job]) -> None:
    """Do independent jobs on a thread a core: LightGBM and numpy let other threads run while they compute."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(work, jobs):
            pass
