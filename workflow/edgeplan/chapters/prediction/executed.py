"""Keeps what engines execute of models as one long table: a row a node, in the order of execution."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import pandas as pd

from edgeplan.graph.nodes import ExecutedModel, ExecutedNode, NodeConfig

#: What models are for: published networks, variants that calibrate, models as exporters write them, variants that are
#: evaluated and these operator by operator, held-out variants that only report, and the convolutions of Figures 7 and 8, of
#: the comparison with what is fused, and of random sampling.
PRIOR, CALIBRATING, EXPORTED, EVALUATED, OPERATORS = "prior", "calibrating", "exported", "evaluated", "operators"
FROZEN, SWEEP, CONV_CHECK, RANDOM = "frozen", "sweep", "conv_check", "random"
#: Parts that predictors learn from.
LEARNT = (PRIOR, CALIBRATING, EXPORTED)
#: Samplers of measured nodes: what is learnt from, and nodes that only report; others are named as their part.
ADAPTIVE, HELD_OUT = "adaptive", "frozen"
COLUMNS = ("model_id", "family", "part", "name", "config", "times", "context_bytes", "told_by")


def node_rows(model: ExecutedModel, family: str, part: str) -> Iterator[dict[str, object]]:
    """Yield the rows of one model (`COLUMNS`)."""
    for node in model.nodes:
        yield dict(
            zip(
                COLUMNS,
                (model.name, family, part, node.name, node.config.to_json(), node.times, model.context_bytes, model.told_by),
                strict=True,
            )
        )


def executed_models(nodes: pd.DataFrame, parts: Iterable[str]) -> Mapping[str, ExecutedModel]:
    """Return the models of some parts by `model_id`, in the table's order."""
    read = cache(NodeConfig.from_json)
    found = {}
    for name, rows in nodes[nodes["part"].isin(list(parts))].groupby("model_id", sort=False):
        executed = tuple(
            ExecutedNode(str(own), read(config), times=int(times))
            for own, config, times in zip(rows["name"], rows["config"], rows["times"], strict=True)
        )
        found[str(name)] = ExecutedModel(str(name), executed, int(rows["context_bytes"].iloc[0]), str(rows["told_by"].iloc[0]))
    return found
