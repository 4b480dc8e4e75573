"""Operators in the forms that exporters write them in: computed as ONNX Runtime does, or refused by name.

Models are read, checked and lowered as `edgeplan plan cold-start` does it, and run under one home layout in `make test`, under
every one in `make test-all`. Names of what is made here are names that no tensor and no node of the model has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from exported_forms import DECOMPOSED, EXPORTED
from model_file_runs import each_way, onnxruntime_outputs, own_outputs
from onnx import TensorProto, helper, numpy_helper
from random_graphs import DRAWN, drawn
from written_forms import EQUAL, IMAGE, REFUSED, Array, Form, drawn_inputs, node, one, value

from depth import MANY, some
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.engines.base import random_inputs
from edgeplan.errors import ModelError
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.kernel_nodes import executed_graph
from edgeplan.graph.onnx.prepare import Preparation, load_prepared, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.operators import base
from edgeplan.graph.simplify import simplify
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.bands import Region, banded
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED, HOMES
from edgeplan.runtime.partitioned.sections import Cut, Dimension, extent, why_not_cut
from edgeplan.runtime.partitioned.sections import cut_sections as sections
from edgeplan.runtime.program import activation_layouts, build_program, step_candidates
from edgeplan.runtime.ranges import cut_ranges
from edgeplan.runtime.session import SequentialSession
from edgeplan.runtime.transform import folded
from edgeplan.runtime.weights import locate_weights

_TOLERANCE = 1e-4


def _reference(path: Path, seed: int = 1) -> tuple[dict[str, Array], list[Array]]:
    """Seeded inputs of both signs, and ONNX Runtime's outputs, operator by operator."""
    given = drawn_inputs(onnx.load(path), seed)
    return given, onnxruntime_outputs(path, given)


def _check(dnnl: Dnnl, path: Path, name: str) -> None:
    given, wanted = _reference(path)
    graph = load_onnx(path)
    for how, found in each_way(dnnl, path, given, some(HOMES, name)):
        for output, expected in zip(graph.outputs, wanted, strict=True):
            assert found[output].shape == expected.shape
            assert found[output].dtype == expected.dtype
            if expected.dtype != np.float32:
                assert (found[output] == expected).all(), f"{output} {how}"
                continue
            error = np.abs(found[output] - expected).max() / np.abs(expected).max()
            assert error <= _TOLERANCE, f"{output} is off by {error} {how}"


@pytest.mark.parametrize("name", [*EQUAL, *EXPORTED])
def test_forms_that_are_computed_as_onnx_runtime_does(dnnl: Dnnl, tmp_path: Path, name: str) -> None:
    path = tmp_path / "form.onnx"
    onnx.save((EQUAL | EXPORTED)[name].model(), path)
    _check(dnnl, path, name)


@pytest.mark.parametrize("name", DECOMPOSED)
def test_layers_written_as_arithmetic_are_one_operator(tmp_path: Path, name: str) -> None:
    path = tmp_path / "form.onnx"
    onnx.save(DECOMPOSED[name].model(), path)
    graph, lowered = read_model(path)
    kinds = {op.op_type for op in graph.operators}
    if "nearly" in name or "function" in name or "over channels" in name:
        assert not kinds & {"Gelu", "LayerNormalization"}
        return
    assert kinds & {"Gelu", "LayerNormalization"}
    assert bool(kinds & {"ReduceMean", "Sqrt", "Sub", "Div", "Tanh", "Erf"}) == ("are read" in name)
    if "behind" in name:
        assert [(step.kind, [post.algorithm for post in step.post_ops]) for step in lowered.steps] in (
            [("conv", ["gelu_erf"])],
            [("fc", ["gelu_erf"])],
        )


_MIXING = frozenset({"AveragePool", "Resize"})


@pytest.mark.parametrize("name", [name for name, form in (EQUAL | EXPORTED).items() if form.nodes[0].op_type in _MIXING])
def test_along_long_axes_kernels_do_what_matrices_do(
    dnnl: Dnnl, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_LARGEST_MATRIX", 0)  # so that all axes are long
    path = tmp_path / "form.onnx"
    onnx.save((EQUAL | EXPORTED)[name].model(), path)
    _check(dnnl, path, name)


def test_no_table_of_a_long_axis_grows_with_its_square(tmp_path: Path, dnnl: Dnnl) -> None:
    path, size = tmp_path / "form.onnx", 40_000
    onnx.save(one("Resize", "x - s", (1, 1, 1, size), {"s": [1.0, 1.0, 1.0, 1.5]}, mode="cubic").model(), path)
    _, lowered = read_model(path)
    held = sum(array.nbytes for step in lowered.steps if step.kind != "reshape" for array in folded(step, {}))
    assert 0 < held < 100 * size
    _check(dnnl, path, "long axis")


@pytest.mark.parametrize("name", REFUSED)
def test_forms_that_are_refused_by_name(tmp_path: Path, name: str) -> None:
    form, message = REFUSED[name]
    path = tmp_path / "form.onnx"
    onnx.save(form.model(), path)
    _reference(path)  # it is a valid model
    with pytest.raises(ModelError, match=message) as caught:
        read_model(path)
    assert "odd" in str(caught.value)
    assert caught.value.next_step


def test_an_input_that_is_an_output_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "form.onnx"
    onnx.save(Form((node("Relu", "x"),), {"x": IMAGE}, {}, outputs=("y", "x")).model(), path)
    with pytest.raises(ModelError, match="no operator writes") as caught:
        read_model(path)
    assert "output 'x'" in caught.value.where


@pytest.mark.parametrize(("name", "op"), [("relu of 11 axes", "Relu"), ("dilated with automatic padding", "MaxPool")])
def test_what_the_runtime_alone_lacks_can_still_be_predicted(tmp_path: Path, name: str, op: str) -> None:
    path = tmp_path / "form.onnx"
    onnx.save(REFUSED[name][0].model(), path)
    graph = simplify(load_onnx(path))
    (node,) = executed_graph(None, graph, FusionRules(pairs={})).nodes
    assert node.config.op == op


_NUDGE = 1e-6
_TINY = 1e-12  # below it functions that vanish are rounded to zero by one and not by the other
_MOST_REFUSED = 0.1
_LEAST_OPERATORS, _LEAST_VALUES = 50, 5
_GROUP, _OF_GROUP = 5, 5 if MANY else 1


def wrong(dnnl: Dnnl, path: Path, seed: int) -> str:
    """Where a model's numbers are not ONNX Runtime's, or ""; raises ModelError where it is refused.

    An output may be off by rounding, and by what a nudge of the inputs moves it: some models magnify it.
    """
    given, wanted = _reference(path, seed)
    rng = np.random.default_rng(seed)
    nudged = onnxruntime_outputs(path, {name: v * np.float32(1 + _NUDGE) + np.float32(_NUDGE) for name, v in given.items()})
    graph, lowered = read_model(path)
    weights = locate_weights(path, lowered)
    dnnl.set_threads(1)
    for home in HOMES:
        choices = [offered[rng.integers(len(offered))] for offered in step_candidates(dnnl, lowered, home)]
        program = build_program(dnnl, lowered, home, choices, weights)
        found = SequentialSession(dnnl, program, path.parent).run({name: given[name] for name in graph.inputs})
        for name, expected, moved in zip(graph.outputs, wanted, nudged, strict=True):
            if found[name].shape != expected.shape:
                return f"{name} is of shape {found[name].shape}, not {expected.shape}, under {home}"
            allowed = _TOLERANCE * np.abs(expected).max(initial=_TINY) + 10 * np.abs(moved - expected).max(initial=0)
            error = np.abs(found[name] - expected).max(initial=0)
            if not error <= allowed:
                return f"{name} is off by {error:.1e} of {np.abs(expected).max():.1e} under {home}: {[c.name for c in choices]}"
    return ""


def _run(dnnl: Dnnl, folder: Path, seeds: range) -> Counter[str]:
    """Run the models of some seeds; what they were made of."""
    counts, refused = Counter[str](), Counter[str]()
    for seed in seeds:
        path = folder / "drawn.onnx"
        onnx.save(drawn(seed, counts), path)
        try:
            assert not (told := wrong(dnnl, path, seed)), f"seed {seed}: {told}"
        except ModelError as error:
            refused[error.what[-90:]] += 1
    assert refused.total() <= _MOST_REFUSED * len(seeds), refused.most_common(9)
    return counts


@pytest.mark.parametrize("first", range(0, 60, _GROUP))
def test_random_models_agree(dnnl: Dnnl, tmp_path: Path, first: int) -> None:
    _run(dnnl, tmp_path, range(first, first + _OF_GROUP))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_thousands_of_random_models_agree(dnnl: Dnnl, tmp_path: Path) -> None:
    counts = _run(dnnl, tmp_path, range(100, 5100))
    least = {name: count for name, count in counts.items() if count < (_LEAST_OPERATORS if name in DRAWN else _LEAST_VALUES)}
    assert set(counts) >= set(DRAWN)
    assert not least


_FORMS: Mapping[str, Form] = {
    "sum of three": one("Sum", "x z w", dict.fromkeys("xzw", IMAGE)),
    "largest of three": one("Max", "x z w", dict.fromkeys("xzw", IMAGE)),
    "old softmax": one("Softmax", "x", IMAGE, opset=11, axis=1),
    "last state alone": Form(
        (node("LSTM", "x w r b", "- h", hidden_size=3, direction="bidirectional"), node("Relu", "h", name="last")),
        {"x": (2, 5, 4)}, {"w": value((2, 12, 4)), "r": value((2, 12, 3)), "b": value((2, 24))},
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
            "softsign", "lengths of vectors of both signs", "div, both broadcast", "prelu by channel", "GRU behind a GRU",
            "layers that hand out their mean", "rows by their root mean square", "pad by reflection", "gather of several",
            "every second", "depth to space", "Mean of channels, dropped", "tile", "groups",
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
        for role in some(("inner", "weight", "output"), other):
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
    wanted = onnxruntime_outputs(path, inputs)
    made = prepare_file(path, Preparation(), tmp_path / "prepared.onnx")
    found = own_outputs(dnnl, made, inputs)
    for output, right in zip(load_prepared(made, Preparation()).outputs, wanted, strict=True):
        np.testing.assert_allclose(found[output], right, rtol=1e-3, atol=1e-4)


def _divided(lowered: Lowered, layouts: Mapping[str, str]) -> dict[str, list[str]]:
    """Names of tensors that are made where steps are divided, in every way."""
    ranged = cut_ranges(lowered, layouts, 8, lambda _: 1)
    found = {"ranges": [*ranged.tensors, *ranged.weights]}
    plan = banded(lowered, [Region(0, 2, 3)])
    found["bands"] = [name for name in plan.lowered.shapes if name not in lowered.shapes]
    for dimension in (Dimension.rows, Dimension.batch, Dimension.elements):
        whole = [why_not_cut(lowered, layouts, 8, step, dimension) for step in lowered.steps]
        cuts = [
            None if reason else Cut(dimension, (extent(lowered, 8, step, dimension).nearest(0.5),))
            for reason, step in zip(whole, lowered.steps, strict=True)
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
