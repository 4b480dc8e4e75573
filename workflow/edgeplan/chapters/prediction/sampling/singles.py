"""Draws models of a single operator, for kinds that no carrier shows: the bandwidth-bound family, norms, products.

Every operator that says how one is drawn (`OperatorSpec.single`) is, so many times, each under a seed of its own: another
operator, or more models of each, leave the others as they are. Feature maps span what models hold, from a launch's worth of
bytes to beyond the caches: the n-th of an operator lies in the n-th part of that range.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random
from types import MappingProxyType

from edgeplan.graph.ir import Graph, Operator, Shape, Tensor
from edgeplan.graph.operators.registry import SPECS
from edgeplan.graph.operators.singles import Draw

#: Elements of the feature maps.
_ELEMENTS = (1_000, 3_000_000)
_SIZES = (1, 2, 4, 7, 8, 13, 14, 20, 28, 40, 56, 80, 112, 160)
_CHANNELS = (4, 2048)
#: Operators whose work grows faster than their bytes are drawn on smaller maps.
_MOST_HEAVY_ELEMENTS = 200_000
_HEAVY = frozenset({"ConvTranspose", "MatMul"})


def single_graphs(seed: int, count: int) -> Iterator[Graph]:
    """Build `count` models of each operator, the same for the same seed; the n-th of all come before the next of any.

    Args:
        seed: of all that is drawn.
        count: models of each operator.
    """
    for number in range(count):
        for op_type, spec in sorted(SPECS.items()):
            if spec.single is not None:
                yield _model(f"single-{op_type}-{number}", op_type, spec.single, seed, (number, count))


def _model(name: str, op_type: str, draw: Draw, seed: int, part: tuple[int, int]) -> Graph:
    rng = Random(f"{seed}/{name}/{part[1]}")  # noqa: S311  not cryptography
    drawn = draw(rng, _map(rng, part, _MOST_HEAVY_ELEMENTS if op_type in _HEAVY else _ELEMENTS[1]))
    node = op_type.lower()
    outputs = (node,) if not drawn.more else tuple(f"{node}_{place}" for place in range(1 + len(drawn.more)))
    inputs = tuple(f"input_{place}" for place in range(len(drawn.inputs)))
    shapes = {
        **dict(zip(inputs, drawn.inputs, strict=True)),
        **{f"{node}.{role}": shape for role, shape in drawn.weights.items()},
        **dict(zip(outputs, (drawn.output, *drawn.more), strict=True)),
    }
    weights = tuple(f"{node}.{role}" for role in drawn.weights)
    operator = Operator(node, op_type, inputs, outputs, weights, MappingProxyType(dict(drawn.attributes)))
    tensors = MappingProxyType({tensor: Tensor(tensor, shape) for tensor, shape in shapes.items()})
    return Graph(name, (operator,), inputs, outputs, tensors)


def _map(rng: Random, part: tuple[int, int], most: int) -> Shape:
    """Draw a feature map whose elements lie in a part of the range (logarithmic); half have multiples of 8 channels."""
    low, high = (math.log(bound) for bound in (_ELEMENTS[0], most))
    elements = math.exp(low + (high - low) * (part[0] + rng.random()) / part[1])
    size = rng.choice([s for s in _SIZES if _CHANNELS[0] <= elements / s**2 <= _CHANNELS[1]])
    channels = max(_CHANNELS[0], round(elements / size**2))
    return (1, max(8, channels // 8 * 8) if rng.random() < 0.5 else channels, size, size)
