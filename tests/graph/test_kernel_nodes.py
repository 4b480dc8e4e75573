"""Kernels of graphs as executed nodes: what describes them builds them again, in any number of copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest
from exported_forms import EXPORTED
from model_file_runs import made, node, onnxruntime_outputs
from random_graphs import drawn
from written_forms import EQUAL

from depth import MANY
from edgeplan.engines.base import random_inputs
from edgeplan.errors import FormatError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph, Tensor
from edgeplan.graph.kernel_nodes import AROUND, REORDER, copies_graph, node_config, reorder_config
from edgeplan.graph.kernels import split_kernels
from edgeplan.graph.nodes import NodeConfig, Operand
from edgeplan.graph.onnx.read import from_onnx
from edgeplan.graph.onnx.write import to_onnx
from edgeplan.zoo import prior_models
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

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
