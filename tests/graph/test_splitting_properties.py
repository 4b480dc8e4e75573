"""Whatever the graph and the rules: kernels are a partition of the operators, in an order in which they can run."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import split

KINDS = ("conv", "bn", "relu", "hswish", "add", "mul", "maxpool", "split")
PAIRS = [f"{a}_{b}" for a in KINDS for b in KINDS]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    b = GraphBuilder("random", (1, 4, 6, 6))
    tensors = [b.input]
    for what in draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=25)):
        x, y = (tensors[-1 - draw(st.integers(0, min(5, len(tensors) - 1)))] for _ in range(2))
        match what:
            case "conv":
                tensors.append(b.conv(x, 4, 3))
            case "bn":
                tensors.append(b.bn(x))
            case "maxpool":
                tensors.append(b.maxpool(x, 3, 1, 1))
            case "add":
                tensors.append(b.add(x, y))
            case "mul":
                tensors.append(b.mul(x, y))
            case "split":
                tensors.append(b.concat(b.split(x, (2, 2))))
            case _:
                tensors.append(b.activation(x, what))
    outputs = draw(st.sets(st.sampled_from(tensors[1:]), max_size=2))
    return b.build(*sorted(outputs | {tensors[-1]}))


@st.composite
def rule_sets(draw: st.DrawFn) -> FusionRules:
    document: dict[str, Any] = {
        "format_version": 1,
        "pairs": dict.fromkeys(draw(st.sets(st.sampled_from(PAIRS))), True),
        "inbound": draw(st.dictionaries(st.sampled_from([p for p in PAIRS if p.endswith(("_add", "_mul"))]), st.booleans())),
        "multi-inbound": draw(st.integers(0, 2)),
        "multi-outbound": draw(st.integers(0, 2)),
        "merges_duplicates": draw(st.booleans()),
        "patterns": draw(st.sampled_from([[], [["relu", "bn", "relu"]], [["conv", "maxpool"], ["split", "concat"]]])),
    }
    return FusionRules.model_validate(document)


@settings(max_examples=examples(300), deadline=None)
@given(graphs(), rule_sets())
def test_kernels_partition_the_operators_in_a_runnable_order(graph: Graph, rules: FusionRules) -> None:
    kernels = split(graph, rules)
    members = [name for kernel in kernels for name in kernel.members]
    assert sorted(members) == sorted(op.name for op in graph.operators)

    available = set(graph.inputs)
    for kernel in kernels:
        assert set(kernel.inputs) <= available
        available |= set(kernel.outputs)
    assert set(graph.outputs) <= available
    assert split(graph, rules) == kernels
