"""Autotuning is compared with the white-box dispatcher: every kernel it could have chosen is timed in turn with its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from edgeplan.chapters.partition import sampling
from edgeplan.chapters.partition.layers import KINDS, LayerShape
from edgeplan.chapters.partition.learning.predictors import refused
from edgeplan.chapters.partition.measuring.chains import ChainPlace, timed
from edgeplan.chapters.partition.measuring.opened import Opened
from edgeplan.chapters.partition.measuring.rows import PartitionRows
from edgeplan.chapters.partition.names import DISPATCHER
from edgeplan.chapters.partition.settings import PartitionSettings
from edgeplan.graph.steps import Step
from edgeplan.runtime.processor import Dispatcher, Layouts, Shapes

#: Chains of samples of each kind.
_CHAINS = 2
#: Kernels of less work take as long as it takes to begin.
_WORTH_TUNING = 4e6


def tuning(
    rows: PartitionRows, pair: Opened | None, dispatcher: Dispatcher, settings: PartitionSettings, seed: int, folder: Path
) -> pd.DataFrame:
    """Times of sampled layers by kernel: kind, name, choice, chosen_us and tested_us, of every other run each.

    The kernel that is fastest by the one half of the runs is judged by the other half.

    Args:
        rows: what is stored.
        pair: None where nothing may be measured.
        dispatcher: of lane 1.
        settings: how many layers, and how many runs.
        seed: of the samples.
        folder: with the pool of weights.
    """
    parts = []
    for kind in KINDS:
        drawn = sampling.sampled(kind, settings.samples, settings.sample_flops, seed)
        some = [layer for layer in drawn if layer.flops >= _WORTH_TUNING and not refused(layer, dispatcher)]
        for at in range(0, _CHAINS * settings.chain, settings.chain):
            chain = some[at : at + settings.chain]
            if chain:
                key = [[asdict(layer) for layer in chain], settings.sample_runs]
                found = rows.found("tuning", key, partial(_chain, pair, dispatcher, chain, settings.sample_runs, folder))
                names = [chain[place].name for place in found["place"]]
                parts.append(found.assign(kind=kind, name=names))
    rows.merge("tuning")
    return pd.concat(parts, ignore_index=True)


def _chain(pair: Opened | None, dispatcher: Dispatcher, chain: Sequence[LayerShape], runs: int, folder: Path) -> pd.DataFrame:
    assert pair is not None  # noqa: S101  or nothing may be measured
    made = [dispatcher.alternatives(layer.step("s"), layer.shapes("s"), layer.layouts("s")) for layer in chain]
    names = [[DISPATCHER, *found] for found in made]
    places = [ChainPlace(layer, 0) for layer in chain]
    found = []
    # The dispatcher's choice before and after every other one: what the machine does meanwhile meets both.
    for number in range(1, max(map(len, names))):
        for turn in (0, number):
            with _choosing(pair, dispatcher, turn):
                us = timed(pair, places, folder, runs).us
            halves = [np.median(us[start::2], axis=0) for start in (0, 1)]
            for k, own in enumerate(names):
                if turn < len(own):
                    found.append([k, own[turn], number, float(halves[0][k]), float(halves[1][k])])
    return pd.DataFrame(found, columns=["place", "choice", "turn", "chosen_us", "tested_us"])


@contextmanager
def _choosing(pair: Opened, dispatcher: Dispatcher, number: int) -> Iterator[None]:
    """The alternative of that number of every layer, from 1 on; of one that has fewer, the dispatcher's kernel."""

    def choose(step: Step, shapes: Shapes, layouts: Layouts) -> object | None:
        found = list(dispatcher.alternatives(step, shapes, layouts).values())
        return found[number - 1] if 0 < number <= len(found) else None

    pair.other.choose = choose
    try:
        yield
    finally:
        pair.other.choose = None
