"""A model's costs of its own sweep, and those of a model whose steps all run on one processor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeplan.chapters.partition.checked.own_sweep import OwnTimes
from edgeplan.chapters.partition.costs import ModelCosts, Priced, costs_of
from edgeplan.chapters.partition.eop.sweeps import SweptModel
from edgeplan.runtime.layouts import size_bytes
from edgeplan.runtime.partitioned.program import Assignment, Split
from edgeplan.runtime.partitioned.sections import extent

#: A split has to gain more than this share of the better whole time: runs of one session repeat so far.
MARGIN = 0.05


def own_costs(times: OwnTimes, *, names: tuple[str, str], handshake_ms: float) -> ModelCosts:
    """The costs of a model by its own times."""
    lowered, block = times.subject.lowered, times.block
    priced: list[Priced] = []
    for k, step in enumerate(lowered.steps):
        first, over = times.twin[k], times.dimension[k]
        cpu_ms, gpu_ms = times.whole[first]
        options: list[dict[str, Any]] = [{"on": "cpu", "cpu_ms": cpu_ms}]
        places: list[Assignment] = [0]
        if not times.refused[k]:
            options.append({"on": "gpu", "gpu_ms": gpu_ms})
            places.append(1)
        for end, parts in sorted(times.splits.get(first, {}).items()) if over is not None else ():
            if over is None or max(parts) == float("inf"):
                continue
            share = end / extent(lowered, block, step, over).size
            both = {"on": "split", "cpu_ms": parts[0], "gpu_ms": parts[1]}
            options.append({**both, "cpu_share": share, "dimension": over.value})
            places.append(Split(end, over))
        entry: dict[str, Any] = {"options": options}
        if times.moving.least_ms or times.moving.ms_per_byte:  # either may be lost in noise
            sizes = [size_bytes(lowered.shapes[t], times.subject.layouts[t], block) for t in step.outputs]
            entry |= dict.fromkeys(("to_cpu_ms", "to_gpu_ms"), sum(map(times.moving.ms, sizes)))
        if len(places) == len(options) and not any(isinstance(place, Split) for place in places):
            entry["unsplittable"] = times.why[k] or "a part of it has no kernel, or takes longer than all of it"
        priced.append((entry, places))
    return costs_of(
        lowered, times.subject.layouts, block, priced,
        names=names, handshake_ms=max(handshake_ms, times.beyond.hand_over), error=MARGIN,
        step_ms=times.beyond.step,
    )  # fmt: skip


def costs_alone(subject: SweptModel, steps_ms: Sequence[float], block: int, names: tuple[str, str]) -> ModelCosts:
    """The costs of a model that runs on the first processor alone, from the times that its steps took."""
    why = "all steps run on one processor"
    priced: list[Priced] = [({"options": [{"on": "cpu", "cpu_ms": ms}], "unsplittable": why}, (0,)) for ms in steps_ms]
    return costs_of(subject.lowered, subject.layouts, block, priced, names=names, handshake_ms=0.0)
