"""Names of what is made here are names that no tensor and no node of the model has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from exported_forms import EXPORTED
from model_file_runs import onnxruntime_outputs, own_outputs
from onnx import TensorProto, helper, numpy_helper
from written_forms import EQUAL, IMAGE, Form, node, one, value

from edgeplan.chapters.cold_start.api import read_model
from edgeplan.engines.base import random_inputs
from edgeplan.graph.onnx.prepare import Preparation, load_prepared, prepare_file
from edgeplan.graph.shapes import free
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.bands import Region, banded
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.partitioned.sections import Cut, Dimension, extent, why_not_split
from edgeplan.runtime.partitioned.sections import cut as sections
from edgeplan.runtime.program import activation_layouts
from edgeplan.runtime.ranges import cut


def _unnamed(op_type: str, reads: str, writes: list[str], **attributes: int | str) -> onnx.NodeProto:
    return helper.make_node(op_type, reads.split(), writes, name="odd", **attributes)


_SEQUENCE = {"w": (2, 12, 4), "r": (2, 12, 3), "b": (2, 24)}
_FORMS: Mapping[str, Form] = {
    "sum of three": one("Sum", "x z w", dict.fromkeys("xzw", IMAGE)),
    "largest of three": one("Max", "x z w", dict.fromkeys("xzw", IMAGE)),
    "old softmax": one("Softmax", "x", IMAGE, opset=11, axis=1),
    "last state alone": Form(
        (
            _unnamed("LSTM", "x w r b", ["", "h"], hidden_size=3, direction="bidirectional"),
            node("Relu", "h", name="last"),
        ),
        {"x": (2, 5, 4)},
        {name: value(shape) for name, shape in _SEQUENCE.items()},
    ),
    "an input handed out": Form((node("Relu", "x"), node("Identity", "x", "z", "same")), {"x": IMAGE}, {}, outputs=("y", "z")),
    "largest bytes as numbers": Form(
        (
            node("QuantizeLinear", "x s n", "q", "first"), node("DequantizeLinear", "q s n", "d", "second"),
            node("MaxPool", "d", kernel_shape=[2, 2]),
        ),
        {"x": IMAGE},
        {"s": value(np.float32(0.05)), "n": np.array(3, np.uint8)},
        opset=13,
    ),
    **{
        name: (EQUAL | EXPORTED)[name]
        for name in (
            "softsign", "lengths of vectors of both signs", "div, both broadcast", "prelu by channel",
            "layers that hand out their mean",
            "rows by their root mean square", "pad by reflection", "gather of several", "every second", "depth to space",
            "Mean of channels, dropped", "GRU behind a GRU", "tile", "groups",
        )
    },
}  # fmt: skip


def _given(model: onnx.ModelProto) -> set[str]:
    nodes = (name for one in model.graph.node for name in (one.name, *one.input, *one.output))
    return {*nodes, *(tensor.name for tensor in model.graph.initializer)}


def _made_here(path: Path) -> list[str]:
    graph, lowered = read_model(path)
    found = {*graph.tensors, *graph.by_name, *lowered.shapes, *(step.name for step in lowered.steps)}
    return sorted(found - _given(onnx.load(path)))


def _beside(form: Form, name: str, role: str) -> onnx.ModelProto:
    """The model, and beside its operators a tensor of such a name, of another shape than any."""
    model = form.model()
    body = model.graph
    first, shape = next((i, s) for i, s in form.inputs.items() if i not in form.types)
    body.node.append(helper.make_node("Transpose", [first], ["turned"], name="turned"))
    if role == "weight":
        body.node.append(helper.make_node("Add", ["turned", name], ["beside"], name=name))
        body.initializer.append(numpy_helper.from_array(np.linspace(0, 1, shape[0], dtype=np.float32), name))
    else:
        body.node.append(helper.make_node("Tanh", ["turned"], [name], name=name))
        body.node.append(helper.make_node("Neg", [name], ["beside"], name="behind"))
        body.output.extend([helper.make_tensor_value_info(name, 1, None)] * (role == "output"))
    body.output.append(helper.make_tensor_value_info("beside", 1, None))
    return model


@pytest.mark.parametrize("name", _FORMS)
def test_a_model_may_have_the_names_that_are_given_here(dnnl: Dnnl, tmp_path: Path, name: str) -> None:
    path, form = tmp_path / "form.onnx", _FORMS[name]
    onnx.save(form.model(), path)
    wanted = _made_here(path)
    assert wanted or name == "groups"
    dnnl.set_threads(1)
    for other in wanted:
        for role in ("inner", "weight", "output"):
            onnx.save(_beside(form, other, role), path)
            graph, lowered = read_model(path)
            inputs = random_inputs(graph)
            assert max(Counter(tensor for step in lowered.steps for tensor in step.outputs).values()) == 1
            found = own_outputs(dnnl, path, inputs)
            for output, right in zip(graph.outputs, onnxruntime_outputs(path, inputs), strict=True):
                np.testing.assert_allclose(found[output], right, rtol=1e-3, atol=1e-4, err_msg=f"{other} as {role}")


@pytest.mark.parametrize("name", ["h:single", "h:half"])
def test_casts_that_round_write_tensors_of_their_own(dnnl: Dnnl, tmp_path: Path, name: str) -> None:
    nodes = (node("Cast", "x", "h", "h", to=TensorProto.FLOAT16), node("Relu", "h", "r", "r"), node("Cast", "r", to=1))
    path, inputs = tmp_path / "form.onnx", {"x": np.random.default_rng(3).standard_normal(IMAGE).astype(np.float32)}
    onnx.save(_beside(Form(nodes, {"x": IMAGE}, {}), name, "inner"), path)
    wanted = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, inputs)
    made = prepare_file(path, Preparation(), tmp_path / "prepared.onnx")
    found = own_outputs(dnnl, made, inputs)
    for output, right in zip(load_prepared(made, Preparation()).outputs, wanted, strict=True):
        np.testing.assert_allclose(found[output], right, rtol=1e-3, atol=1e-4)


def _divided(lowered: Lowered, layouts: Mapping[str, str]) -> dict[str, list[str]]:
    """Names of tensors that are made where steps are divided, in every way."""
    ranged = cut(lowered, layouts, 8, lambda _: 1)
    found = {"ranges": [*ranged.tensors, *ranged.weights]}
    plan = banded(lowered, [Region(0, 2, 3)])
    found["bands"] = [name for name in plan.lowered.shapes if name not in lowered.shapes]
    for dimension in (Dimension.rows, Dimension.batch, Dimension.elements):
        cuts = [
            None
            if why_not_split(lowered, layouts, 8, step, dimension)
            else Cut(dimension, (extent(lowered, 8, step, dimension).nearest(0.5),))
            for step in lowered.steps
        ]
        made = sections(lowered, layouts, 8, cuts).ranged
        found[dimension.name] = [name for name in made.lowered.shapes if name not in lowered.shapes]
    return found


def test_parts_of_steps_have_names_of_their_own(tmp_path: Path) -> None:
    form = Form(
        (
            node("Conv", "x w", "a", "one", pads=[1, 1, 1, 1]), node("Relu", "a", "r", "two"),
            node("MaxPool", "r", "p", "three", kernel_shape=[3, 3]), node("Conv", "p v", "c", "four"), node("Softmax", "c"),
        ),
        {"x": (1, 8, 9, 9)},
        {"w": value((16, 8, 3, 3)), "v": value((24, 16, 1, 1))},
    )  # fmt: skip
    path = tmp_path / "form.onnx"
    onnx.save(form.model(), path)
    _, lowered = read_model(path)
    plain = _divided(lowered, activation_layouts(lowered, BLOCKED))
    assert sum(map(bool, plain.values())) >= 3
    for name in sorted({name for names in plain.values() for name in names}):
        onnx.save(_beside(form, name, "output"), path)
        _, lowered = read_model(path)
        assert name in lowered.shapes
        for way, names in _divided(lowered, activation_layouts(lowered, BLOCKED)).items():
            assert not set(names) & lowered.shapes.keys()
            assert len(set(names)) >= len(plain[way])


def test_a_name_that_is_free_is_the_one_wanted_or_numbered() -> None:
    assert free("y", {"x"}) == "y"
    assert free("y", {"y", "y~1", "y~3"}) == "y~2"
