"""Turns the models of a table into tables of kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from edgeplan.chapters.prediction.models import graphs
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.splitting import split
from edgeplan.predictors.kernel_tables import KernelTables, kernel_table


def named_graphs(table: pd.DataFrame) -> Iterator[Graph]:
    """Yield the graphs of the rows, one at a time, each called by its `model_id`."""
    for model_id, graph in zip(table["model_id"], graphs(table), strict=True):
        yield Graph(model_id, graph.operators, graph.inputs, graph.outputs, graph.tensors)


def kernels_of(table: pd.DataFrame, rules: FusionRules) -> KernelTables:
    """Return the kernels of all rows' models, split by the rules."""
    return KernelTables.of(kernel_table(graph, split(graph, rules)) for graph in named_graphs(table))
