"""Simplification keeps what a graph computes: what is taken for one has the same values, what differs in a constant stays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from model_file_runs import made, node, onnxruntime_outputs

from edgeplan.engines.base import random_inputs
from edgeplan.errors import ParamsError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Attribute, Graph, Operator, Tensor
from edgeplan.graph.kernels import split_kernels
from edgeplan.graph.onnx.read import from_onnx
from edgeplan.graph.onnx.write import to_onnx
from edgeplan.graph.simplify import batched, simplify
from edgeplan.profiling.subjects import signature
from edgeplan.runtime.creation import Creator
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import NCHW
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import activation_layouts
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


@pytest.mark.parametrize("family", ["googlenet", "mobilenetv3", "shufflenetv2", "nasbench201"])
def test_each_image_of_a_batch_is_computed_as_alone(family: str) -> None:
    one = simplify(build_variant(next(iter(variants(FAMILIES[family], 1, 5)))))
    several = batched(one, one.name, 3)
    images = np.random.default_rng(1).standard_normal((3, *one.shape(one.inputs[0])[1:])).astype(np.float32)
    found = []
    for graph, read in ((one, images[1:2]), (several, images)):
        found += onnxruntime_outputs(to_onnx(graph), {graph.inputs[0]: read})
    assert found[1].shape[0] == 3
    np.testing.assert_allclose(found[1][1:2], found[0], rtol=1e-3, atol=1e-4 * np.abs(found[0]).max())
    if family == "nasbench201":
        with pytest.raises(ParamsError, match="more than one image"):
            batched(several, "again", 2)


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


_LONG = 140  # places along the axis: more than any list of sizes that might be cut short
#: Two operators of one type on one input, that differ in a constant: where it is an input, an operand, else an attribute.
_APART: tuple[tuple[str, str, Sequence[float], Sequence[float]], ...] = (
    ("Split", "", (1, 3, 2, *(1,) * 134), (2, 1, 2, 2, *(1,) * 133)),  # the third part has 2 channels in both
    ("Split", "", (70, 70), (69, 71)),
    ("Reshape", "", (1, 2, 70, 4), (1, 140, 4, 1)),
    ("Reshape", "", (1, 1, 560), (1, 1, 1, 1, 1, 1, 560)),
    ("Transpose", "perm", (0, 2, 1, 3), (0, 3, 1, 2)),
    ("Clip", "", (-0.5,), (-0.25,)),
    ("Resize", "", (1.0, 1.0, 2.0, 1.5), (1.0, 1.0, 2.05, 2.05)),
    ("Resize", "", (1.0, 1.0, 2.05, 2.05), (1.0, 1.0, 2.0, 2.0)),  # to the same sizes
    ("ReduceMean", "axes", (1, 2), (1, 3)),
)


def _model(kind: str, attribute: str, both: Sequence[Sequence[float]]) -> onnx.ModelProto:
    """Operators of one type on one input, with a Relu behind every output."""
    nodes, stored, written = list[onnx.NodeProto](), dict[str, npt.ArrayLike](), list[str]()
    for which, constant in zip("ab", both, strict=True):
        given: dict[str, Any] = {attribute: constant} if attribute else {}
        given |= {"Split": {"axis": 1}, "Resize": {"mode": "linear"}}.get(kind, {})
        if not attribute:
            held = constant[0] if kind == "Clip" else constant
            stored[f"c{which}"] = np.array(held, np.float32 if kind in ("Clip", "Resize") else np.int64)
        reads = "x" if attribute else f"x - c{which}" if kind == "Resize" else f"x c{which}"
        outputs = [f"{which}{i}" for i in range(len(constant) if kind == "Split" else 1)]
        nodes.append(node(kind, reads, outputs, name=f"n{which}", **given))
        nodes += [node("Relu", o, f"y{o}", name=f"r{o}") for o in outputs]
        written += [f"y{o}" for o in outputs]
    return made(nodes, {"x": (1, _LONG, 2, 2)}, stored, output=" ".join(written))


@pytest.mark.parametrize(("kind", "attribute", "one", "other"), _APART)
def test_operators_that_differ_in_a_constant_stay_apart(
    kind: str, attribute: str, one: Sequence[float], other: Sequence[float]
) -> None:
    for both in ((one, other), (one, one)):
        model = _model(kind, attribute, both)
        graph = from_onnx(model)
        plain = simplify(graph)
        kept = sum(op.op_type == kind for op in plain.operators)
        assert kept == len(set(both))
        for found, wanted in zip(_run(plain), onnxruntime_outputs(model, random_inputs(graph)), strict=True):
            np.testing.assert_array_equal(found, wanted)
        rules = FusionRules(pairs={}, merges_duplicates=True)
        assert sum(not {"na", "nb"}.isdisjoint(kernel.members) for kernel in split_kernels(graph, rules)) == kept
    signed = []
    for constant in (one, other):  # the rows of their steps are others
        lowered = lower(from_onnx(_model(kind, attribute, (constant, constant))))
        creator = Creator(Dnnl(), lowered.shapes, activation_layouts(lowered, NCHW), {}, lowered.types)
        signed.append([signature(creator, step) for step in lowered.steps])
    assert signed[0] != signed[1]


def test_a_split_of_which_parts_have_no_names_keeps_them_apart() -> None:
    nodes = [
        node("Split", "x", ["", "h"], name="s", axis=1),
        node("Split", "x", ["k", ""], name="t", axis=1),
        node("Relu", "h"),
        node("Relu", "k", "z"),
    ]
    graph = simplify(from_onnx(made(nodes, {"x": (1, 4, 2, 2)}, output="y z", opset=13)))
    (op,) = (op for op in graph.operators if op.op_type == "Split")
    assert [graph.shape(name) for name in op.outputs] == [(1, 2, 2, 2)] * 2
    relus = [op.inputs[0] for op in graph.operators if op.op_type == "Relu"]
    assert relus == [op.outputs[1], op.outputs[0]]
