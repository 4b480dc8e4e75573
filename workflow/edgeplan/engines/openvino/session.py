"""Runs models by OpenVINO on the CPU, held to f32 (its default on this hardware is bf16).

Its per-node counters are averages over all runs so far, in whole microseconds; the time of a block of runs is the slope of
(runs x average) over the block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from edgeplan.engines.base import Array, Engine, EngineNode, ProfiledSession, Session, Times, random_inputs
from edgeplan.engines.openvino.nodes import map_nodes
from edgeplan.graph.ir import Graph

_HALF_COUNT_US = 0.5


class OpenVino(Engine):
    """This engine is OpenVINO's CPU plugin, f32, with its hint for latency."""

    name = "openvino"
    reports_nodes = True
    counts_copies = True

    @classmethod
    def version(cls) -> str:
        return str(ov.get_version())

    def _compile(self, model: Path, *, counters: bool) -> ov.CompiledModel:
        config: dict[str, Any] = {
            "INFERENCE_NUM_THREADS": self.settings.threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "PERFORMANCE_HINT": "LATENCY",
            "PERF_COUNT": counters,
            **self.settings.options,
        }
        return ov.Core().compile_model(str(model), "CPU", config)

    def load(self, model: Path, graph: Graph) -> Session:
        return _OvSession(self._compile(model, counters=False), graph)

    def load_profiled(self, model: Path, graph: Graph) -> ProfiledSession:
        return _OvProfiledSession(self._compile(model, counters=True), graph)


class _OvSession(Session):
    def __init__(self, compiled: ov.CompiledModel, graph: Graph) -> None:
        self._compiled = compiled
        self._request = compiled.create_infer_request()
        self._inputs = random_inputs(graph)
        for name, value in self._inputs.items():
            self._request.set_tensor(name, ov.Tensor(value, shared_memory=True))

    def run(self) -> None:
        self._request.infer()

    def outputs(self) -> Mapping[str, Array]:
        return {
            port.get_any_name(): np.array(self._request.get_output_tensor(index).data)
            for index, port in enumerate(self._compiled.outputs)
        }


class _OvProfiledSession(_OvSession, ProfiledSession):
    def __init__(self, compiled: ov.CompiledModel, graph: Graph) -> None:
        super().__init__(compiled, graph)
        self._graph = graph
        self._averages: list[dict[str, float]] = []

    def run(self) -> None:
        super().run()
        self._averages.append({p.node_name: p.real_time.total_seconds() * 1e6 for p in self._request.profiling_info})

    def profile(self, blocks: Sequence[tuple[int, int]]) -> tuple[tuple[EngineNode, ...], Times]:
        nodes = map_nodes(self._graph, self._compiled.get_runtime_model().get_ordered_ops())
        times = np.zeros((len(blocks), len(nodes)))
        for column, node in enumerate(nodes):
            averages = np.array([run.get(node.name, 0.0) for run in self._averages])
            runs = np.arange(1.0, len(averages) + 1)
            total = np.where(averages > 0, runs * (averages + _HALF_COUNT_US), runs * _HALF_COUNT_US * (averages > 0))
            for row, (start, stop) in enumerate(blocks):
                times[row, column] = _slope(runs[start:stop], total[start:stop]) if stop - start > 1 else averages[stop - 1]
        return nodes, np.maximum(times, 0.0)


def _slope(x: Times, y: Times) -> float:
    """Return the median of the slopes between the first and second halves of the points: one disturbed run moves it little."""
    half = len(x) // 2
    near, far = slice(0, half), slice(len(x) - half, len(x))
    return float(np.median((y[far] - y[near]) / (x[far] - x[near])))
