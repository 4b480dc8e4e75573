"""Layers split in every way: a grid search, and what was chosen run again in new sessions (LiPG, sections 5.3 and 5.5)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from edgeplan.chapters.partition import sampling
from edgeplan.chapters.partition.choosing import Predicted, at_share, choose, predicted
from edgeplan.chapters.partition.layers import KINDS, Layer
from edgeplan.chapters.partition.learning.predictors import CPU, GPU, OURS, PLAIN, PairPredictors, refused
from edgeplan.chapters.partition.learning.training import layers_of
from edgeplan.chapters.partition.measuring.chains import ChainTimes, Place, timed
from edgeplan.chapters.partition.measuring.opened import Opened
from edgeplan.chapters.partition.measuring.rows import NotThereError, Rows
from edgeplan.chapters.partition.settings import PartitionSettings
from edgeplan.processors.onednn import OnednnProcessor
from edgeplan.runtime.partitioned.session import Synchronisation

#: Ways to run a layer, as tables name them.
WHOLE_CPU, WHOLE_GPU, SEARCH, WITHOUT, EVENTS, ALL_CORES = (
    *("cpu", "gpu", "search", "without dispatch features", "waiting for events", "cpu, all cores"),
)
_MIB = 1 << 20
_PAIR_WAYS = "pair"
#: What splits take beside each other is learnt from layers of at least so many FLOPs, and of so many chains.
_WORTH_SPLITTING, _BESIDE_CHAINS = 4e6, 3


@dataclass(frozen=True, slots=True)
class Chosen:
    """What each way makes of a layer.

    Attributes:
        layer: the layer.
        channels: of the CPU, by way.
        predicted_us: of our choice.
        ratio_ms: taken to predict all splits and to choose.
    """

    layer: Layer
    channels: Mapping[str, int]
    predicted_us: float
    ratio_ms: float


@dataclass(frozen=True)
class SplitMeasuring:
    """Measures layers.

    Attributes:
        rows: what is stored.
        pair: None where nothing may be measured.
        predictors: of the pair.
        settings: what is measured.
        folder: with the pool of weights.
        handshake_us: of a split, as the pair waits.
    """

    rows: Rows
    pair: Opened | None
    predictors: PairPredictors
    settings: PartitionSettings
    folder: Path
    handshake_us: float

    def layers(self, seed: int) -> pd.DataFrame:
        """All rows of layers: kind, name, way, channels, outputs, us, predicted_us, ratio_ms (`PartitionEvidence.layers`)."""
        s = self.settings
        parts: list[pd.DataFrame] = []
        for kind in KINDS:
            drawn = sampling.layers(kind, s.layers, s.layer_flops, s.conv_divisors, seed)
            chosen = [*self._all_chosen(drawn)]
            each = max(1, s.chain // 7)  # about as many places of each layer
            for at in range(0, len(chosen), each):
                parts += self._fresh(chosen[at : at + each])
        self.rows.merge("grids")
        self.rows.merge("fresh")
        return pd.concat(parts, ignore_index=True)

    def beside(self, training: pd.DataFrame) -> dict[str, float]:
        """By how much splits of training samples take longer than the slower part is predicted to, median by kind.

        Args:
            training: rows of samples that predictors were trained on.
        """
        found = {}
        for kind in KINDS:
            some = [layer for layer in layers_of(training[training["kind"] == kind]) if layer.flops >= _WORTH_SPLITTING]
            places, predicted_us = [], []
            for layer in some[: _BESIDE_CHAINS * self.settings.chain]:
                every = predicted(self.predictors, layer, self.settings.grid_step)
                if every.channels:
                    best = int(np.argmin(every.spans_us))
                    places.append(Place(layer, every.channels[best]))
                    predicted_us.append(float(every.spans_us[best]))
            key = [[[asdict(p.layer), p.channels] for p in places], self.settings.sample_runs]
            rows = self.rows.found("beside", key, partial(self._timed, places, self.settings.sample_runs)) if places else None
            if rows is not None:
                ratios = (rows["us"].to_numpy(np.float64) - self.handshake_us) / np.array(predicted_us)
                found[kind] = max(1.0, float(np.median(ratios)))
        self.rows.merge("beside")
        return found

    # Choosing

    def _all_chosen(self, drawn: Sequence[Layer]) -> Iterator[Chosen]:
        for layer in drawn:
            if not refused(layer, self.predictors.numbers):
                with suppress(NotThereError):
                    yield self._chosen(layer)

    def _chosen(self, layer: Layer) -> Chosen:
        step, card = self.settings.grid_step, self.predictors.card
        margins = {variant: self._margin(layer, variant) for variant in (OURS, PLAIN)}
        began = time.perf_counter()
        found = predicted(self.predictors, layer, step)
        ours = choose(found, layer.outputs, self.handshake_us, margins[OURS])
        ratio_ms = (time.perf_counter() - began) * 1e3
        plain = choose(predicted(self.predictors, layer, step, PLAIN), layer.outputs, self.handshake_us, margins[PLAIN])
        channels = {
            WHOLE_CPU: layer.outputs,
            WHOLE_GPU: 0,
            SEARCH: self._searched(layer),
            OURS: ours,
            WITHOUT: plain,
            "fixed": at_share(layer.outputs, card.fixed_share[layer.kind], step),
            "equal": at_share(layer.outputs, 0.5, step),
        }
        return Chosen(layer, channels, _span(found, ours, layer.outputs, self.handshake_us), ratio_ms)

    def _margin(self, layer: Layer, variant: str) -> float:
        return max(self.predictors.error(CPU, layer.kind), self.predictors.error(GPU, layer.kind, variant))

    def _searched(self, layer: Layer) -> int:
        """The fastest of all splits and both processors: all of them a few times, then the best of them again."""
        s = self.settings
        key = [asdict(layer), s.grid_step, s.grid_points, s.grid_runs, s.grid_again_runs, s.grid_best]
        found = self.rows.found("grids", key, lambda: self._grid(layer))
        again = found[found["again"]]
        return _fastest(again, 1)[0]

    def _grid(self, layer: Layer) -> pd.DataFrame:
        """Of very many splits every nth first, then all that lie between neighbours of the best two."""
        s = self.settings
        every = sampling.splits(layer.outputs, s.grid_step)
        stride = -(-len(every) // s.grid_points) if every else 1
        coarse = self._timed([Place(layer, c) for c in (0, *every[stride - 1 :: stride], layer.outputs)], s.grid_runs)
        if stride > 1:
            near = {c for best in _fastest(coarse, 2) for c in every if abs(c - best) < stride * s.grid_step}
            if more := sorted(near - {*coarse["channels"]}):
                finer = self._timed([Place(layer, c) for c in more], s.grid_runs)
                coarse = pd.concat([coarse, finer], ignore_index=True)
        best = sorted({*_fastest(coarse, s.grid_best), 0, layer.outputs})
        again = self._timed([Place(layer, c) for c in best], s.grid_again_runs)
        return pd.concat([coarse.assign(again=False), again.assign(again=True)], ignore_index=True)

    # Running

    def _timed(self, places: Sequence[Place], runs: int) -> pd.DataFrame:
        """Rows of places, in chains that are short enough for memory."""
        assert self.pair is not None  # noqa: S101  or nothing may be measured
        parts, at = [], 0
        most = max(2, int(self.settings.chain_mib * _MIB // (max(p.layer.weight_bytes for p in places) or 1)))
        while at < len(places):
            chain = places[at : at + most]
            parts.append(part_rows(chain, timed(self.pair, chain, self.folder, runs)))
            at += len(chain)
        return pd.concat(parts, ignore_index=True)

    def _fresh(self, some: Sequence[Chosen]) -> Iterator[pd.DataFrame]:
        """What was chosen, in new sessions: all different splits of these layers in a chain, then by events, on all cores."""
        key = [[[asdict(c.layer), sorted(set(c.channels.values())), c.channels[OURS]] for c in some], self.settings.fresh_runs]
        try:
            found = self.rows.found("fresh", key, lambda: self._fresh_rows(some))
        except NotThereError:
            return
        for k, chosen in enumerate(some):
            own = found[found["layer"] == k]
            pair = own[own["way"] == _PAIR_WAYS].set_index("channels")["us"]
            us = {way: float(pair[channels]) for way, channels in chosen.channels.items()}
            channels = dict(chosen.channels)
            for way in (EVENTS, ALL_CORES):
                others = own[own["way"] == way]
                channels[way] = chosen.channels[OURS] if way == EVENTS else chosen.layer.outputs
                us[way] = float(others["us"].iloc[0]) if len(others) else us[OURS]
            yield pd.DataFrame(
                {
                    "kind": chosen.layer.kind,
                    "name": chosen.layer.name,
                    "way": list(us),
                    "channels": [channels[way] for way in us],
                    "outputs": chosen.layer.outputs,
                    "us": list(us.values()),
                    "predicted_us": [chosen.predicted_us if way == OURS else np.nan for way in us],
                    "ratio_ms": [chosen.ratio_ms if way == OURS else np.nan for way in us],
                }
            )

    def _fresh_rows(self, some: Sequence[Chosen]) -> pd.DataFrame:
        assert self.pair is not None  # noqa: S101  or nothing may be measured
        pair, runs = self.pair, self.settings.fresh_runs
        of = [(k, c) for k, one in enumerate(some) for c in sorted(set(one.channels.values()))]
        found = self._timed([Place(some[k].layer, c) for k, c in of], runs)
        parts = [found.assign(layer=[k for k, _ in of], way=_PAIR_WAYS)]
        split = [k for k, one in enumerate(some) if 0 < one.channels[OURS] < one.layer.outputs]
        if split:
            places = [Place(some[k].layer, some[k].channels[OURS]) for k in split]
            waited = timed(pair, places, self.folder, runs, synchronisation=Synchronisation.events)
            parts.append(part_rows(places, waited).assign(layer=split, way=EVENTS))
        places = [Place(one.layer, one.layer.outputs) for one in some]
        with on_all_cores(pair) as cpu:
            beside = timed(pair, places, self.folder, runs, cpu=cpu, synchronisation=Synchronisation.events)
        parts.append(part_rows(places, beside).assign(layer=range(len(some)), way=ALL_CORES))
        return pd.concat(parts, ignore_index=True)


def _fastest(rows: pd.DataFrame, count: int) -> list[int]:
    """Channels of the fastest splits."""
    order = np.argsort(rows["us"].to_numpy())[:count]
    return [int(c) for c in rows["channels"].to_numpy()[order]]


def _span(found: Predicted, channels: int, outputs: int, handshake_us: float) -> float:
    """What was predicted of a choice."""
    if channels in (0, outputs):
        return found.cpu_us if channels else found.gpu_us
    return float(found.spans_us[found.channels.index(channels)]) + handshake_us


def part_rows(places: Sequence[Place], found: ChainTimes) -> pd.DataFrame:
    """A row for each place: the median of its runs, and what the middle half of them lie within."""
    low, middle, high = np.quantile(found.us, [0.25, 0.5, 0.75], axis=0)
    return pd.DataFrame(
        {
            "channels": [place.channels for place in places],
            "us": middle,
            "low_us": low,
            "high_us": high,
            "cpu_implementation": [names[0] for names in found.implementations],
            "gpu_implementation": [names[1] for names in found.implementations],
        }
    )


@contextmanager
def on_all_cores(pair: Opened) -> Iterator[OnednnProcessor]:
    """OneDNN on all cores of the pair, on this thread; the pair's GPU has nothing to do meanwhile."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, pair.pair.cores)
    try:
        with OnednnProcessor(pair.pair.cores) as cpu:
            yield cpu
    finally:
        os.sched_setaffinity(0, own)
        pair.cpu.ready()
