"""Tells how far kernels lie from all that was measured, which a predictor cannot have learnt.

Groups, dilation, batch, strides and the size of windows change which code an engine runs: beyond the values that were measured,
a prediction is a guess whose error no interval covers. Other sizes are extrapolated by the work model: `sizes` tells how far.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from edgeplan.graph.kernels import KernelConfig
from edgeplan.predictors.features import FEATURES

#: What is held against what was measured.
Checked = Literal["batch", "groups", "dilation_h", "dilation_w", "kernel_h", "kernel_w", "stride_h", "stride_w"]
Ranges = Mapping[str, Mapping[Checked, tuple[int, int]]]

_CHECKED: tuple[Checked, ...] = get_args(Checked)
_OF_IMAGES = frozenset({"conv", "dwconv", "maxpool", "avgpool", "gap", "lrn"})


def learnt_ranges(kinds: npt.NDArray[np.object_], matrix: npt.NDArray[np.float64]) -> dict[str, dict[Checked, tuple[int, int]]]:
    """Return the least and largest value of each checked feature, by kind.

    Args:
        kinds: kind of each row trained on (n,).
        matrix: features of the rows, `FEATURES` first (n, features).
    """
    found: dict[str, dict[Checked, tuple[int, int]]] = {}
    for kind in sorted(set(kinds)):
        rows = matrix[kinds == kind]
        columns = {name: rows[:, FEATURES.index(name)] for name in _CHECKED if not _free(kind, name)}
        found[kind] = {name: (int(column.min()), int(column.max())) for name, column in columns.items()}
    return found


def unfamiliar(configs: Sequence[KernelConfig], ranges: Ranges) -> tuple[str, ...]:
    """Describe, for each configuration, the values beyond those measured of its kind; "" for none (n,)."""
    return tuple(", ".join(dict.fromkeys(_beyond(config, ranges.get(config.kind, {})))) for config in configs)


def _beyond(config: KernelConfig, ranges: Mapping[Checked, tuple[int, int]]) -> list[str]:
    found = []
    for name, (least, most) in ranges.items():
        value = getattr(config, name)
        if name == "batch" and config.kind not in _OF_IMAGES:  # steps or rows: a size like others
            continue
        if not least <= value <= most:
            found.append(f"{name.partition('_')[0]} {value}, measured {least if least == most else f'{least} to {most}'}")
    return found


def _free(kind: str, name: Checked) -> bool:
    """Tell whether a feature is not checked for a kind: depthwise convolutions have a group a channel, so groups are a size."""
    return (kind, name) == ("dwconv", "groups")
