"""Kernels: Algorithm 1 on small graphs, and what describes kernels builds them again, in any number of copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from exported_forms import EXPORTED
from hypothesis import given, settings
from hypothesis import strategies as st
from model_file_runs import made, node, onnxruntime_outputs
from partition_models import meshes
from random_graphs import drawn
from written_forms import EQUAL

from depth import MANY, examples
from edgeplan.engines.base import random_inputs
from edgeplan.errors import FormatError, ModelError
from edgeplan.graph import kinds
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import Alignments, Contexts, FusionRules
from edgeplan.graph.ir import Graph, Tensor
from edgeplan.graph.kernel_nodes import AROUND, REORDER, copies_graph, node_config, reorder_config
from edgeplan.graph.kernels import split_kernels
from edgeplan.graph.nodes import NodeConfig, Operand
from edgeplan.graph.onnx.read import from_onnx
from edgeplan.graph.onnx.write import to_onnx
from edgeplan.zoo import prior_models
from edgeplan.zoo.cold_start_models import COLD_START_MODELS


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


# Kernels as executed nodes.


_TOLERANCE = 1e-4
_RULES = FusionRules(
    pairs={"conv_bn": True, "bn_relu": True, "conv_relu": True, "conv_add": True, "add_relu": True, "fc_relu": True},
    multi_inbound=1,
)
_ZOO = ("shufflenetv2_0.5", "resnet18", "mobilenetv2_1.0", "mobilenetv3_small", "googlenet", "crnn_lite")


def _residual(name: str = "") -> Graph:
    """Return a convolution with all that engines fuse behind it, and another like it."""
    b = GraphBuilder("residual", (1, 8, 6, 6))
    x = b.input
    for step in ("a", "b"):
        y = b.bn(b.conv(x, 8, 3, name=f"{name}{step}.conv"), name=f"{name}{step}.bn")
        x = b.relu(b.add(y, x, name=f"{name}{step}.add"), name=f"{name}{step}.relu")
    return b.build(x)


_MEMBERS = ("conv", "bn", "add", "relu")


def test_a_kernel_is_described_by_its_anchor_in_onnxs_order() -> None:
    config = node_config(_residual(), [f"a.{name}" for name in _MEMBERS], "nhwc", "nhwc")
    assert (config.op, config.domain) == ("Conv", "fused")
    assert config.attribute("fused", "") == ("BatchNormalization", "Add", "Relu")
    assert config.attribute("kernel_shape", ()) == (3, 3)
    assert config.attribute("input_layout", "") == "nhwc"
    image = Operand("float32", (1, 8, 6, 6))
    assert config.inputs == (image, Operand("float32", (8, 8, 3, 3), constant=True))  # what is added is what is read
    assert config.outputs == (image,)
    assert config.weight_bytes == 4 * 8 * 8 * 9


def test_small_constants_are_operands_by_value() -> None:
    b = GraphBuilder("reshaped", (2, 6))
    config = node_config(b.build(b.reshape(b.input, (3, 4), name="r")), ["r"])
    assert config.inputs == (Operand("float32", (2, 6)), Operand("int64", (2,), constant=True, values=(3, 4)))
    assert (config.domain, config.attributes) == ("", ())


def test_equal_kernels_are_equal_whatever_they_are_called() -> None:
    configs = {
        node_config(_residual(name), [f"{name}{step}.{member}" for member in _MEMBERS])
        for name in ("", "other.")
        for step in ("a", "b")
    }
    assert len(configs) == 1
    assert len({config.to_json() for config in configs}) == 1


def test_what_a_kernel_computes_tells_it_apart() -> None:
    graph = _residual()
    members = [[f"a.{name}" for name in _MEMBERS[:count]] for count in (1, 2, 3, 4)]
    assert len({node_config(graph, names) for names in members}) == len(members)
    assert node_config(graph, members[0], "nhwc") != node_config(graph, members[0], "nchw")


@pytest.mark.parametrize("around", [False, True])
def test_copies_have_weights_of_their_own_and_compute_apart(around: bool) -> None:
    config = node_config(_residual(), [f"a.{name}" for name in _MEMBERS])
    graph = copies_graph(config, 5, around=around)
    weights = [name for op in graph.operators for name in op.weights]
    assert len(set(weights)) == len(weights) == 5 * 5  # of a convolution and a batch normalisation
    assert Counter(op.op_type for op in graph.operators if not op.name.startswith(AROUND)) == dict.fromkeys(
        ("Conv", "BatchNormalization", "Add", "Relu"), 5
    )
    b = GraphBuilder("relu", (1, 8))
    bare = copies_graph(node_config(b.build(b.relu(b.input)), ["relu_0"]), 5, around=around)
    assert len({op.inputs for op in bare.operators if op.op_type == "Relu"}) == 5  # else engines compute one
    assert (len(graph.inputs), len(graph.outputs)) == ((1, 1) if around else (1, 5))
    assert len(bare.inputs) == len(bare.outputs) == (1 if around else 5)


def test_large_activations_lie_apart() -> None:
    config = node_config(_residual(), ["a.conv"])
    assert len({op.inputs for op in copies_graph(config, 3).operators}) == 1
    assert len({op.inputs for op in copies_graph(config, 3, apart=True).operators}) == 3


def test_copies_read_the_layout_that_the_kernel_reads() -> None:
    graph = _residual()
    led = copies_graph(node_config(graph, ["a.add"], "acdb", "acdb"), 2, around=True)
    plain = copies_graph(node_config(graph, ["a.add"], "abcd", "abcd"), 2, around=True)
    assert {"Conv"} <= {op.op_type for op in led.operators}
    assert not {"Conv"} & {op.op_type for op in plain.operators}


def test_a_conversion_is_described_and_provoked() -> None:
    tensor = Tensor("t", (1, 32, 4, 4))
    config = reorder_config(tensor, "nchw", "nhwc")
    assert (config.op, config.attributes) == (REORDER, (("from", "nchw"), ("to", "nhwc")))
    assert config.inputs == config.outputs == (Operand("float32", (1, 32, 4, 4)),)
    graph = copies_graph(config, 3)
    assert [graph.shape(name) for name in (*graph.inputs, *graph.outputs)] == [(1, 32, 4, 4)] * 4
    assert config == reorder_config(Tensor("other", tensor.shape), "nchw", "nhwc")


def test_what_is_no_kernel_of_a_graph_is_refused() -> None:
    image = Operand("float32", (1, 4))
    for body in ("", "{}", "[1]", "not json", '{"inputs":[],"operators":[["Relu"]],"outputs":[],"tensors":{}}'):
        with pytest.raises(FormatError, match="no kernel of a graph") as caught:
            copies_graph(NodeConfig("Gemm", inputs=(image, Operand("float32", (4, 4), constant=True)), body=body), 1)
        assert caught.value.next_step


def test_an_operator_on_activations_is_built_without_a_body() -> None:
    x = Operand("float32", (2, 8))
    graph = copies_graph(NodeConfig("LeakyRelu", "", (("alpha", 0.5),), (x,), (x,)), 2)
    given = {name: -np.ones((2, 8), np.float32) for name in graph.inputs}
    assert [value.min() for value in onnxruntime_outputs(to_onnx(graph), given)] == [-0.5, -0.5]


def _forms() -> Iterator[Graph]:
    for model in (*(form.model() for form in (EQUAL | EXPORTED).values()), *(drawn(seed, Counter()) for seed in range(30))):
        with suppress(ModelError):  # other tests say which
            yield from_onnx(model)


def test_operators_of_every_form_run_in_copies() -> None:
    """As ONNX Runtime reads them: in their places, of their types, and with all their attributes."""
    configs = dict.fromkeys(node_config(graph, [op.name]) for graph in _forms() for op in graph.operators)
    for config in [*configs][:: 1 if MANY else 4]:
        graph = copies_graph(NodeConfig.from_json(config.to_json()), 2)
        found = onnxruntime_outputs(to_onnx(graph), random_inputs(graph))
        assert [(str(v.dtype), v.shape) for v in found] == [(o.dtype, o.shape) for o in config.outputs if o for _ in range(2)]


@pytest.mark.parametrize("name", _ZOO if MANY else _ZOO[:1])
def test_a_copy_computes_what_the_kernel_does_in_its_model(name: str) -> None:
    """By ONNX Runtime, with the model's weights and the activations that the kernel reads there."""
    graph = {**prior_models(), **COLD_START_MODELS}[name]()
    model = to_onnx(graph)
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for tensor in {name for op in graph.operators for name in op.outputs} - set(graph.outputs):
        model.graph.output.add(name=tensor)
    given = random_inputs(graph)
    names = [output.name for output in model.graph.output]
    values = dict(zip(names, onnxruntime_outputs(model, given), strict=True)) | given
    seen = set()
    for kernel in split_kernels(graph, _RULES):
        config = node_config(graph, kernel.members)
        if config in seen:
            continue
        seen.add(config)
        copy = copies_graph(config, 1)
        built = to_onnx(copy)
        own = {tensor.name: tensor for tensor in built.graph.initializer}
        for member, op in zip(kernel.members, copy.operators, strict=True):
            for mine, theirs in zip(op.weights, graph.by_name[member].weights, strict=True):
                own[mine].CopyFrom(weights[theirs])
                own[mine].name = mine
        outside = dict.fromkeys(
            i for m in kernel.members for i in graph.by_name[m].inputs if graph.producer.get(i, None) is None
            or graph.producer[i].name not in kernel.members
        )  # fmt: skip
        found = onnxruntime_outputs(built, {mine: values[theirs] for mine, theirs in zip(copy.inputs, outside, strict=True)})
        for value, output in zip(found, kernel.outputs, strict=True):
            np.testing.assert_allclose(value, values[output], atol=_TOLERANCE * np.abs(values[output]).max())


def test_models_of_other_types_are_written_as_they_are() -> None:
    """Weights are of their types, shared ones stand once, and places that are picked are there."""
    nodes = [
        node("GatherElements", "x i", name="pick", axis=1),
        node("Add", "n one", "a", name="first"),
        node("Mul", "a one", "z", name="second"),
    ]
    constants = {"i": np.zeros((2, 1), np.int64), "one": np.ones(3, np.int64)}
    model = made(nodes, {"x": (2, 1), "n": (7, [3])}, constants, output="y z")
    model.graph.output[1].type.tensor_type.elem_type = 7
    graph = from_onnx(model)
    assert [(v.dtype, v.shape) for v in onnxruntime_outputs(to_onnx(graph), random_inputs(graph))] == [
        (np.float32, (2, 1)),
        (np.int64, (3,)),
    ]
