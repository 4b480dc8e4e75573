"""Layers split in every way: a grid search, and what was chosen run again in new sessions (LiPG, sections 5.3 and 5.5)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from edgeplan.chapters.partition import layers as drawing
from edgeplan.chapters.partition.costs import at_share, choose, predicted, split_span_us
from edgeplan.chapters.partition.layers import KINDS, LayerShape
from edgeplan.chapters.partition.learning.predictors import OURS, PLAIN, Floats, PairPredictors, refused
from edgeplan.chapters.partition.learning.training import layers_of
from edgeplan.chapters.partition.measuring.opened import Opened, wide
from edgeplan.chapters.partition.measuring.rows import NotThereError, PartitionRows, join_ways, split_ways
from edgeplan.chapters.partition.measuring.samples import ChainPlace, ChainTimes, timed
from edgeplan.chapters.partition.settings import ALL_CORES, SIDES, PartitionSettings
from edgeplan.runtime.partitioned.session import Synchronisation

#: Ways to run a layer, as tables name them; on one lane alone they are `SIDES`.
SEARCH, WITHOUT, EVENTS = "search", "without dispatch features", "waiting for events"
_MIB = 1 << 20
_PAIR_WAYS = "pair"
#: What splits take beside each other is learnt from layers of at least so many FLOPs, and of so many chains.
_WORTH_SPLITTING, _BESIDE_CHAINS = 4e6, 3


@dataclass(frozen=True, slots=True)
class ChosenSplits:
    """Choices say where each way splits a layer."""

    layer: LayerShape
    channels: Mapping[str, int]

    @property
    def places(self) -> Mapping[int, list[str]]:
        """Return the different splits, each with the ways that choose it."""
        found: dict[int, list[str]] = {channels: [] for channels in sorted(set(self.channels.values()))}
        for way, channels in self.channels.items():
            found[channels].append(way)
        return found


@dataclass(frozen=True)
class SplitMeasuring:
    """This measures layers that are split."""

    rows: PartitionRows
    pair: Opened | None
    predictors: PairPredictors
    settings: PartitionSettings
    folder: Path
    handshake_us: float

    def layers(self, seed: int) -> pd.DataFrame:
        """Return all rows of layers, with the columns of `PartitionEvidence.layers`."""
        s = self.settings
        parts: list[pd.DataFrame] = []
        for kind in KINDS:
            drawn = drawing.layers(kind, s.layers, s.layer_flops, s.conv_divisors, seed)
            chosen = list[ChosenSplits]()
            for layer in drawn:
                if not refused(layer, self.predictors.dispatcher):
                    with suppress(NotThereError):
                        chosen.append(self._chosen(layer))
            each = max(1, s.chain // 7)  # about as many places of each layer
            for at in range(0, len(chosen), each):
                parts += self._fresh(chosen[at : at + each])
        self.rows.merge("grids")
        self.rows.merge("fresh")
        return pd.concat(parts, ignore_index=True)

    def beside(self, training: pd.DataFrame) -> tuple[dict[str, float], dict[str, float]]:
        """Measure splits of training samples, each at its predicted ratio and whole on both processors in one chain.

        By kind: by how much a split takes longer than its slower part is predicted to, the layer whole taken for the measure,
        median; and by how much half of the predicted gains are off at most (`Card.gain_errors`). Predictions are held against
        the splits that were measured, which others may have been predicted to be the best of.
        """
        factors, errors, most = {}, {}, _BESIDE_CHAINS * self.settings.chain
        for kind in KINDS:
            some = [layer for layer in layers_of(training[training["kind"] == kind]) if layer.flops >= _WORTH_SPLITTING]
            every = [(layer, predicted(self.predictors, layer, self.settings.grid_step)) for layer in some[:most]]
            every = [(layer, found) for layer, found in every if found.channels]
            if not every:
                continue
            best = [found.channels[int(np.argmin(found.spans_us))] for _, found in every]
            places = [
                ChainPlace(layer, channels)
                for (layer, _), split in zip(every, best, strict=True)
                for channels in (split, layer.outputs, 0)
            ]
            rows = self.rows.found(
                "beside",
                [[asdict(layer) for layer, _ in every], self.settings.grid_step, self.settings.sample_runs],
                partial(self._timed, places, self.settings.sample_runs),
                partial(_of_splits, best),
            )
            measured = _beside_splits(rows)
            spans = [split_span_us(self.predictors, layer, split) for (layer, _), split in zip(every, measured, strict=True)]
            wholes = [min(found.whole_us) for _, found in every]
            taken, *alone = rows["us"].to_numpy(np.float64).reshape(-1, 3).T
            factors[kind], errors[kind] = beside_and_error(
                np.array(spans), np.array(wholes), taken, np.minimum(*alone), self.handshake_us
            )
        self.rows.merge("beside")
        return factors, errors

    # Choosing

    def _chosen(self, layer: LayerShape) -> ChosenSplits:
        step, card = self.settings.grid_step, self.predictors.card
        margin = self.predictors.margin(layer.kind)
        ours = choose(predicted(self.predictors, layer, step), layer.outputs, self.handshake_us, margin)
        plain = choose(predicted(self.predictors, layer, step, PLAIN), layer.outputs, self.handshake_us, margin)
        channels = {
            SIDES[0]: layer.outputs,
            SIDES[1]: 0,
            SEARCH: self._searched(layer),
            OURS: ours,
            WITHOUT: plain,
            "fixed": at_share(layer.outputs, card.fixed_share[layer.kind], step),
            "equal": at_share(layer.outputs, 0.5, step),
        }
        return ChosenSplits(layer, channels)

    def _searched(self, layer: LayerShape) -> int:
        """The fastest of all splits and both processors: all of them a few times, then the best of them again."""
        s = self.settings
        key = [asdict(layer), s.grid_step, s.grid_points, s.grid_runs, s.grid_again_runs, s.grid_best]
        found = self.rows.found("grids", key, lambda: self._grid(layer))
        again = found[found["again"]]
        return _fastest(again, 1)[0]

    def _grid(self, layer: LayerShape) -> pd.DataFrame:
        """Time of very many splits every nth first, then all that lie between neighbours of the best two."""
        s = self.settings
        every = drawing.splits(layer.outputs, s.grid_step)
        stride = -(-len(every) // s.grid_points) if every else 1
        coarse = self._timed([ChainPlace(layer, c) for c in (0, *every[stride - 1 :: stride], layer.outputs)], s.grid_runs)
        if stride > 1:
            near = {c for best in _fastest(coarse, 2) for c in every if abs(c - best) < stride * s.grid_step}
            if more := sorted(near - {*coarse["channels"]}):
                finer = self._timed([ChainPlace(layer, c) for c in more], s.grid_runs)
                coarse = pd.concat([coarse, finer], ignore_index=True)
        best = sorted({*_fastest(coarse, s.grid_best), 0, layer.outputs})
        again = self._timed([ChainPlace(layer, c) for c in best], s.grid_again_runs)
        return pd.concat([coarse.assign(again=False), again.assign(again=True)], ignore_index=True)

    # Running

    def _timed(self, places: Sequence[ChainPlace], runs: int) -> pd.DataFrame:
        """Rows of places, in chains that are short enough for memory."""
        assert self.pair is not None  # noqa: S101  or nothing may be measured
        most = max(2, int(self.settings.chain_mib * _MIB // (max(p.layer.weight_bytes for p in places) or 1)))
        chains = [places[at : at + most] for at in range(0, len(places), most)]
        parts = [part_rows(chain, timed(self.pair, chain, self.folder, runs)) for chain in chains]
        return pd.concat(parts, ignore_index=True)

    def _fresh(self, some: Sequence[ChosenSplits]) -> Iterator[pd.DataFrame]:
        """Run what was chosen in new sessions: all different splits in a chain, then by events, on all cores.

        Rows tell the splits that were measured; the column `now` tells what the present predictors choose.
        """
        key = [[asdict(c.layer) for c in some], self.settings.grid_step, self.settings.fresh_runs]
        chosen_now = [dict(one.channels) for one in some]
        try:
            found = self.rows.found(
                "fresh", key, lambda: self._fresh_rows(some), lambda stored: measured_splits(stored, len(some)) == chosen_now
            )
        except NotThereError:
            return
        splits = measured_splits(found, len(some))
        if not all(OURS in one for one in splits):  # rows of before they said so
            return
        for k, (chosen, channels) in enumerate(zip(some, splits, strict=True)):
            own, outputs = found[found["layer"] == k], chosen.layer.outputs
            pair = own[own["way"] == _PAIR_WAYS].set_index("channels")["us"]
            us = {way: float(pair[channels[way]]) for way in chosen.channels if way in channels}
            now = dict(chosen.channels)
            for way in (EVENTS, ALL_CORES):
                others = own[own["way"] == way]
                channels[way], now[way] = (channels[OURS], now[OURS]) if way == EVENTS else (outputs, outputs)
                us[way] = float(others["us"].iloc[0]) if len(others) else us[OURS]
            yield pd.DataFrame(
                {
                    "kind": chosen.layer.kind,
                    "name": chosen.layer.name,
                    "way": list(us),
                    "channels": [channels[way] for way in us],
                    "now": [now[way] for way in us],
                    "outputs": outputs,
                    "us": list(us.values()),
                }
            )

    def _fresh_rows(self, some: Sequence[ChosenSplits]) -> pd.DataFrame:
        assert self.pair is not None  # noqa: S101  or nothing may be measured
        pair, runs = self.pair, self.settings.fresh_runs
        of = [(k, c, join_ways(ways)) for k, one in enumerate(some) for c, ways in one.places.items()]
        found = self._timed([ChainPlace(some[k].layer, c) for k, c, _ in of], runs)
        parts = [found.assign(layer=[k for k, *_ in of], way=_PAIR_WAYS, chosen_by=[ways for *_, ways in of])]
        split = [k for k, one in enumerate(some) if 0 < one.channels[OURS] < one.layer.outputs]
        if split:
            places = [ChainPlace(some[k].layer, some[k].channels[OURS]) for k in split]
            waited = timed(pair, places, self.folder, runs, synchronisation=Synchronisation.events)
            parts.append(part_rows(places, waited).assign(layer=split, way=EVENTS))
        places = [ChainPlace(one.layer, one.layer.outputs) for one in some]
        # the host's library on this thread; the other processor has nothing to do meanwhile
        with wide(pair), type(pair.host).open({}, pair.pair.cores, pair.block) as cpu:
            beside = timed(pair, places, self.folder, runs, cpu=cpu, synchronisation=Synchronisation.events)
        parts.append(part_rows(places, beside).assign(layer=range(len(some)), way=ALL_CORES))
        return pd.concat(parts, ignore_index=True).fillna({"chosen_by": ""})


def _beside_splits(rows: pd.DataFrame) -> list[int]:
    """Return the channels of each split that rows of the kind "beside" are of."""
    return [int(channels) for channels in rows["channels"].to_numpy()[::3]]


def _of_splits(splits: list[int], rows: pd.DataFrame) -> bool:
    return _beside_splits(rows) == splits


def measured_splits(rows: pd.DataFrame, layers: int) -> list[dict[str, int]]:
    """Return for each layer its channels on the CPU by way, as stored rows hold them."""
    found: list[dict[str, int]] = [{} for _ in range(layers)]
    for layer, channels, ways in rows[["layer", "channels", "chosen_by"]].itertuples(index=False, name=None):
        found[int(layer)] |= dict.fromkeys(split_ways(ways), int(channels))
    return found


def beside_and_error(
    span_us: Floats, whole_us: Floats, split_us: Floats, measured_us: Floats, handshake_us: float
) -> tuple[float, float]:
    """Return what splits beside each other take longer, at least 1, and the median error of their predicted gains.

    Spans and wholes are predicted, the better processor's; splits and wholes are measured in one chain.
    """
    factor = max(1.0, float(np.median((split_us - handshake_us) / span_us * whole_us / measured_us)))
    expected = 1 - (span_us * factor + handshake_us) / whole_us
    return factor, float(np.median(np.abs(expected - (1 - split_us / measured_us))))


def _fastest(rows: pd.DataFrame, count: int) -> list[int]:
    """Channels of the fastest splits."""
    order = np.argsort(rows["us"].to_numpy())[:count]
    return [int(c) for c in rows["channels"].to_numpy()[order]]


def part_rows(places: Sequence[ChainPlace], found: ChainTimes) -> pd.DataFrame:
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
