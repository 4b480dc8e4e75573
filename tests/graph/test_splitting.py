"""Algorithm 1 on small graphs whose kernels are known."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import Alignments, Contexts, FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import split, split_operators


def types(graph: Graph, rules: FusionRules) -> list[str]:
    return [kernel.config.type for kernel in split(graph, rules)]


def rules(*fused: str, **more: object) -> FusionRules:
    return FusionRules.model_validate({"format_version": 1, "pairs": dict.fromkeys(fused, True), **more})


def residual(*, shortcut: bool = False) -> Graph:
    b = GraphBuilder("residual", (1, 16, 8, 8))
    x = b.maxpool(b.input, 2, 2)
    y = b.bn(b.conv(x, 16, 3))
    z = b.bn(b.conv(x, 16, 1)) if shortcut else x
    return b.build(b.gap(b.relu(b.add(y, z))))


def test_a_chain_takes_the_type_of_its_first_operator() -> None:
    b = GraphBuilder("chain", (1, 16, 8, 8))
    graph = b.build(b.relu(b.conv_bn(b.input, 16, 3)))
    assert types(graph, rules("conv_bn", "conv_relu", "relu_relu")) == ["conv++bn++relu++relu"]
    assert types(graph, rules("conv_bn", "bn_relu")) == ["conv++bn", "relu", "relu"]


def test_a_rule_for_the_last_operator_comes_before_the_one_for_the_first() -> None:
    b = GraphBuilder("chain", (1, 16, 8, 8))
    graph = b.build(b.relu(b.conv_bn(b.input, 16, 3)))
    found = FusionRules(pairs={"conv_bn": True, "conv_relu": True, "conv+relu_relu": False})
    assert types(graph, found) == ["conv++bn++relu", "relu"]


def test_of_two_inbounds_the_named_side_fuses() -> None:
    graph = residual(shortcut=True)
    fused = ("conv_bn", "conv_add", "conv_relu")
    left, right = (split(graph, rules(*fused, **{"multi-inbound": side})) for side in (1, 2))
    main, shortcut = graph.operators[1].name, graph.operators[3].name
    assert [k.name for k in left if "add" in k.config.type] == [main]
    assert [k.name for k in right if "add" in k.config.type] == [shortcut]
    none = [k.config.type for k in split(graph, rules(*fused))]
    assert none == ["maxpool", "conv++bn", "conv++bn", "add", "relu", "gap"]


def test_a_kernel_that_shares_its_output_takes_in_the_one_reader_that_fuses() -> None:
    b = GraphBuilder("fork", (1, 16, 8, 8))
    x = b.add(b.maxpool(b.input, 2, 2), b.avgpool(b.input, 2, 2))
    graph = b.build(b.mul(b.conv(x, 16, 1), b.relu(x)))
    assert "add++relu" not in types(graph, rules("add_relu"))
    kernels = split(graph, rules("add_relu", sharing=("add",)))
    assert [k.config.type for k in kernels] == ["maxpool", "avgpool", "add++relu", "conv", "mul"]
    assert len(kernels[2].outputs) == 2  # the sum itself and its rectified value


def test_a_sum_that_overwrites_its_operand_waits_for_all_its_readers() -> None:
    b = GraphBuilder("block", (1, 16, 8, 8))
    x = b.maxpool(b.input, 2, 2)
    early = b.build(b.relu(b.add(b.conv(x, 16, 3), x)))
    b = GraphBuilder("block", (1, 16, 8, 8))
    x = b.maxpool(b.input, 2, 2)
    late = b.build(b.relu(b.add(b.conv(x, 16, 3), x)), b.avgpool(x, 2, 2))
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


def test_fusion_never_closes_a_cycle() -> None:
    b = GraphBuilder("cycle", (1, 16, 8, 8))
    x = b.relu(b.input)
    y = b.conv(x, 16, 3)
    graph = b.build(b.add(x, y))  # relu++add would need the convolution, which needs the relu
    found = split(graph, rules("relu_add", **{"multi-inbound": 1, "multi-outbound": 2}))
    assert [k.config.type for k in found] == ["relu", "conv", "add"]


def test_an_output_of_the_graph_is_kept() -> None:
    b = GraphBuilder("outputs", (1, 16, 8, 8))
    x = b.conv(b.input, 16, 3)
    graph = b.build(x, b.relu(x))
    assert types(graph, rules("conv_relu")) == ["conv", "relu"]


def test_duplicates_run_once_and_let_their_producer_fuse() -> None:
    b = GraphBuilder("twins", (1, 16, 8, 8))
    x = b.conv(b.input, 16, 3)
    one, other = b.relu(x), b.relu(x)
    graph = b.build(b.gap(one), b.maxpool(other, 2, 2))
    assert types(graph, rules("conv_relu")) == ["conv", "relu", "relu", "gap", "maxpool"]
    kernels = split(graph, rules("conv_relu", merges_duplicates=True))
    assert [k.config.type for k in kernels] == ["conv++relu", "gap", "maxpool"]
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
    kernels = split(b.build(aligned, b.add(other, unaligned)), found)
    assert [k.config.type for k in kernels] == ["conv", "conv", "conv++add"]
    assert kernels[-1].name == unaligned


def test_a_very_deep_graph_needs_no_recursion_and_little_time() -> None:
    b = GraphBuilder("deep", (1, 8, 8, 8))
    x = b.input
    for _ in range(5000):
        x = b.relu(x)
    assert len(split(b.build(x), rules("relu_relu"))) == 1


def test_operators_each_their_own_kernel() -> None:
    graph = residual()
    assert [k.members for k in split_operators(graph)] == [(op.name,) for op in graph.operators]
