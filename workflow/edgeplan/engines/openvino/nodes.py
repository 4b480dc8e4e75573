"""Tells which operators of the original graph OpenVINO runs in each node of its runtime model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from edgeplan.engines.base import EngineNode
from edgeplan.engines.mapping import complete_members
from edgeplan.graph.ir import Graph, Operator

#: Node types of the runtime model that hold no work of their own.
_PASSIVE = frozenset({"Input", "Const", "Output", "Result", "Parameter"})

#: Those that hand values on in another layout or type.
_CONVERSIONS = frozenset({"Reorder", "Convert"})


def _info(op: Any, key: str) -> str:
    info = op.get_rt_info()
    return str(info[key].astype(str)) if key in info else ""


def map_nodes(graph: Graph, ops: Sequence[Any]) -> tuple[EngineNode, ...]:
    """Return the executed nodes of a runtime model, in order, with the operators of `graph` each one runs."""
    active = [op for op in ops if _info(op, "layerType") not in _PASSIVE and not _only_constants(op)]
    layouts = {op.get_friendly_name(): _info(op, "outputLayouts").split(",")[0] for op in ops}
    named: dict[str, list[str]] = {}
    by_output = {o: op.name for op in graph.operators for o in op.outputs}
    for op in active:
        names = [n for n in _info(op, "originalLayersNames").split(",") if n]
        named[op.get_friendly_name()] = [by_output.get(n, n) for n in names if n in graph.by_name or n in by_output]
    named |= _sequences(graph, active)

    def claims(_node: str, _op: Operator) -> bool:
        return False  # the runtime model names every operator it fuses behind another

    members = complete_members(graph, {k: v for k, v in named.items() if v}, claims)
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
