"""Operators in the forms that exporters write them in: computed as ONNX Runtime does, or refused by name.

Models are read, checked and lowered as `edgeplan plan cold-start` does it, and run under one home layout in `make test`, under
every one in `make test-all`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from composed_forms import COMPOSED
from exported_forms import DECOMPOSED, EXPORTED
from onnx import version_converter
from written_forms import EQUAL, IMAGE, REFUSED, Array, Form, node, one

from depth import some
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.errors import ModelError
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.kernel_nodes import executed_graph
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.operators import base
from edgeplan.graph.simplify import simplify
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.program import build_program, step_candidates
from edgeplan.runtime.session import SequentialSession
from edgeplan.runtime.transform import folded
from edgeplan.runtime.weights import locate_weights

_TOLERANCE = 1e-4
_TYPES = {"tensor(float)": np.float32, "tensor(bool)": np.bool_, "tensor(int32)": np.int32, "tensor(int64)": np.int64}
_TYPES |= {"tensor(uint8)": np.uint8, "tensor(int8)": np.int8}
_TRUE = 0.4
_CANDIDATES = 2  # of each step; `tests/runtime/test_runtime_operators.py` tries all


def _reference(path: Path) -> tuple[dict[str, Array], list[Array]]:
    """Seeded inputs of both signs, and ONNX Runtime's outputs, operator by operator."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    drawn = {"tensor(float)": rng.standard_normal, "tensor(bool)": lambda shape: rng.random(shape) < _TRUE}
    given = {
        i.name: drawn.get(i.type, lambda shape: rng.integers(-3, 3, shape))(i.shape).astype(_TYPES[i.type])
        for i in session.get_inputs()
    }
    return given, list(session.run(None, given))


def _check(dnnl: Dnnl, path: Path, name: str) -> None:
    given, wanted = _reference(path)
    graph, lowered = read_model(path)
    weights = locate_weights(path, lowered)
    dnnl.set_threads(1)
    for home in some(HOMES, name):
        offered = step_candidates(dnnl, lowered, home)
        for k in range(min(_CANDIDATES, max(map(len, offered)))):
            choices = [candidates[min(k, len(candidates) - 1)] for candidates in offered]
            program = build_program(dnnl, lowered, home, choices, weights)
            found = SequentialSession(dnnl, program, path.parent).run(given)
            for output, expected in zip(graph.outputs, wanted, strict=True):
                assert found[output].shape == expected.shape
                assert found[output].dtype == expected.dtype
                if expected.dtype != np.float32:
                    assert (found[output] == expected).all(), f"{output} under {home}"
                    continue
                error = np.abs(found[output] - expected).max() / np.abs(expected).max()
                assert error <= _TOLERANCE, f"{output} is off by {error} under {home}: {[c.name for c in choices]}"


@pytest.mark.parametrize("name", [*EQUAL, *COMPOSED, *EXPORTED])
def test_forms_that_are_computed_as_onnx_runtime_does(dnnl: Dnnl, tmp_path: Path, name: str) -> None:
    path = tmp_path / "form.onnx"
    onnx.save((EQUAL | COMPOSED | EXPORTED)[name].model(), path)
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


@pytest.mark.parametrize(
    "name", [name for name, form in (EQUAL | COMPOSED | EXPORTED).items() if form.nodes[0].op_type in _MIXING]
)
def test_along_long_axes_kernels_do_what_matrices_do(
    dnnl: Dnnl, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "_LARGEST_MATRIX", 0)  # so that all axes are long
    path = tmp_path / "form.onnx"
    onnx.save((EQUAL | COMPOSED | EXPORTED)[name].model(), path)
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


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 4, 5)])
def test_an_old_softmax_runs_once_it_is_converted_as_told(dnnl: Dnnl, tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "form.onnx"
    converted = version_converter.convert_version(one("Softmax", "x", shape, opset=11, axis=1).model(), 13)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(converted.SerializeToString(), options, providers=["CPUExecutionProvider"])
    _check(dnnl, path, f"softmax of {len(shape)} axes")


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
