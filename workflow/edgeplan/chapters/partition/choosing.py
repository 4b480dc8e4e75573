"""Where a single layer is split: what each way to choose would do (LiPG, section 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgeplan.chapters.partition.layers import LayerShape, splits
from edgeplan.chapters.partition.learning.features import Floats
from edgeplan.chapters.partition.learning.predictors import OURS, PairPredictors

#: More splits than these are narrowed down in two passes.
_FIRST_PASS = 24


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions of a layer give its time whole and split.

    Attributes:
        whole_us: on each lane alone.
        channels: of lane 0, for each split that was looked at.
        parts_us: time of each on both lanes, beside each other (splits, 2).
    """

    whole_us: tuple[float, float]
    channels: tuple[int, ...]
    parts_us: Floats

    @property
    def spans_us(self) -> Floats:
        """Return the time of the slower part of each split."""
        return np.asarray(self.parts_us.max(axis=1, initial=0.0))


def predicted(predictors: PairPredictors, layer: LayerShape, step: int, variant: str = OURS) -> Predicted:
    """Predict all splits in steps of channels; of many, a coarse pass and then those around the best two of it."""
    every = splits(layer.outputs, step)
    stride = -(-len(every) // _FIRST_PASS) if every else 1
    chosen = every[stride - 1 :: stride] if stride > 1 else every
    first, second = _times(predictors, layer, chosen, variant)
    if stride > 1:
        best = np.argsort(np.maximum(first[1:], second[1:]))[:2]
        near = {at for k in best for at in every if abs(at - chosen[k]) < stride * step} - {*chosen}
        more = tuple(sorted(near))
        further = _times(predictors, layer, more, variant)
        order = np.argsort([*chosen, *more])
        first = np.concatenate([first[:1], np.concatenate([first[1:], further[0][1:]])[order]])
        second = np.concatenate([second[:1], np.concatenate([second[1:], further[1][1:]])[order]])
        chosen = tuple(sorted((*chosen, *more)))
    parts = np.column_stack([first[1:], second[1:]]) * predictors.card.beside.get(layer.kind, 1.0)
    return Predicted((float(first[0]), float(second[0])), chosen, parts)


def split_span_us(predictors: PairPredictors, layer: LayerShape, channels: int) -> float:
    """Predict the time of the slower part of one split, without its handshake."""
    parts = [times[1] for times in _times(predictors, layer, (channels,), OURS)]
    return float(max(parts) * predictors.card.beside.get(layer.kind, 1.0))


def _times(predictors: PairPredictors, layer: LayerShape, channels: Sequence[int], variant: str) -> tuple[Floats, Floats]:
    """Return the times of the whole layer, then of each split, on both lanes."""
    first = predictors.us(0, [layer.part(c) for c in (layer.outputs, *channels)])
    second = predictors.us(1, [layer.part(layer.outputs - c) for c in (0, *channels)], variant)
    return first, second


def choose(found: Predicted, outputs: int, handshake_us: float, margin: float) -> int:
    """Channels of lane 0: 0 and all of them are a single processor.

    Args:
        found: what predictors say.
        outputs: channels of the layer.
        handshake_us: that a split costs.
        margin: a split is taken only where it gains more than this share of the better single processor's time.
    """
    whole = min(found.whole_us)
    single = outputs if found.whole_us[0] == whole else 0
    if not found.channels:
        return single
    spans = found.spans_us + handshake_us
    best = int(np.argmin(spans))
    return found.channels[best] if spans[best] < whole * (1 - margin) else single


def at_share(outputs: int, share: float, step: int) -> int:
    """Channels of lane 0 nearest to a share of a layer, in whole steps and with something for both where that can be."""
    every = splits(outputs, step)
    return min(every, key=lambda c: abs(c - share * outputs)) if every else outputs


def fixed_share(predictors: PairPredictors, layers: Sequence[LayerShape], step: int, handshake_us: float) -> float:
    """The one share of lane 0 that is best for training layers: least mean of span over the better single processor."""
    shares = np.linspace(0.05, 0.95, 19)
    split = [layer for layer in layers if splits(layer.outputs, step)]
    if not split:
        return 0.5
    whole = np.minimum(*(predictors.us(lane, split) for lane in (0, 1)))
    means = []
    for share in shares:
        channels = [at_share(layer.outputs, float(share), step) for layer in split]
        first = predictors.us(0, [layer.part(c) for layer, c in zip(split, channels, strict=True)])
        second = predictors.us(1, [layer.part(layer.outputs - c) for layer, c in zip(split, channels, strict=True)])
        spans = np.maximum(first, second) * [predictors.card.beside.get(layer.kind, 1.0) for layer in split] + handshake_us
        means.append(float(np.mean(spans / whole)))
    return float(shares[int(np.argmin(means))])
