"""Says in how many copies a node is measured: side by side in one model, as it finds its weights in the model that it is of."""

from __future__ import annotations

import math

from edgeplan.graph.nodes import NodeConfig

#: Weights of all copies; more lies beyond every cache anyway.
MOST_WEIGHT_BYTES = 80 << 20
#: A node that moves more than this finds its activations in no cache of its core: each copy has its own.
APART_BYTES = 256 << 10
#: Activations of all copies where they lie apart, and from where on two copies are enough.
_MOST_APART_BYTES, _LARGE_BYTES = 24_000_000, 12_000_000
#: A node is small below so many bytes; so many copies make its time a matter of tens of nanoseconds.
_SMALL_BYTES, _LEAST_COPIES = 200_000, 24
#: Most copies of nodes with weights below and from 64 KiB, and of those whose activations lie apart and outweigh their weights.
_MOST_COPIES, _MOST_HEAVY_COPIES, _HEAVY_BYTES, _MOST_APART_COPIES = 48, 512, 64 << 10, 8
#: Multiplications of a run, about: what computes for long needs no copies to be seen, and waits for no weights.
_MOST_WORK = 1_000_000_000


def apart(config: NodeConfig) -> bool:
    """Tell whether each copy has activations of its own."""
    return config.activation_bytes > APART_BYTES


def copies_of(config: NodeConfig, context_bytes: int) -> int:
    """Return the number of copies that pass as much through the caches as the model around does, or more.

    Args:
        config: the node.
        context_bytes: of the model (`ExecutedModel`).
    """
    weights, activations = config.weight_bytes, config.activation_bytes
    most = _MOST_HEAVY_COPIES if weights >= _HEAVY_BYTES else _MOST_COPIES
    copies = min(most, math.ceil(min(context_bytes, MOST_WEIGHT_BYTES) / max(1.0, weights + activations / 4)))
    if weights + activations < _SMALL_BYTES:
        copies = max(copies, _LEAST_COPIES)
    copies, least = min(copies, MOST_WEIGHT_BYTES // max(1, weights)), 1
    if apart(config):
        least = 2 if 2 * weights <= MOST_WEIGHT_BYTES else 1
        if activations >= _LARGE_BYTES:
            copies = least
        elif weights <= activations:
            copies = min(copies, _MOST_APART_COPIES, _MOST_APART_BYTES // (activations + weights))
    return max(least, min(copies, int(_MOST_WORK / _multiplications(config))))


def _multiplications(config: NodeConfig) -> float:
    """Estimate the multiplications of a product by its three operands; at least 1, and too many for a sparse one."""
    weights = max((one.elements for one in config.inputs if one and one.constant), default=0)
    read, written = (max((one.elements for one in part if one), default=0) for part in (config.inputs[:1], config.outputs))
    return max(1.0, math.sqrt(float(weights) * read * written))
