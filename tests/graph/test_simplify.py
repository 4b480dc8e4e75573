"""Simplification keeps what a graph computes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from model_file_runs import onnxruntime_outputs

from edgeplan.engines.base import random_inputs
from edgeplan.errors import ParamsError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Attribute, Graph, Operator, Tensor
from edgeplan.graph.onnx.write import to_onnx
from edgeplan.graph.simplify import batched, simplify
from edgeplan.zoo import FAMILIES, build_variant, variants


def _run(graph: Graph) -> list[npt.NDArray[np.float32]]:
    return onnxruntime_outputs(to_onnx(graph), random_inputs(graph))


def test_twins_and_dead_operators_go_and_values_stay() -> None:
    b = GraphBuilder("twins", (1, 4, 8, 8))
    stem = b.conv(b.input, 6, 3)
    first, second = b.relu(stem, name="first"), b.relu(stem, name="second")
    left = b.maxpool(first, 3, 1, 1, name="left")
    right = b.maxpool(second, 3, 1, 1, name="right")  # a twin only once its input is
    other = b.maxpool(second, 2, 1, name="smaller")
    b.activation(b.conv(stem, 9, 1, name="dead"), "sigmoid", name="dead2")
    graph = b.build(b.add(left, right, name="sum"), b.gap(other, name="pooled"))
    plain = simplify(graph)
    assert [op.name for op in plain.operators] == ["conv_0", "first", "left", "smaller", "sum", "pooled"]
    assert plain.by_name["sum"].inputs == ("left", "left")
    assert plain.by_name["smaller"].inputs == ("first",)
    assert not {"dead", "dead.weight", "second", "right"} & set(plain.tensors)
    assert (plain.inputs, plain.outputs) == (graph.inputs, graph.outputs)
    for a, e in zip(_run(plain), _run(graph), strict=True):
        np.testing.assert_array_equal(a, e)


def test_twins_with_weights_or_that_are_outputs_stay() -> None:
    b = GraphBuilder("kept", (1, 4, 8, 8))
    one, two = b.conv(b.input, 4, 1), b.conv(b.input, 4, 1)
    total = b.add(one, two)
    graph = b.build(b.relu(total, name="r1"), b.relu(total, name="r2"))
    assert simplify(graph) is graph


def test_a_split_of_several_outputs_is_merged_output_by_output() -> None:
    b = GraphBuilder("splits", (1, 4, 8, 8))
    a, c = b.split(b.input, (1, 3), name="s")
    d, e = b.split(b.input, (1, 3), name="t")
    f, _ = b.split(b.input, (2, 2), name="u")
    graph = b.build(b.concat([a, e, d, c, f]))
    plain = simplify(graph)
    assert [op.name for op in plain.operators] == ["s", "u", "concat_3"]
    assert plain.by_name["concat_3"].inputs == ("s_0", "s_1", "s_0", "s_1", "u_0")
    np.testing.assert_array_equal(_run(plain)[0], _run(graph)[0])


@pytest.mark.parametrize("used", [1, 2])
def test_an_operator_lives_while_one_of_its_outputs_is_read(used: int) -> None:
    b = GraphBuilder("live", (1, 4, 8, 8))
    parts = b.split(b.input, (1, 1, 2), name="s")
    graph = b.build(b.relu(parts[used]))
    assert [op.name for op in simplify(graph).operators] == ["s", "relu_1"]


def test_a_second_pass_changes_nothing() -> None:
    b = GraphBuilder("again", (1, 4, 8, 8))
    x = b.input
    for _ in range(3):
        x = b.add(b.relu(x), b.relu(x))
    once = simplify(b.build(x))
    assert [op.op_type for op in once.operators] == ["Relu", "Add"] * 3
    assert simplify(once) is once


@pytest.mark.parametrize("family", ["alexnet", "googlenet", "mobilenetv3", "shufflenetv2", "nasbench201"])
def test_each_image_of_a_batch_is_computed_as_alone(family: str) -> None:
    one = simplify(build_variant(next(iter(variants(FAMILIES[family], 1, 5)))))
    several = batched(one, one.name, 3)
    images = np.random.default_rng(1).standard_normal((3, *one.shape(one.inputs[0])[1:])).astype(np.float32)
    found = []
    for graph, given in ((one, images[1:2]), (several, images)):
        found += onnxruntime_outputs(to_onnx(graph), {graph.inputs[0]: given})
    assert found[1].shape[0] == 3
    np.testing.assert_allclose(found[1][1:2], found[0], rtol=1e-3, atol=1e-4 * np.abs(found[0]).max())


def _operator(op_type: str, out: tuple[int, ...], **attributes: Attribute) -> Graph:
    tensors = {"x": Tensor("x", (1, 4, 6, 6)), "y": Tensor("y", out)}
    return Graph("fixed", (Operator(op_type, op_type, ("x",), ("y",), (), attributes),), ("x",), ("y",), tensors)


@pytest.mark.parametrize(
    "graph",
    [
        _operator("Transpose", (4, 1, 6, 6), perm=(1, 0, 2, 3)),
        _operator("Reshape", (4, 36), shape=(4, 36)),
        _operator("Flatten", (1, 144), axis=0),
        _operator("Resize", (1, 4, 12, 12), sizes=(1, 4, 12, 12)),
        _operator("Softmax", (1, 4, 6, 6), axis=0),
    ],
    ids=lambda graph: graph.operators[0].op_type,
)
def test_what_moves_the_axis_of_images_or_says_their_number_is_refused(graph: Graph) -> None:
    with pytest.raises(ParamsError, match=f"operators {graph.operators[0].op_type}"):
        batched(graph, "several", 2)
