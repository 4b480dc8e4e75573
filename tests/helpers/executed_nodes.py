"""Executed nodes of a few kinds, and laws of their time that are known."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from edgeplan.graph.nodes import AttributeValue, ExecutedModel, ExecutedNode, NodeConfig, Operand
from edgeplan.predictors.nodes.features import SIZES, describe
from edgeplan.predictors.nodes.learner import Samples

Law = Callable[[NodeConfig], float]
CACHE = 32e6


def node(
    op: str, shapes: Sequence[tuple[int, ...]], result: tuple[int, ...], weights: int = 0, **attributes: AttributeValue
) -> NodeConfig:
    """A node of floats, whose last `weights` operands are constant."""
    inputs = tuple(Operand("float32", shape, constant=place >= len(shapes) - weights) for place, shape in enumerate(shapes))
    return NodeConfig(op, "", tuple(sorted(attributes.items())), inputs, (Operand("float32", result),))


def relu(elements: int) -> NodeConfig:
    return node("Relu", [(1, elements)], (1, elements))


def product(m: int, k: int, n: int) -> NodeConfig:
    return node("MatMul", [(m, k), (k, n)], (m, n), weights=1)


def transpose(rows: int, columns: int) -> NodeConfig:
    return node("Transpose", [(rows, columns)], (columns, rows), perm=(1, 0))


def law(config: NodeConfig) -> float:
    """Physics of a machine: 2 us a MB of activations, 1 us a Mflop of products, .3 us a node."""
    flops = describe(config).sizes[SIZES.index("flops")] if config.op == "MatMul" else 0.0
    return 0.3 + 2e-6 * config.activation_bytes + 1e-6 * flops + 2e-6 * config.weight_bytes


def drawn(rng: np.random.Generator, count: int, scale: float = 1.0) -> list[NodeConfig]:
    """Nodes of three kinds, of sizes over two and a half orders of magnitude."""

    def size(low: float, high: float) -> int:
        return max(1, int(scale * 2 ** rng.uniform(low, high)))

    makers = (
        lambda: relu(size(8, 17)),
        lambda: product(size(0, 6), size(3, 8), size(3, 8)),
        lambda: transpose(size(3, 8), size(3, 8)),
    )
    return [makers[place % 3]() for place in range(count)]


def samples(configs: Sequence[NodeConfig], of: Law = law, rng: np.random.Generator | None = None, models: int = 20) -> Samples:
    """Samples by a law, noisy by 3 % where a generator is given, of so many models in turn."""
    us = [of(config) * (float(np.exp(rng.normal(0, 0.03))) if rng else 1.0) for config in configs]
    return Samples.of(configs, [1e6] * len(configs), us, [f"m{place % models}" for place in range(len(configs))])


def model(name: str, configs: Sequence[NodeConfig], context_bytes: int = 1_000_000, times: int = 1) -> ExecutedModel:
    nodes = (ExecutedNode(f"{config.op}{place}", config, (), times) for place, config in enumerate(configs))
    return ExecutedModel(name, tuple(nodes), context_bytes, "an engine")


def key(config: NodeConfig) -> str:
    return describe(config).key
