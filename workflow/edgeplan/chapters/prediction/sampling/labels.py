"""Turns measured carriers into labelled kernels.

Counters inflate small nodes and miss what happens between nodes, so that their sum is not the time of the plain run. The
relation is fitted on the carriers themselves, `plain = call + scale x sum(nodes) + overhead x nodes`, and each carrier's
remainder is spread over its nodes by how far each may be wrong: the unit of the counters, and a share of its time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import scipy

from edgeplan.engines.base import EngineNode
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import make_kernel
from edgeplan.measurement.records import Measurement
from edgeplan.predictors.kernel_tables import reorder_config

#: A label is never below this: even an empty node costs its dispatch.
_LEAST_US = 0.05
#: Engines count whole microseconds: a node whose counter reads nothing took half of one, as far as can be known.
_UNREAD_US = 0.5
#: A carrier whose counters miss its plain time by more than this is left out of the fit (not of the labels).
_OUTLIER = 0.25
_REMAINDER = (-0.2, 0.25)
#: Standard errors of a counted time: of rounding to whole microseconds, and of what varies in proportion.
_ROUNDING_US = 0.29
_PROPORTIONAL = 0.025
_FIT_ROUNDS = 3
#: Bounds of the fit: of the call (us), the scale of counters, and what a node takes besides (us).
_LOWEST, _HIGHEST = (0.0, 0.5, -5.0), (200.0, 1.5, 5.0)
#: Half of the range to which a call that is known from elsewhere is held in the fit (us), and the share of the smallest models
#: that tell it.
_HELD_US, _SMALLEST_SHARE = 1e-6, 0.25
#: A call takes at least this share of the time of the smallest models, whatever their counters say.
_LEAST_CALL_SHARE = 0.2
#: So near to a bound the call was not fitted. No engine answers within this time (us) either.
_AT_BOUND_US = 0.1


@dataclass(frozen=True, slots=True)
class CounterModel:
    """A counter model relates counted node times to plain time, in us: `call` per inference, `overhead` per node."""

    call: float
    scale: float
    overhead: float


def _counted(measurement: Measurement) -> npt.NDArray[np.float64]:
    """Return node times as counted, microseconds (nodes,); what the counters cannot resolve counts half their unit."""
    counted = measurement.node_latency_us
    return np.where(counted > 0, counted, _UNREAD_US)


def fit_counters(measurements: Sequence[Measurement], small: Sequence[Measurement] = ()) -> CounterModel:
    """Fit the counter model on profiled carriers, by least squares on relative residuals, outliers dropped.

    A call takes so little of a carrier that few carriers may not show it. Where the fit ends at a bound of it, models of a
    single operator, which are hardly more than a call, tell it.

    Args:
        measurements: of carriers.
        small: of models of a single operator, if there are any.
    """
    fitted = _fit_counters(measurements, _LOWEST, _HIGHEST)
    if call_is_fitted(fitted.call) or not small:
        return fitted
    call = _call_of(small, fitted)
    return _fit_counters(measurements, (call - _HELD_US, *_LOWEST[1:]), (call + _HELD_US, *_HIGHEST[1:]))


def _call_of(small: Sequence[Measurement], counters: CounterModel) -> float:
    """Return the call's cost (us) by the fastest of small models: the median of what their counters leave of the plain time."""
    fastest = sorted(small, key=lambda m: m.latency_us)[: max(1, round(_SMALLEST_SHARE * len(small)))]
    left = [m.latency_us - counters.scale * _counted(m).sum() - counters.overhead * len(m.nodes) for m in fastest]
    return max(float(np.median(left)), _LEAST_CALL_SHARE * fastest[0].latency_us)


def _fit_counters(measurements: Sequence[Measurement], lowest: tuple[float, ...], highest: tuple[float, ...]) -> CounterModel:
    plain = np.array([m.latency_us for m in measurements])
    design = np.array([[1.0, _counted(m).sum(), len(m.nodes)] for m in measurements])
    keep = np.ones(len(plain), dtype=bool)
    solution = np.array([0.0, 1.0, 0.0])
    for _ in range(_FIT_ROUNDS):
        weight = 1.0 / plain[keep]
        fit = scipy.optimize.lsq_linear(design[keep] * weight[:, None], plain[keep] * weight, bounds=(lowest, highest))
        solution = fit.x
        keep = np.abs(design @ solution / plain - 1) < _OUTLIER
        if keep.sum() < len(solution):
            break
    return CounterModel(*(float(v) for v in solution))


def call_is_fitted(call_us: float) -> bool:
    """Tell whether the fit of counters found the constant cost of an inference, and did not end at a bound of it."""
    return _LOWEST[0] + _AT_BOUND_US < call_us < _HIGHEST[0] - _AT_BOUND_US


def node_labels(measurement: Measurement, counters: CounterModel) -> npt.NDArray[np.float64]:
    """Return the time of each node as it counts in the plain run, microseconds (nodes,)."""
    labels = np.maximum(_counted(measurement) * counters.scale + counters.overhead, _LEAST_US)
    low, high = (bound * labels.sum() for bound in _REMAINDER)
    remainder = float(np.clip(measurement.latency_us - counters.call - labels.sum(), low, high))
    variance = standard_error_us(labels) ** 2
    while abs(remainder) > _LEAST_US:  # again for what nodes at the least label could not give
        before = labels.sum()
        labels = np.maximum(labels + remainder * variance / variance.sum(), _LEAST_US)
        taken = labels.sum() - before
        variance = np.where(labels > _LEAST_US, variance, 0.0)
        remainder -= taken
        if not variance.any() or abs(taken) < _LEAST_US:
            break
    return np.asarray(labels)


def standard_error_us(labels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the standard error of labels, us (n,): from the rounding of the counters, and a share of their time."""
    return np.hypot(_ROUNDING_US, _PROPORTIONAL * labels)


def plain_layouts(graphs: Sequence[Graph], measurements: Sequence[Measurement]) -> dict[str, str]:
    """Return the layout of graph inputs by rank: the layout read by the first node that reads an input."""
    found: dict[str, str] = {}
    for graph, m in zip(graphs, measurements, strict=True):
        for node in m.nodes:
            read = node.tensor if node.is_reorder else graph.by_name[node.members[0]].inputs[0]
            if read in graph.inputs and node.input_layout:
                found.setdefault(str(len(graph.shape(graph.inputs[0]))), node.input_layout)
                break
    return found


def label_rows(
    graph: Graph, measurement: Measurement, counters: CounterModel, plain: Mapping[str, str]
) -> list[dict[str, object]]:
    """Return one row per kernel and layout conversion of a profiled carrier (columns: docs/prediction.md, training table)."""
    merged = _merge(_told(graph, measurement.nodes), node_labels(measurement, counters))
    layouts: dict[str, str] = {name: plain.get(str(len(graph.shape(name))), "") for name in graph.inputs}
    for node, _ in merged:
        if node.members:
            for output in make_kernel(graph, node.members).outputs:
                layouts[output] = node.output_layout
    rows: list[dict[str, object]] = []
    for node, latency in merged:
        if node.members:
            kernel = make_kernel(graph, node.members)
            config = kernel.config
            before = {layouts.get(i, "") for i in kernel.inputs}
            state = before.pop() if len(before) == 1 else "mixed"
            implementation = node.implementation
        elif node.tensor in graph.tensors and node.input_layout != node.output_layout:
            config = reorder_config(graph.tensors[node.tensor])
            state, implementation = node.input_layout, f"{node.input_layout}>{node.output_layout}"
        else:
            continue
        rows.append(
            {
                "subject": measurement.subject,
                "mode": "in_situ",
                "kind": config.kind,
                "type": config.type,
                "config": config.to_json(),
                "implementation": implementation,
                "input_state": state,
                "input_layout": node.input_layout,
                "output_layout": node.output_layout,
                "latency_us": float(latency),
                "noise": measurement.noise,
            }
        )
    return rows


def _told(graph: Graph, nodes: Sequence[EngineNode]) -> Sequence[EngineNode]:
    """Return the nodes; in a graph of one operator all are its own but conversions of what it reads and writes.

    Engines run an operator in several steps, of which they name one after it.
    """
    if len(graph.operators) > 1:
        return nodes
    own = (graph.operators[0].name,)
    return [n if n.members or n.tensor in graph.tensors else replace(n, members=own) for n in nodes]


def _merge(nodes: Sequence[EngineNode], latencies: npt.NDArray[np.float64]) -> list[tuple[EngineNode, float]]:
    """Merge engine nodes that share operators (one operator run as two nodes); the last one's layout counts."""
    merged: list[tuple[EngineNode, float]] = []
    place: dict[str, int] = {}
    for node, latency in zip(nodes, latencies, strict=True):
        index = next((place[m] for m in node.members if m in place), None)
        if index is None:
            place |= dict.fromkeys(node.members, len(merged))
            merged.append((node, float(latency)))
        else:
            first, time = merged[index]
            members = tuple(dict.fromkeys((*first.members, *node.members)))
            place |= dict.fromkeys(members, index)
            merged[index] = (replace(first, members=members, output_layout=node.output_layout), time + float(latency))
    return merged
