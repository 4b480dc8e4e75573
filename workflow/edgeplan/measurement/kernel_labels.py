"""Labels of kernels of graphs, from models of their copies.

Engines convert layouts around copies as they would not in the model: what their counters give to conversions, and to what
brings copies their inputs, is no time of the kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from edgeplan.engines.base import apart
from edgeplan.graph.kernel_nodes import AROUND, REORDER, copies_graph, described
from edgeplan.graph.nodes import NodeConfig
from edgeplan.measurement.records import Measurement

#: Engines count whole microseconds: a node whose counter reads nothing took half of one, as far as can be known.
_UNREAD_US = 0.5


def labels_us(config: NodeConfig, measurement: Measurement, call_us: float, copies: int) -> Mapping[NodeConfig, float]:
    """Return the time of each node that ran in a model of copies, us: of the kernel, and of conversions around it.

    `call_us` is what an inference takes besides. A black box tells no nodes: its kernel has all the time. Keys are
    configurations as executed, another than asked for where the engine chose another layout, or fuses otherwise.
    """
    within = max(measurement.latency_us - call_us, 0.0)
    if not measurement.nodes:
        return {config: within / copies}
    counted = np.where(measurement.node_latency_us > 0, measurement.node_latency_us, _UNREAD_US)
    graph = copies_graph(config, copies, apart=apart(config), around=True)
    told = measurement.nodes
    if config.op != REORDER and not config.attribute("implementation", ""):  # told before it ran, which says no kernels
        told = tuple(replace(node, implementation="") for node in told)
    found: defaultdict[NodeConfig, list[float]] = defaultdict(list)
    for _, executed, members, nodes in described(graph, told):
        if not any(name.startswith(AROUND) for name in members):
            found[executed].append(float(counted[list(nodes)].sum()))
    share = within / counted.sum()
    return {executed: share * sum(times) / len(times) for executed, times in found.items()}


def label_us(config: NodeConfig, measurement: Measurement, call_us: float, copies: int) -> tuple[NodeConfig, float] | None:
    """Return the kernel as executed in a model of its copies, and its time, us (`labels_us`); None where it never did."""
    found = labels_us(config, measurement, call_us, copies)
    return next(((one, label) for one, label in found.items() if one.body == config.body and one.op == config.op), None)
