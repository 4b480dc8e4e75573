"""Sweeps to cost documents: every option of a step with the times it took in its model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from edgeplan.chapters.partition.costs import ModelCosts, Priced, costs_of
from edgeplan.chapters.partition.eop.sweeps import SweptModel
from edgeplan.graph.steps import Lowered
from edgeplan.planning.partition.costs import SPLIT, PairCosts
from edgeplan.runtime.partitioned.program import Assignment, Split
from edgeplan.runtime.partitioned.sections import Dimension, extent

_US = 1e3


def measured_costs(
    lowered: Lowered,
    layouts: Mapping[str, str],
    swept: pd.DataFrame,
    refused: Sequence[str],
    *,
    block: int,
    names: tuple[str, str],
    handshake_ms: float,
    margin: float,
) -> ModelCosts:
    """The costs of a model."""
    by_step, priced = dict(iter(swept.groupby("step"))), list[Priced]()
    for k, why in enumerate(refused):
        options: list[dict[str, object]] = []
        places: list[Assignment] = []
        own = by_step[k]
        times = (own[["cpu_us", "gpu_us"]].to_numpy(float) / _US).tolist()
        ends = own[["end", "size"]].to_numpy(int).tolist()
        for dimension, (end, size), (cpu_ms, gpu_ms) in zip(own["dimension"].tolist(), ends, times, strict=True):
            if dimension:
                share = {"cpu_share": end / size, "dimension": dimension}
                options.append({"on": "split", "cpu_ms": cpu_ms, "gpu_ms": gpu_ms, **share})
                places.append(Split(end, Dimension(dimension)))
            else:
                options.append({"on": "cpu", "cpu_ms": cpu_ms} if end else {"on": "gpu", "gpu_ms": gpu_ms})
                places.append(0 if end else 1)
        entry: dict[str, object] = {"options": options}
        if not any(isinstance(place, Split) for place in places):
            entry["unsplittable"] = f"the GPU has no kernel of it: {why}" if why else "no dimension of it can be cut"
        priced.append((entry, places))
    return costs_of(lowered, layouts, block, priced, names=names, handshake_ms=handshake_ms, error=margin)


def at_ratios(
    subject: SweptModel, block: int, assigned: Sequence[Assignment], ratios: Mapping[int, tuple[str, float]]
) -> list[Assignment]:
    """The same with some steps split at ratios of their own, each at the nearest that can be executed."""
    found = list(assigned)
    for k, (name, share) in ratios.items():
        dimension = Dimension(name)
        found[k] = Split(extent(subject.lowered, block, subject.lowered.steps[k], dimension).nearest(share), dimension)
    return found


def best_options(costs: PairCosts, steps: Sequence[int]) -> dict[int, int]:
    """Return the option of each step that took least, a split with its hand-overs."""
    over = costs.cpu_to_gpu_ms + costs.gpu_to_cpu_ms

    def taken(k: int, option: int) -> float:
        found = costs.steps[k].options[option]
        return found.span_ms + over * (found.kind == SPLIT)

    return {k: min(range(len(costs.steps[k].options)), key=lambda o: taken(k, o)) for k in steps}
