"""Precision and recall of rules against what an engine reports."""

from __future__ import annotations

import pytest

from edgeplan.chapters.prediction.fusion.verification import averages, verify
from edgeplan.engines.base import EngineNode
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph


def network() -> Graph:
    b = GraphBuilder("network", (1, 16, 8, 8))
    x = b.conv_bn(b.input, 16, 3)
    y = b.relu(b.bn(b.maxpool(x, 2, 2)))
    return b.build(b.add(b.relu(b.conv(y, 16, 1)), y))


def node(*members: str) -> EngineNode:
    return EngineNode(members[0], "", "", members)


def test_edges_are_counted_by_pair_and_connection() -> None:
    graph = network()
    conv, bn, relu, pool, bn2, relu2, conv2, relu3, add = (op.name for op in graph.operators)
    rules = FusionRules(
        pairs={"conv_bn": True, "conv_relu": True, "bn_relu": True}, inbound={"conv_add": True}, multi_inbound=1
    )
    engine = [node(conv, bn, relu), node(pool), node(bn2), node(relu2), node(conv2, relu3), node(add)]
    found = verify(rules, [graph], lambda _: engine).set_index(["pair", "connection"])

    assert found.loc[("bn_relu", "single")].tolist()[:4] == [2, 1, 2, 1]
    assert found.loc[("bn_relu", "single"), "precision"] == pytest.approx(0.5)
    assert found.loc[("bn_relu", "single"), "recall"] == pytest.approx(1.0)
    assert found.loc[("relu_add", "multi-inbound")].tolist()[:4] == [1, 0, 1, 0]
    assert found.loc[("relu_add", "multi-outbound"), "edges"] == 1
    assert bool(found.loc[("conv_bn", "single"), "bn_folding"])
    assert not bool(found.loc[("bn_relu", "single"), "bn_folding"])

    # precision over bn_relu (1/2), conv_relu (1) and relu_add (0), recall over the first two (1, 1); folding is left out
    assert averages(found.reset_index()) == pytest.approx((0.5, 1.0))


def test_a_duplicate_that_the_engine_dropped_runs_where_its_twin_does() -> None:
    b = GraphBuilder("twins", (1, 16, 8, 8))
    x = b.conv(b.input, 16, 3)
    one, other = b.relu(x), b.relu(x)
    graph = b.build(b.gap(one), b.maxpool(other, 2, 2))
    engine = [node(x, other), *(node(op.name) for op in graph.operators[3:])]
    rules = FusionRules(pairs={"conv_relu": True}, merges_duplicates=True)
    found = verify(rules, [graph], lambda _: engine)
    row = found[found.pair == "conv_relu"].iloc[0]
    assert (row.edges, row.fused_by_engine, row.fused_by_rules, row.true_positive) == (2, 2, 2, 2)


def test_rules_and_engine_that_never_fuse_agree() -> None:
    graph = network()
    found = verify(FusionRules(pairs={}), [graph], lambda g: [node(op.name) for op in g.operators])
    assert averages(found) == (1.0, 1.0)


def test_reshapes_are_counted_apart() -> None:
    b = GraphBuilder("rows", (1, 8, 4, 4))
    graph = b.build(b.fc(b.relu(b.flatten(b.gap(b.input), name="flat"), name="r"), 10, name="fc"))
    pool, *_ = (op.name for op in graph.operators)
    engine = [node(pool), node("flat", "r"), node("fc")]
    found = verify(FusionRules(pairs={}), [graph], lambda _: engine)
    apart = found[found.reshaping]
    assert set(apart.pair) == {"gap_reshape", "reshape_relu"}
    assert apart.fused_by_engine.sum() == 1
    assert averages(found) == (1.0, 1.0)
    assert averages(found.assign(reshaping=False)) == (1.0, 0.0)
