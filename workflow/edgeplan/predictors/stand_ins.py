"""Predicts kernels of kinds that a device has no predictor for as kernels of the nearest kind that it has one for.

Which kind is near follows from what is read, written and computed for each element, not from measurements. Compute-bound
kernels are predicted as ones of as many multiply-adds and bytes. Of bandwidth-bound kinds the near one tells layouts alone:
what they take follows from the bytes that they move (`edgeplan.predictors.bandwidth`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np

from edgeplan.graph.operators.registry import NEAR
from edgeplan.predictors.configs import ConfigTable

#: How far what is predicted so may be off, either way: of the kernels of 5 us and more among the shipped rows of
#: cpu-onnxruntime (2,972, 12 kinds) 95 % lie within it if their own kind's predictor is set aside, half within 1.36.
FACTOR = 3.0

_AXES = ("channels", "height", "width")
_ROW = ("in_channels", "in_height", "in_width", "out_channels", "out_height", "out_width")


@dataclass(frozen=True)
class StandIns:
    """Holds kernel configurations in the form in which they are predicted.

    Attributes:
        table: kinds without a predictor replaced (n configurations).
        kinds: the kinds that were replaced, and by what.
    """

    table: ConfigTable
    kinds: Mapping[str, str]


def stand_ins(table: ConfigTable, known: Collection[str]) -> StandIns:
    """Replace the kinds of configurations that have no predictor, where a near kind has one.

    Args:
        table: n configurations.
        known: kinds with a predictor.
    """
    words = table.words["kind"]
    near = {kind: next((k for k in NEAR.get(kind, ()) if k in known), "") for kind in words if kind not in known}
    kinds = {kind: found for kind, found in near.items() if found}
    numbers = dict(table.numbers)
    turned = table.mapped("kind", {"deconv": 1.0} if "deconv" in kinds else {}, 0.0) > 0
    if turned.any():  # as the convolution that it turns round: what it writes is read, what it reads is written
        swapped = {f"{a}_{axis}": numbers[f"{b}_{axis}"] for a, b in (("in", "out"), ("out", "in")) for axis in _AXES}
        numbers |= {name: np.where(turned, column, numbers[name]) for name, column in swapped.items()}
    product = table.mapped("kind", {"matmul": 1.0} if "matmul" in kinds else {}, 0.0) > 0
    if product.any():  # as one layer of as many rows
        rows = dict.fromkeys(_ROW, np.ones(len(table), np.int64))
        rows |= {"batch": numbers["batch"] * numbers["in_height"], "other_elements": np.zeros(len(table), np.int64)}
        rows |= {"in_channels": numbers["in_width"], "out_channels": numbers["out_width"]}
        numbers |= {name: np.where(product, column, numbers[name]) for name, column in rows.items()}
    vocabulary = {**table.words, "kind": tuple(kinds.get(word, word) for word in words)}
    return StandIns(replace(table, numbers=numbers, words=vocabulary), kinds)
