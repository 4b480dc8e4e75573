"""Latency by output channels, for the paper's Figures 2, 3, 5 and 6."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.partition.layers import CONV, LayerShape
from edgeplan.chapters.partition.learning.features import shape_matrix
from edgeplan.chapters.partition.learning.plain import Predict
from edgeplan.chapters.partition.learning.predictors import PLAIN, augmented
from edgeplan.chapters.partition.measuring.chains import ChainPlace, timed
from edgeplan.chapters.partition.measuring.splits import SplitMeasuring, part_rows
from edgeplan.chapters.partition.names import SIDES

#: Figure -> its layer by output channels, and the range of these.
CURVES: Mapping[str, tuple[Callable[[int], LayerShape], int, int]] = MappingProxyType(
    {
        "figure_02": (lambda outputs: LayerShape.linear(50, 3072, outputs), 16, 1024),
        "figure_03": (lambda outputs: LayerShape.linear(50, 768, outputs), 64, 3072),
        "figure_05": (lambda outputs: LayerShape.linear(50, 768, outputs), 2048, 2560),
        "figure_06": (lambda outputs: LayerShape(CONV, 64, 64, 128, outputs, 3, 1), 16, 256),
    }
)
_UNIT = 4  # channels: curves have jumps at vectors and tiles
_GROUPS = "work_groups"


def curves(measuring: SplitMeasuring, beside: Mapping[tuple[str, str], Predict]) -> pd.DataFrame:
    """Both processors and all predictors over the channels of each figure."""
    predictors, settings = measuring.predictors, measuring.settings
    parts = []
    for figure, (make, low, high) in CURVES.items():
        points = np.unique(np.round(np.linspace(low, high, settings.curve_points) / _UNIT).astype(int) * _UNIT)
        layers = [make(int(outputs)) for outputs in points]
        key = [[asdict(layer) for layer in layers], settings.fresh_runs]
        found = measuring.rows.found("curves", key, partial(_measured, measuring, layers))
        sides = {side: found[found["way"] == side].sort_values("place") for side in SIDES}
        _, matrix = augmented(layers, predictors.dispatcher)
        columns: dict[str, Any] = {"figure": figure, "outputs": points}
        for side, own in sides.items():
            columns |= {f"{side}_{name}": own[name].to_numpy() for name in ("us", "low_us", "high_us")}
        columns |= {"implementation": sides[SIDES[1]][f"{SIDES[1]}_implementation"].to_numpy()}
        features = predictors.dispatcher.features
        groups = matrix[:, features.index(_GROUPS) - len(features)] if _GROUPS in features else np.nan
        columns |= {_GROUPS: groups}
        columns |= {"ours_us": predictors.us(1, layers), "plain_us": predictors.us(1, layers, PLAIN)}
        shapes = shape_matrix(layers)
        columns |= {f"{name}_us": predict(shapes) for (name, kind), predict in beside.items() if kind == layers[0].kind}
        parts.append(pd.DataFrame(columns))
    measuring.rows.merge("curves")
    return pd.concat(parts, ignore_index=True)


def _measured(measuring: SplitMeasuring, layers: list[LayerShape]) -> pd.DataFrame:
    assert measuring.pair is not None  # noqa: S101  or nothing may be measured
    parts = []
    each = max(1, measuring.settings.chain // 2)
    for at in range(0, len(layers), each):
        some = layers[at : at + each]
        places = [*(ChainPlace(layer, layer.outputs) for layer in some), *(ChainPlace(layer, 0) for layer in some)]
        rows = part_rows(places, timed(measuring.pair, places, measuring.folder, measuring.settings.fresh_runs))
        place = [at + k for k in range(len(some))]
        parts.append(rows.assign(place=place * 2, way=[side for side in SIDES for _ in some]))
    return pd.concat(parts, ignore_index=True)
