"""Narrow models that are partitioned, and partitions drawn for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from partition_models import Saved, images

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.partitioned.program import Assignment, Split
from edgeplan.runtime.processor import Processor
from edgeplan.runtime.ranges import channels_of, why_not_split
from edgeplan.workloads.exported import ExportBuilder, Exported
from edgeplan.workloads.registry import Workload


def vgg() -> Graph:
    """VGG16, narrow, on images of 32 pixels."""
    b = GraphBuilder("vgg", (1, 3, 32, 32))
    x = b.input
    for width, count in ((16, 2), (24, 2), (32, 3), (48, 3)):
        for _ in range(count):
            x = b.relu(b.conv(x, width, 3, bias=True))
        x = b.maxpool(x, 2, 2)
    x = b.flatten(x)
    for columns in (96, 64):
        x = b.relu(b.fc(x, columns))
    return b.build(b.fc(x, 24))


def linear_layers() -> Exported:
    """Linear layers of several rows, one of stored and one of transposed weights, and a sum of both."""
    b = ExportBuilder("linear_layers")
    x = b.node("Relu", [b.node("MatMul", [b.input("x", (13, 48)), b.matrix("first", 48, 64)])])
    c = b.node("Gemm", [x, b.weight("second", (56, 64), 0.2), b.bias("second", 56)], transB=1)
    return b.build({"y": b.node("Relu", [b.node("Add", [b.node("MatMul", [c, b.matrix("third", 56, 56)]), c])])})


def embedding() -> Exported:
    """Rows of a table, picked by indices, and a linear layer of them; the table is handed out, too."""
    b = ExportBuilder("embedding")
    table = b.weight("table", (10, 24), 1.0)
    rows = b.node("Gather", [table, b.input("which", (4,), 7)])
    return b.build({"known": b.node("Identity", [table]), "y": b.node("MatMul", [rows, b.matrix("weight", 24, 40)])})


#: Name -> model.
MODELS: Mapping[str, Callable[[], Workload]] = {
    function.__name__: function for function in (vgg, images, linear_layers, embedding)
}


def saved(name: str, folder: Path) -> tuple[Path, Graph]:
    """A model as a file."""
    found = Saved(MODELS[name](), folder)
    return found.path, found.graph


def drawn(
    lowered: Lowered, layouts: Mapping[str, str], block: int, gpu: Processor, rng: np.random.Generator, split: float = 0.6
) -> list[Assignment]:
    """Where each step runs: at random, but for what the second processor refuses."""
    found: list[Assignment] = []
    for step in lowered.steps:
        if gpu.refuses(lowered, step, layouts):
            found.append(0)
        elif not why_not_split(lowered, layouts, block, step) and rng.random() < split:
            found.append(Split(int(rng.choice(range(block, channels_of(lowered, step), block)))))
        else:
            found.append(int(rng.integers(2)))
    return found
