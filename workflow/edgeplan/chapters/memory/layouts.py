"""Layouts of activations and scratch without weights: how near each way to lay out comes to the proven least."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.planning.layout.greedy import FirstFit, least
from edgeplan.planning.memory.algorithm1 import at_both_ends
from edgeplan.planning.memory.workload import Workload
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.streaming.again import workload_of
from edgeplan.runtime.streaming.build import build
from edgeplan.support.scratch import ScratchFolder
from edgeplan.workloads.registry import WORKLOADS, save_workload
from edgeplan.zoo import prior_models

_UNCUT = 1 << 40
#: Models that can be laid out, by name.
MODELS = {**prior_models(), **WORKLOADS}


def _graph(name: str) -> Graph:
    workload = MODELS[name]()
    if isinstance(workload, Graph):
        return workload
    with ScratchFolder("layout") as folder:
        return load_onnx(save_workload(workload, Path(folder) / "model.onnx"))


def layouts(names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Heights of layouts of the activations and scratch of models, by all that lay them out."""
    dnnl = Dnnl()
    for name in names:
        program = build(dnnl, lower(simplify(_graph(name))), BLOCKED, _UNCUT).program
        work = workload_of(program, [0.0] * len(program.step_names))
        tensors = work.tensors
        found = least(tensors)
        heights = {
            "edgeplan": found.height,
            "Algorithm 1": _algorithm_1(work, found.lower_bound),
            "greedy by size": int((FirstFit(tensors).greedy()["size"] + tensors.size).max()),
        }
        for setting, height in heights.items():
            yield {
                "model": name, "case": "layout", "setting": setting, "peak": height, "needed": found.lower_bound,
                "steps": len(tensors),
            }  # fmt: skip


def _algorithm_1(work: Workload, bound: int) -> int:
    """The least budget found for which its layout of activations, at both ends, exists."""
    low, high = bound, 2 * bound
    while at_both_ends(work, high) is None:
        low, high = high, 2 * high
    while high - low > max(1, bound // 10000):
        middle = (low + high) // 2
        low, high = (low, middle) if at_both_ends(work, middle) is not None else (middle, high)
    return high
