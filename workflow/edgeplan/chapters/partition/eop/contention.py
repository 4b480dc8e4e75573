"""This module measures by how much two different steps slow each other down, by what they are bound by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.chapters.partition.measuring.opened import Opened
from edgeplan.chapters.partition.names import SIDES
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import partition
from edgeplan.runtime.partitioned.session import PairSession
from edgeplan.runtime.program import activation_layouts

#: Loads of the cost document.
LOADS = ("compute", "bandwidth")
#: Steps of a branch: (channels, height and width, how many), of about as long branches on a core.
_COMPUTE = (64, 28, 10)
_BANDWIDTH = (64, 112, 10)


def contention(pair: Opened, folder: Path, runs: int) -> pd.DataFrame:
    """Factors of every pair of loads: cpu_load, gpu_load, cpu_factor, gpu_factor.

    Two branches, one a processor, run one after the other and then side by side; a factor is the median over the steps that
    lie wholly beside the other branch. It is at least 1.

    Args:
        pair: whose GPU notes times.
        folder: for the models.
        runs: of each.
    """
    rows = []
    for cpu_load in LOADS:
        for gpu_load in LOADS:
            factors = _factors(pair, folder, (cpu_load, gpu_load), runs)
            rows.append({"cpu_load": cpu_load, "gpu_load": gpu_load, "cpu_factor": factors[0], "gpu_factor": factors[1]})
    return pd.DataFrame(rows)


def branches(loads: tuple[str, str]) -> Graph:
    """Two chains that nothing joins, named `cpu...` and `gpu...`."""
    b = GraphBuilder("branches", (1, 8, 112, 112))
    ends = []
    for side, load in zip(SIDES, loads, strict=True):
        channels, size, count = _COMPUTE if load == LOADS[0] else _BANDWIDTH
        x = b.conv(b.input, channels, 1, 112 // size, name=f"{side}_first")
        for k in range(count):
            x = b.conv(x, channels, 3, name=f"{side}_{k}") if load == LOADS[0] else b.maxpool(x, 3, 1, 1, name=f"{side}_{k}")
        ends.append(b.gap(x, name=f"{side}_last"))
    return b.build(*ends)


def _factors(pair: Opened, folder: Path, loads: tuple[str, str], runs: int) -> tuple[float, float]:
    model = save_onnx(branches(loads), folder / f"{loads[0]}-{loads[1]}.onnx")
    graph = load_onnx(model)
    lowered = lower(graph)
    layouts, block = activation_layouts(lowered, BLOCKED), pair.block
    lanes = [0 if step.name.startswith(SIDES[0]) else 1 for step in lowered.steps]
    queues = [[k for k, lane in enumerate(lanes) if lane == side] for side in (0, 1)]
    inputs = random_inputs({name: graph.shape(name) for name in graph.inputs}, 0)
    spans = []
    for orders in (None, (queues[0], queues[1])):
        made = partition(lowered, layouts, block, lanes, orders)
        with PairSession.of(*pair.processors, made, model, pair.synchronisation) as session:
            found = []
            for _ in range(runs + 1):
                session.run(inputs)
                found.append(session.times.copy())
        order = np.argsort([made.ranged.origin[k] for k in range(len(made.lanes))])
        spans.append(np.median(np.array(found[1:])[:, order], axis=0))
    alone, beside = spans
    both = [_beside(beside, queues[side], queues[1 - side]) for side in (0, 1)]
    found_factors = [_ratio(alone, beside, steps) for steps in both]
    return found_factors[0], found_factors[1]


def _beside(times: npt.NDArray[np.float64], own: list[int], others: list[int]) -> list[int]:
    """Steps that lie wholly within what the other lane takes."""
    first, last = times[others, 0].min(), times[others, 1].max()
    return [k for k in own if times[k, 0] >= first and times[k, 1] <= last]


def _ratio(alone: npt.NDArray[np.float64], beside: npt.NDArray[np.float64], steps: list[int]) -> float:
    if not steps:
        return 1.0
    ratios = (beside[steps, 1] - beside[steps, 0]) / np.maximum(alone[steps, 1] - alone[steps, 0], 1.0)
    return max(1.0, round(float(np.median(ratios)), 4))
