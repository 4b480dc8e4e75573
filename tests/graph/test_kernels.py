"""Algorithm 1 on small graphs whose kernels are known."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from partition_models import meshes

from depth import examples
from edgeplan.graph import kinds
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import Alignments, Contexts, FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import split_kernels


def types(graph: Graph, rules: FusionRules) -> list[str]:
    return [kernel.type for kernel in split_kernels(graph, rules)]


def rules(*fused: str, **more: object) -> FusionRules:
    return FusionRules.model_validate({"format_version": 1, "pairs": dict.fromkeys(fused, True), **more})


def test_a_chain_takes_the_type_of_its_first_operator_unless_there_is_a_rule_for_the_last() -> None:
    b = GraphBuilder("chain", (1, 16, 8, 8))
    graph = b.build(b.relu(b.conv_bn(b.input, 16, 3)))
    assert types(graph, rules("conv_bn", "conv_relu", "relu_relu")) == ["conv++bn++relu++relu"]
    assert types(graph, rules("conv_bn", "bn_relu")) == ["conv++bn", "relu", "relu"]
    found = FusionRules(pairs={"conv_bn": True, "conv_relu": True, "conv+relu_relu": False})
    assert types(graph, found) == ["conv++bn++relu", "relu"]


def test_of_two_inbounds_the_named_side_fuses() -> None:
    b = GraphBuilder("residual", (1, 16, 8, 8))
    x = b.maxpool(b.input, 2, 2)
    graph = b.build(b.gap(b.relu(b.add(b.bn(b.conv(x, 16, 3)), b.bn(b.conv(x, 16, 1))))))
    fused = ("conv_bn", "conv_add", "conv_relu")
    left, right = (split_kernels(graph, rules(*fused, **{"multi-inbound": side})) for side in (1, 2))
    main, shortcut = graph.operators[1].name, graph.operators[3].name
    assert [k.name for k in left if "add" in k.type] == [main]
    assert [k.name for k in right if "add" in k.type] == [shortcut]
    none = [k.type for k in split_kernels(graph, rules(*fused))]
    assert none == ["maxpool", "conv++bn", "conv++bn", "add", "relu", "gap"]


def test_a_kernel_that_shares_its_output_takes_in_the_one_reader_that_fuses() -> None:
    b = GraphBuilder("fork", (1, 16, 8, 8))
    x = b.add(b.maxpool(b.input, 2, 2), b.avgpool(b.input, 2, 2))
    graph = b.build(b.mul(b.conv(x, 16, 1), b.relu(x)))
    assert "add++relu" not in types(graph, rules("add_relu"))
    kernels = split_kernels(graph, rules("add_relu", sharing=("add",)))
    assert [k.type for k in kernels] == ["maxpool", "avgpool", "add++relu", "conv", "mul"]
    assert len(kernels[2].outputs) == 2  # the sum itself and its rectified value


def test_a_sum_that_overwrites_its_operand_waits_for_all_its_readers() -> None:
    b = GraphBuilder("block", (1, 16, 8, 8))
    x = b.maxpool(b.input, 2, 2)
    end = b.relu(b.add(b.conv(x, 16, 3), x))
    early, late = b.build(end), b.build(end, b.avgpool(x, 2, 2))
    told = rules("conv_add", sums_overwrite=True, **{"multi-inbound": 1})
    assert types(early, told) == ["maxpool", "conv++add", "relu"]
    assert types(late, told) == ["maxpool", "conv", "add", "relu", "avgpool"]


def test_what_may_not_follow_a_sum_behind_a_convolution_does_not_follow_one_that_stayed_apart() -> None:
    b = GraphBuilder("sums", (1, 16, 8, 8))
    x = b.maxpool(b.input, 2, 2)
    graph = b.build(b.add(b.add(b.conv(x, 16, 3), x), b.avgpool(b.input, 2, 2)), b.gap(x))
    told = {"conv_add": True, "add_add": True, "conv+add_add": False}
    found = rules(sums_overwrite=True, **{"multi-inbound": 1, "pairs": told})
    assert [t for t in types(graph, found) if "add" in t] == ["add", "add"]


def test_an_operator_read_twice_does_not_fuse_unless_told() -> None:
    b = GraphBuilder("fork", (1, 16, 8, 8))
    x = b.conv(b.input, 16, 3)
    graph = b.build(b.add(b.relu(x), b.activation(x, "hswish")))
    fused = ("conv_relu", "conv_hswish")
    assert types(graph, rules(*fused)) == ["conv", "relu", "hswish", "add"]
    assert types(graph, rules(*fused, **{"multi-outbound": 1})) == ["conv++relu", "hswish", "add"]
    assert types(graph, rules(*fused, **{"multi-outbound": 2})) == ["conv++hswish", "relu", "add"]


def test_duplicates_run_once_and_let_their_producer_fuse() -> None:
    b = GraphBuilder("twins", (1, 16, 8, 8))
    x = b.conv(b.input, 16, 3)
    one, other = b.relu(x), b.relu(x)
    graph = b.build(b.gap(one), b.maxpool(other, 2, 2))
    assert types(graph, rules("conv_relu")) == ["conv", "relu", "relu", "gap", "maxpool"]
    kernels = split_kernels(graph, rules("conv_relu", merges_duplicates=True))
    assert [k.type for k in kernels] == ["conv++relu", "gap", "maxpool"]
    assert kernels[0].members == (x, one, other)
    assert set(kernels[0].outputs) == {one, other}


def test_a_pattern_runs_as_one() -> None:
    b = GraphBuilder("shuffle", (1, 16, 8, 8))
    graph = b.build(b.relu(b.channel_shuffle(b.relu(b.input), 2)))
    chain = ("reshape", "transpose", "reshape")
    assert types(graph, rules(patterns=[chain])) == ["relu", "reshape++transpose++reshape", "relu"]
    assert types(graph, rules()) == ["relu", *chain, "relu"]


def test_contexts_follow_the_channels_a_convolution_reads_and_the_worst_of_operands() -> None:
    names = Alignments().names()
    table = dict.fromkeys(names, "1") | {"16": "16"}
    contexts = Contexts(conv=table, dwconv=table, carried=table, order=("16", "1"))
    found = FusionRules(
        pairs={"conv_relu": {"16": True, "1": False}, "bn_relu": {"16": True, "1": False}},
        inbound={"conv_add": {"16|16": True, "16|1": False, "1|16": True, "1|1": True}},
        multi_inbound=1,
        contexts=contexts,
    )
    for channels, expected in ((32, ["conv++relu", "maxpool", "bn++relu"]), (24, ["conv", "relu", "maxpool", "bn", "relu"])):
        b = GraphBuilder("context", (1, channels, 8, 8))
        x = b.relu(b.conv(b.input, 32, 1))
        assert types(b.build(b.relu(b.bn(b.maxpool(x, 2, 2)))), found) == expected
    b = GraphBuilder("operands", (1, 32, 8, 8))
    aligned = b.conv(b.input, 24, 1)
    unaligned = b.conv(aligned, 24, 1)
    other = b.conv(b.input, 24, 3)
    kernels = split_kernels(b.build(aligned, b.add(other, unaligned)), found)
    assert [k.type for k in kernels] == ["conv", "conv", "conv++add"]
    assert kernels[-1].name == unaligned


def test_a_very_deep_graph_needs_no_recursion_and_little_time() -> None:
    b = GraphBuilder("deep", (1, 8, 8, 8))
    x = b.input
    for _ in range(5000):
        x = b.relu(x)
    assert len(split_kernels(b.build(x), rules("relu_relu"))) == 1


KINDS = ("conv", "relu", "add", "mul", "maxpool", "concat", "dwconv", "reshape")
PAIRS = [f"{a}_{b}" for a in KINDS for b in KINDS]


@st.composite
def rule_sets(draw: st.DrawFn) -> FusionRules:
    document: dict[str, Any] = {
        "format_version": 1,
        "pairs": dict.fromkeys(draw(st.sets(st.sampled_from(PAIRS))), True),
        "inbound": draw(st.dictionaries(st.sampled_from([p for p in PAIRS if p.endswith(("_add", "_mul"))]), st.booleans())),
        "multi-inbound": draw(st.integers(0, 2)),
        "multi-outbound": draw(st.integers(0, 2)),
        "merges_duplicates": draw(st.booleans()),
        "patterns": draw(st.sampled_from([[], [["reshape", "relu", "reshape"]], [["conv", "maxpool"], ["concat", "conv"]]])),
    }
    return FusionRules.model_validate(document)


@settings(max_examples=examples(300), deadline=None)
@given(meshes(), rule_sets())
def test_kernels_partition_the_operators_in_a_runnable_order(graph: Graph, rules: FusionRules) -> None:
    kernels = split_kernels(graph, rules)
    members = [name for kernel in kernels for name in kernel.members]
    assert sorted(members) == sorted(op.name for op in graph.operators)

    available = set(graph.inputs)
    for kernel in kernels:
        assert set(kernel.inputs) <= available
        available |= set(kernel.outputs)
    assert set(graph.outputs) <= available
    assert split_kernels(graph, rules) == kernels


def _graph() -> Graph:
    b = GraphBuilder("small", (1, 4, 8, 8))
    x = b.conv(b.input, 6, 3, 2, bias=True, name="conv")
    x = b.relu(b.bn(x, name="bn"), name="relu")
    x = b.dwconv(x, 5, name="dw")
    x = b.conv(x, 6, 1, groups=2, name="grouped")
    x = b.add(x, x, name="add")
    x = b.fc(b.flatten(b.gap(x, name="gap"), name="flat"), 10, name="fc")
    return b.build(x)


def test_multiply_adds_and_parameters_by_hand() -> None:
    """Nothing is counted of what only moves or adds; running statistics are no parameters."""
    graph = _graph()
    macs = {op.name: count for op in graph.operators if (count := kinds.operator_macs(graph, op))}
    assert macs == {"conv": 6 * 4 * 4 * (4 * 3 * 3), "dw": 6 * 4 * 4 * (5 * 5), "grouped": 6 * 4 * 4 * 3, "fc": 10 * 6}
    parameters = {op.name: kinds.operator_parameters(graph, op) for op in graph.operators if op.weights}
    assert parameters == {"conv": 6 * 4 * 9 + 6, "bn": 2 * 6, "dw": 6 * 25, "grouped": 6 * 3, "fc": 60 + 10}
    assert (kinds.graph_macs(graph), kinds.graph_parameters(graph)) == (sum(macs.values()), sum(parameters.values()))


def test_memory_access_counts_every_weight_and_repeated_input() -> None:
    image, mapped = 4 * 8 * 8, 6 * 4 * 4
    weights = {"conv": 6 * 4 * 9 + 6, "bn": 4 * 6, "dw": 6 * 25, "grouped": 6 * 3, "fc": 60 + 10}
    maps = image + mapped + 5 * 2 * mapped + mapped + (mapped + 6) + (6 + 6) + (6 + 10)  # the sum reads one map twice
    assert kinds.graph_memory_access_bytes(_graph()) == 4 * (maps + sum(weights.values()))


def test_lstm_by_hand() -> None:
    steps, batch, features, hidden = 7, 2, 5, 3
    b = GraphBuilder("sequence", (steps, batch, features))
    graph = b.build(b.lstm(b.input, hidden, name="forward"), b.lstm(b.input, hidden, bidirectional=True, name="both"))
    forward, both = graph.by_name["forward"], graph.by_name["both"]
    assert kinds.operator_macs(graph, forward) == steps * batch * 4 * hidden * (features + hidden)
    assert kinds.operator_macs(graph, both) == 2 * kinds.operator_macs(graph, forward)
    assert kinds.operator_parameters(graph, both) == 2 * 4 * hidden * (features + hidden + 2)
    assert graph.shape("both") == (steps, 2, batch, hidden)
