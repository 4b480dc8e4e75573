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
from edgeplan.engines.cold import Artefact
from edgeplan.engines.mapping import complete_members
from edgeplan.graph.ir import Graph

#: Node types of the runtime model that hold no work of their own.
_PASSIVE = frozenset({"Input", "Const", "Output", "Result", "Parameter"})

#: Those that hand values on in another layout or type.
_CONVERSIONS = frozenset({"Reorder", "Convert"})


def _info(op: Any, key: str) -> str:
    info = op.get_rt_info()
    return str(info[key].astype(str)) if key in info else ""


def _map_nodes(graph: Graph, ops: Sequence[Any]) -> tuple[EngineNode, ...]:
    """Return the executed nodes of a runtime model, in order, with the operators of `graph` each one runs."""
    active = [op for op in ops if _info(op, "layerType") not in _PASSIVE and not _only_constants(op)]
    layouts = {op.get_friendly_name(): _info(op, "outputLayouts").split(",")[0] for op in ops}
    named: dict[str, list[str]] = {}
    by_output = {o: op.name for op in graph.operators for o in op.outputs}
    for op in active:
        names = [n for n in _info(op, "originalLayersNames").split(",") if n]
        named[op.get_friendly_name()] = [by_output.get(n, n) for n in names if n in graph.by_name or n in by_output]
    named |= _sequences(graph, active)
    # nothing is claimed: the runtime model names every operator it fuses behind another
    members = complete_members(graph, {k: v for k, v in named.items() if v}, lambda *_: False)
    _add_parts(active, members)
    carried: dict[str, str] = {}  # engine node -> original activation it writes
    for op in ops:
        name = op.get_friendly_name()
        if members.get(name):
            carried[name] = graph.by_name[members[name][-1]].outputs[0]
        elif name in graph.inputs:
            carried[name] = name
    found = []
    for op in active:
        name = op.get_friendly_name()
        parents = [v.get_node().get_friendly_name() for v in op.input_values()]
        before = layouts.get(parents[0], "") if parents else ""
        kind, implementation = _info(op, "layerType"), _info(op, "primitiveType")
        if members.get(name):
            found.append(EngineNode(name, kind, f"{kind}.{implementation}", members[name], "", before, layouts[name]))
        else:
            tensor = next((carried[p] for p in parents if p in carried), "")
            carried[name] = tensor
            found.append(EngineNode(name, kind, f"{kind}.{implementation}", (), tensor, before, layouts[name]))
    return tuple(found)


def _add_parts(active: Sequence[Any], members: dict[str, tuple[str, ...]]) -> None:
    """Add nodes that the engine makes of a part of an operator, and names after none: what reads them belongs to it."""
    for op in reversed(active):
        name = op.get_friendly_name()
        if members.get(name) or _info(op, "layerType") in _CONVERSIONS:
            continue
        readers = (read.get_node().get_friendly_name() for out in op.outputs() for read in out.get_target_inputs())
        members[name] = next((members[reader] for reader in readers if members.get(reader)), ())


def _sequences(graph: Graph, active: Sequence[Any]) -> dict[str, list[str]]:
    """Map the nodes of LSTMs, which the engine names anew, one a direction, each to the first LSTM as wide that lacks one."""
    lacking = {op.name: graph.shape(op.outputs[0])[1] for op in graph.operators if op.op_type == "LSTM"}
    found = {}
    for op in active:
        if _info(op, "layerType") != "RNNSeq":
            continue
        hidden = list(op.get_output_shape(0))[-1]
        fitting = (name for name, left in lacking.items() if left and graph.shape(graph.by_name[name].outputs[0])[-1] == hidden)
        name = next(fitting, None)
        if name:
            lacking[name] -= 1
            found[op.get_friendly_name()] = [name]
    return found


def _only_constants(op: Any) -> bool:
    """Tell whether a node is computed once, when the model is compiled."""
    parents = [v.get_node() for v in op.input_values()]
    return bool(parents) and all(_info(p, "layerType") == "Const" or _only_constants(p) for p in parents)


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


def mapped(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Save the model in OpenVINO's own format, which it maps, and still packs what its kernels want packed."""
    del inputs, threads
    found, weights = folder / "mapped.xml", folder / "mapped.bin"
    ov.save_model(ov.Core().read_model(str(model)), str(found), compress_to_fp16=False)
    return Artefact(main=found, files=(found, weights))


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
        nodes = _map_nodes(self._graph, self._compiled.get_runtime_model().get_ordered_ops())
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
