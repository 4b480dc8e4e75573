"""Measures a kernel as the paper does: alone, as a black box, with the cost of its boundary removed.

A kernel measured alone pays for the call and, on engines with blocked layouts, for converting its input and output. Chains
of one and three equal kernels tell these apart: the boundary is `T1 - (T3 - T1) / 2`. It is fitted as a constant plus a cost
per byte in and out, and taken off every isolated time.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import scipy

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import Kernel, KernelConfig
from edgeplan.measurement.records import Measurement

Boundary = npt.NDArray[np.float64]

_CHAIN = (1, 3)
_CHAIN_SIZES = (56, 28, 14, 7)
_BYTES = 4
#: A kernel costs at least this share of its isolated time, however large the boundary fitted for it.
_LEAST_SHARE = 0.05


def extract(graph: Graph, kernel: Kernel) -> Graph:
    """Return the kernel as a graph of its own; what it reads from outside becomes graph inputs."""
    inside = set(kernel.members)
    ops = tuple(op for op in graph.operators if op.name in inside)
    names = {n for op in ops for n in (*op.inputs, *op.outputs, *op.weights)}
    tensors = {name: graph.tensors[name] for name in sorted(names)}
    return Graph(kernel.config.kind, ops, kernel.inputs, kernel.outputs, MappingProxyType(tensors))


def chains(count: int, seed: int) -> list[tuple[Graph, Graph]]:
    """Return pairs of chains, of one and of three equal convolutions, over seeded shapes."""
    rng = Random(f"{seed}/chains")  # noqa: S311  not cryptography
    pairs = []
    for _ in range(count):
        size = rng.choice(_CHAIN_SIZES)
        channels, kernel = rng.randint(8, 16 * 56 // size), rng.choice((1, 3))
        pair = []
        for length in _CHAIN:
            b = GraphBuilder("chain", (1, channels, size, size))
            x = b.input
            for _ in range(length):
                x = b.relu(b.conv(x, channels, kernel))
            pair.append(b.build(x))
        pairs.append((pair[0], pair[1]))
    return pairs


def _sizes(graph: Graph) -> tuple[float, float]:
    read = sum(graph.tensors[i].elements for i in graph.inputs) * _BYTES
    written = sum(graph.tensors[o].elements for o in graph.outputs) * _BYTES
    return float(read), float(written)


def fit_boundary(pairs: Sequence[tuple[Graph, Graph]], times: Sequence[tuple[Measurement, Measurement]]) -> Boundary:
    """Fit the boundary's constant (us) and its cost per byte read and written (us), none below zero."""
    design, boundary = [], []
    for (single, _), (one, three) in zip(pairs, times, strict=True):
        slope = (three.latency_us - one.latency_us) / (_CHAIN[1] - _CHAIN[0])
        design.append([1.0, *_sizes(single)])
        boundary.append(one.latency_us - _CHAIN[0] * slope)
    solution, _ = scipy.optimize.nnls(np.array(design), np.array(boundary))
    return np.asarray(solution)


def isolated_label(graph: Graph, measurement: Measurement, boundary: Boundary) -> float:
    """Return the time of an extracted kernel without its boundary, microseconds."""
    cost = float(boundary @ np.array([1.0, *_sizes(graph)]))
    return max(measurement.latency_us - cost, _LEAST_SHARE * measurement.latency_us)


def isolated_row(config: KernelConfig, subject: str, latency_us: float, noise: float) -> dict[str, object]:
    """Return a row of the training table; a black box tells no implementation or layout."""
    return {
        "subject": subject,
        "mode": "isolated",
        "kind": config.kind,
        "type": config.type,
        "config": config.to_json(),
        "implementation": "",
        "input_state": "",
        "input_layout": "",
        "output_layout": "",
        "latency_us": latency_us,
        "noise": noise,
    }
