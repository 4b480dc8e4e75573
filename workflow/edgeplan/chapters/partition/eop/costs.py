"""Sweeps to cost documents: every option of a step with the times it took in its model."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from edgeplan.chapters.partition.eop.sweeps import SweptModel
from edgeplan.planning.partition.costs import SPLIT, PairCosts
from edgeplan.planning.partition.document import parse_costs
from edgeplan.runtime.partitioned.program import Assignment, Split, preceding
from edgeplan.runtime.partitioned.sections import Dimension, extent

_US = 1e3
_COMPUTE = frozenset({"conv", "fc", "matmul", "lstm", "gru", "lbr_gru"})


@dataclass(frozen=True, slots=True)
class MeasuredCosts:
    """A model's costs.

    Attributes:
        content: the cost document, JSON in UTF-8.
        costs: the same, read.
        block: channels of a block of the layout `blocked16`.
        assigned: by step and position among its options, where it runs.
    """

    content: bytes
    costs: PairCosts
    block: int
    assigned: tuple[tuple[Assignment, ...], ...]

    def assignments(self, choice: Sequence[int]) -> list[Assignment]:
        """Where each step runs by a choice of options."""
        chosen = zip(self.costs.steps, self.assigned, choice, strict=True)
        return [of_options[step.options[k].index] for step, of_options, k in chosen]


def measured_costs(
    subject: SweptModel,
    swept: pd.DataFrame,
    refused: Sequence[str],
    *,
    block: int,
    names: tuple[str, str],
    handshake_ms: float,
    margin: float,
    contention: pd.DataFrame,
) -> MeasuredCosts:
    """The costs of a model.

    Args:
        subject: the model.
        swept: rows of `sweep`.
        refused: for each step why the GPU does not run it.
        block: channels of a block of the layout `blocked16`.
        names: of the processors.
        handshake_ms: until one has seen that the other is done.
        margin: share of an operator's time that a split has to gain.
        contention: rows of `contention`.
    """
    by_step = dict(iter(swept.groupby("step")))
    operators, assigned = [], []
    earlier = preceding(subject.lowered, subject.layouts, block)
    for k, (step, before, why) in enumerate(zip(subject.lowered.steps, earlier, refused, strict=True)):
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
        entry = {"name": step.name, "inputs": [subject.lowered.steps[j].name for j in before], "options": options}
        entry |= {"load": "compute" if step.kind in _COMPUTE else "bandwidth"}
        if not any(isinstance(place, Split) for place in places):
            entry |= {"unsplittable": f"the GPU has no kernel of it: {why}" if why else "no dimension of it can be cut"}
        operators.append(entry)
        assigned.append(tuple(places))
    document = {
        "format_version": 1,
        "model": subject.name,
        "processors": {"cpu": names[0], "gpu": names[1]},
        "cpu_to_gpu_ms": handshake_ms,
        "gpu_to_cpu_ms": handshake_ms,
        "error": margin,
        "contention": contention.to_dict("records"),
        "operators": operators,
    }
    content = (json.dumps(document, indent=1) + "\n").encode()
    return MeasuredCosts(content, parse_costs(content, f"measured costs of {subject.name}"), block, tuple(assigned))


def at_ratios(
    subject: SweptModel, block: int, assigned: Sequence[Assignment], ratios: Mapping[int, tuple[str, float]]
) -> list[Assignment]:
    """The same with some steps split at ratios of their own, each at the nearest that can be executed.

    Args:
        subject: the model.
        block: channels of a block of the layout `blocked16`.
        assigned: where each step runs.
        ratios: of steps: over what, and the CPU's share.
    """
    found = list(assigned)
    for k, (name, share) in ratios.items():
        dimension = Dimension(name)
        found[k] = Split(extent(subject.lowered, block, subject.lowered.steps[k], dimension).nearest(share), dimension)
    return found


def best_options(costs: PairCosts, steps: Sequence[int]) -> dict[int, int]:
    """Of some steps the option that took least, a split with its hand-overs."""
    over = costs.cpu_to_gpu_ms + costs.gpu_to_cpu_ms

    def taken(k: int, option: int) -> float:
        found = costs.steps[k].options[option]
        return found.span_ms + over * (found.kind == SPLIT)

    return {k: min(range(len(costs.steps[k].options)), key=lambda o: taken(k, o)) for k in steps}
