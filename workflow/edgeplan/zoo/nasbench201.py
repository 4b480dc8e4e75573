"""Builds networks of NAS-Bench-201 (Dong and Yang, 2020): three stages of one searched cell, on 32 x 32 images of ten classes.

A cell has nodes 0 (input) to 3 (output); each of its six edges i -> j (i < j) carries one of five operations, and a node is the
sum of its edges. An architecture is written as in the benchmark: `|op~0|+|op~0|op~1|+|op~0|op~1|op~2|`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import lru_cache, reduce
from random import Random

from edgeplan.errors import FormatError, ParamsError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.family import Builder, Choices, Family, VariantSpec, add_classifier

OPERATIONS = ("none", "skip_connect", "nor_conv_1x1", "nor_conv_3x3", "avg_pool_3x3")
#: Edges (from, to) in the order of an architecture string.
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))
#: The cell of the benchmark's ResNet.
RESNET_CELL = "|nor_conv_3x3~0|+|none~0|nor_conv_3x3~1|+|skip_connect~0|none~1|skip_connect~2|"

_IMAGE = (1, 3, 32, 32)
_CLASSES = 10
_CHANNELS = (16, 32, 64)
_CELLS_PER_STAGE = 5
# The paper takes the 2,000 cells of highest CIFAR-10 accuracy. Those are rich in 3 x 3 convolutions: 97.5 M multiply-adds on
# average, where all cells have 54.9 M. Accuracies are not at hand, so the first 2,000 cells are drawn with a weight that grows
# by this factor with each 3 x 3 convolution, which gives the paper's average.
_CONV3X3_WEIGHT = 4.0
_POOL = 2000

Cell = tuple[str, ...]


def parse_cell(text: str) -> Cell:
    """Return the six operations of an architecture string, in the order of `EDGES`."""
    found = tuple(part for node in text.split("+") for part in node.strip("|").split("|"))
    operations = tuple(part.partition("~")[0] for part in found)
    if len(found) != len(EDGES) or format_cell(operations) != text or not set(operations) <= set(OPERATIONS):
        raise FormatError("not a NAS-Bench-201 architecture", where=text, next_step=f"write it like {RESNET_CELL}")
    return operations


def format_cell(cell: Cell) -> str:
    """Return the architecture string of six operations."""
    parts = iter(f"{op}~{edge[0]}" for op, edge in zip(cell, EDGES, strict=False))
    return "+".join("|" + "|".join(itertools.islice(parts, node)) + "|" for node in (1, 2, 3))


def prune_cell(cell: Cell) -> Cell:
    """Return the cell with `none` on every edge that the output does not see; all `none` where no path joins its ends."""
    alive = {edge for op, edge in zip(cell, EDGES, strict=True) if op != "none"}
    from_input, to_output = {0}, {3}
    for node in (1, 2, 3):
        if any((i, node) in alive for i in from_input):
            from_input.add(node)
    for node in (2, 1, 0):
        if any((node, j) in alive for j in to_output):
            to_output.add(node)
    return tuple(
        op if i in from_input and j in to_output and op != "none" else "none" for op, (i, j) in zip(cell, EDGES, strict=True)
    )


def nasbench201(name: str, architecture: str = RESNET_CELL) -> Graph:
    """Build the network of an architecture string: stem, 3 x 5 cells of 16, 32, 64 channels, residual blocks between stages.

    Edges of `none`, and edges that reach the output only through them, are left out.
    """
    cell = prune_cell(parse_cell(architecture))
    if set(cell) == {"none"}:
        what = "the cell's output does not depend on its input"
        raise FormatError(what, where=architecture, next_step="use another architecture")
    b = GraphBuilder(name, _IMAGE)
    x = b.conv_bn(b.input, _CHANNELS[0], 3, act="")
    for stage, channels in enumerate(_CHANNELS):
        if stage > 0:
            x = _reduction(b, x, channels)
        for _ in range(_CELLS_PER_STAGE):
            x = _cell(b, x, cell)
    return b.build(add_classifier(b, b.relu(b.bn(x)), _CLASSES))


def _reduction(b: GraphBuilder, x: str, channels: int) -> str:
    y = _relu_conv_bn(b, _relu_conv_bn(b, x, channels, 3, 2), channels, 3)
    return b.add(b.conv(b.avgpool(x, 2, 2), channels, 1), y)


def _cell(b: GraphBuilder, x: str, cell: Cell) -> str:
    nodes = [x]
    for node in (1, 2, 3):
        terms = [_edge(b, nodes[i], op) for op, (i, j) in zip(cell, EDGES, strict=True) if j == node and op != "none"]
        nodes.append(reduce(b.add, terms) if terms else "")  # a node without edges feeds none either
    return nodes[-1]


def _edge(b: GraphBuilder, x: str, operation: str) -> str:
    if operation == "avg_pool_3x3":
        return b.avgpool(x, 3, 1, 1)
    kernel = {"nor_conv_1x1": 1, "nor_conv_3x3": 3}.get(operation)
    return _relu_conv_bn(b, x, b.channels(x), kernel) if kernel else x


def _relu_conv_bn(b: GraphBuilder, x: str, channels: int, kernel: int, stride: int = 1) -> str:
    return b.conv_bn(b.relu(x), channels, kernel, stride, act="")


def _build_base(_: Choices, name: str) -> Graph:
    return nasbench201(name)


@dataclass(frozen=True)
class CellFamily(Family):
    """Draws variants of NAS-Bench-201: they are distinct cells; channels and kernel sizes stay."""

    id: str = "nasbench201"
    paper_name: str = "NASBench201"
    base_name: str = "nasbench201_resnet"
    builder: Builder = _build_base

    def variant(self, seed: int, index: int) -> VariantSpec:
        """Return cell number `index` in the order of `seed` as a variant."""
        order = cell_order(seed)
        if not 0 <= index < len(order):
            what = f"NASBench201 has {len(order)} distinct cells, asked for number {index}"
            raise ParamsError(what, next_step=f"set the variants per family to {len(order)} or less")
        return VariantSpec(self.id, self.base_name, seed, index, cell=order[index])

    def build(self, spec: VariantSpec) -> Graph:
        """Build the graph of a cell."""
        return nasbench201(spec.name, spec.cell)


@lru_cache(maxsize=8)
def cell_order(seed: int) -> tuple[str, ...]:
    """Return every distinct working cell once: first the paper's number of them, rich in 3 x 3 convolutions, then others."""
    random = Random(f"{seed}/nasbench201")  # noqa: S311 - not cryptography
    pruned = {prune_cell(cell) for cell in itertools.product(OPERATIONS, repeat=len(EDGES))}
    cells = sorted(format_cell(cell) for cell in pruned if set(cell) != {"none"})
    # Weighted sampling without replacement (Efraimidis and Spirakis, 2006): the largest u^(1/w) come first.
    keys = {cell: random.random() ** (_CONV3X3_WEIGHT ** -cell.count("nor_conv_3x3")) for cell in cells}
    order = sorted(cells, key=keys.__getitem__, reverse=True)
    pool = order[:_POOL]
    random.shuffle(pool)  # so that the average does not depend on how many of them are taken
    return (*pool, *order[_POOL:])
