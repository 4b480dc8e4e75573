"""The models that chapters run, and those drawn as exporters write them: valid, finite, of a seed, run as ONNX Runtime does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from model_file_runs import each_way, onnxruntime_outputs, own_outputs

from counts import macs, parameters
from depth import by_day, some
from edgeplan.graph.ir import Graph
from edgeplan.graph.kinds import graph_macs, graph_parameters
from edgeplan.graph.onnx.compare import session_options
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.workloads.exported import Uniform
from edgeplan.workloads.exports import FAMILIES, ExportedModel, export_models, random_inputs
from edgeplan.workloads.registry import WORKLOADS, Workload, recurrent_language_model, save_workload, yolov3
from edgeplan.workloads.sequences import bert, gpt2, unrolled_language_model, vit
from edgeplan.zoo.convolutional import resnet, squeezenet, vgg
from edgeplan.zoo.family import Builder, Choices
from edgeplan.zoo.separable import mobilenetv1, mobilenetv2

LANE = "numerics"
Array = npt.NDArray[Any]
_TOLERANCE = 1e-4
_VOCABULARY = 97


def _narrow(builder: Builder, name: str) -> Graph:
    """A network of the zoo with a quarter of its channels."""
    asked = Choices()
    builder(asked, name)
    return builder(Choices([max(1, c // 4) for c in asked.channel_defaults], asked.kernel_defaults), name)


_LM = partial(recurrent_language_model, vocabulary=_VOCABULARY, embedding=12, hidden=8)
_SMALL: Mapping[str, Callable[[], Workload]] = {
    "resnet": partial(_narrow, partial(resnet, depth=152), "resnet"),
    "vgg": partial(_narrow, partial(vgg, depth=19), "vgg"),
    "mobilenetv1": partial(_narrow, mobilenetv1, "mobilenetv1"),
    "mobilenetv2": partial(_narrow, mobilenetv2, "mobilenetv2"),
    "squeezenet": partial(_narrow, partial(squeezenet, version="1.0"), "squeezenet"),
    "yolov3": partial(yolov3, image=64, width=4),
    "vit": partial(vit, layers=2, width=48, heads=3, hidden=80, image=64, classes=10),
    "gpt2": partial(gpt2, tokens=9, layers=2, width=24, heads=3, vocabulary=_VOCABULARY, batch=2),
    "bert": partial(bert, tokens=9, layers=2, width=24, heads=3, hidden=40, vocabulary=_VOCABULARY, batch=2),
    "bert of one token": partial(bert, tokens=1, layers=2, width=24, heads=3, hidden=40, vocabulary=_VOCABULARY, batch=16),
    "lstm": partial(_LM, "lstm", "LSTM", batch=16),
    "gru": partial(_LM, "gru", "GRU", batch=16, tokens=3, layers=3),
}


def _session(path: Path, *, optimised: bool = False) -> ort.InferenceSession:
    options = session_options(1, optimised=optimised)
    if optimised:
        options.optimized_model_filepath = str(path.with_suffix(".optimized.onnx"))
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def _inputs(session: ort.InferenceSession, seed: int = 0) -> dict[str, Array]:
    """Seeded inputs: any ids, masks whose last quarter is padding, images and states of both signs."""
    rng, found = np.random.default_rng(seed), {}
    for one in session.get_inputs():
        if one.name == "attention_mask":
            found[one.name] = np.ones(one.shape, np.int64)
            found[one.name][:, one.shape[1] - one.shape[1] // 4 :] = 0
        elif one.type == "tensor(int64)":
            found[one.name] = rng.integers(0, _VOCABULARY, one.shape)
        else:
            found[one.name] = rng.standard_normal(one.shape).astype(np.float32)
    return found


def _run(path: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    names = (output.name for output in onnx.load(path).graph.output)
    return dict(zip(names, onnxruntime_outputs(path, inputs), strict=True))


def _saved(build: Callable[[], Workload], path: Path, seed: int = 0) -> Path:
    save_workload(build(), path, seed)
    onnx.checker.check_model(str(path), full_check=True)
    return path


def _check_scale(outputs: Mapping[str, Array]) -> None:
    for name, found in outputs.items():
        assert np.isfinite(found).all(), name
        assert 0.01 < found.std() < 30, name


@pytest.mark.parametrize("name", [*_SMALL, "inception_v3"])
def test_a_model_is_valid_and_its_outputs_are_of_a_sane_scale_and_differ(name: str, tmp_path: Path) -> None:
    path = _saved({**WORKLOADS, **_SMALL}[name], tmp_path / "model.onnx")
    session = _session(path)
    first, second = (_run(path, _inputs(session, seed)) for seed in (0, 1))
    _check_scale(first)
    for output, found in first.items():
        assert tuple(found.shape) == tuple(next(o.shape for o in session.get_outputs() if o.name == output))
        assert np.abs(found - second[output]).max() > 0.01 * np.abs(found).max(), "the outputs say nothing of the inputs"


@pytest.mark.parametrize("name", _SMALL)
def test_a_seed_decides_all_bytes(name: str, tmp_path: Path) -> None:
    first, again, other = (save_workload(_SMALL[name](), tmp_path / f"{i}.onnx", seed) for i, seed in enumerate((3, 3, 4)))
    assert first.read_bytes() == again.read_bytes() != other.read_bytes()


def test_values_of_weights_stay_as_they_are() -> None:
    (drawn,) = Uniform(0.5, 1.0).draw("layer.weight", 4, seed=7)
    assert drawn.tolist() == pytest.approx([0.9090617, 0.9858565, 0.9455466, 0.7814239], rel=1e-6)


def test_a_token_of_gpt2_knows_those_before_it_alone(tmp_path: Path) -> None:
    path = _saved(_SMALL["gpt2"], tmp_path / "model.onnx")
    inputs = _inputs(_session(path))
    before = _run(path, inputs)["logits"]
    inputs["input_ids"][:, 5] = (inputs["input_ids"][:, 5] + 1) % _VOCABULARY
    differing = np.abs(_run(path, inputs)["logits"] - before).max(axis=(0, 2)) > 0
    assert differing.tolist() == [False] * 5 + [True] * 4


def test_bert_does_not_see_padding(tmp_path: Path) -> None:
    path = _saved(_SMALL["bert"], tmp_path / "model.onnx")
    inputs = _inputs(_session(path))
    kept = inputs["attention_mask"][0] == 1
    assert 0 < kept.sum() < kept.size
    before = _run(path, inputs)["last_hidden_state"]
    inputs["input_ids"][:, ~kept] = (inputs["input_ids"][:, ~kept] + 1) % _VOCABULARY
    after = _run(path, inputs)["last_hidden_state"]
    assert np.array_equal(after[:, kept], before[:, kept])
    inputs["attention_mask"][:] = 1
    assert np.abs(_run(path, inputs)["last_hidden_state"] - after)[:, kept].max() > 1e-3


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
def test_steps_one_by_one_are_the_steps_at_once(cell: str, tmp_path: Path) -> None:
    whole = _saved(partial(_LM, "m", cell, batch=2, tokens=3), tmp_path / "whole.onnx")
    single = _saved(partial(_LM, "m", cell, batch=2), tmp_path / "single.onnx")
    inputs = _inputs(_session(whole))
    wanted, ids = _run(whole, inputs), inputs["input_ids"]
    state = {name: values for name, values in inputs.items() if name != "input_ids"}
    for step in range(3):
        found = _run(single, {"input_ids": ids[step : step + 1], **state})
        assert found["logits"][0] == pytest.approx(wanted["logits"][step], abs=1e-5)
        state = {name: found[f"{name}_out"] for name in state}
    assert all(state[name] == pytest.approx(wanted[f"{name}_out"], abs=1e-5) for name in state)


@pytest.mark.parametrize("name", ["vit", "bert"])
def test_engines_know_the_forms_of_exporters_again(name: str, tmp_path: Path) -> None:
    """ONNX Runtime joins what it has rules for: five nodes of each GELU, with the bias before, to one."""
    path = _saved(_SMALL[name], tmp_path / "model.onnx")
    _session(path, optimised=True)
    joined = [node.op_type for node in onnx.load(path.with_suffix(".optimized.onnx")).graph.node]
    assert joined.count("BiasGelu") + joined.count("Gelu") == 2
    assert "Erf" not in joined


@pytest.mark.parametrize("name", _SMALL)
def test_the_runtime_computes_what_onnx_runtime_does_under_every_layout(dnnl: Dnnl, name: str, tmp_path: Path) -> None:
    workload = _SMALL[name]()
    path = _saved(lambda: workload, tmp_path / "model.onnx")
    inputs = _inputs(_session(path))
    wanted = _run(path, inputs)
    for how, found in each_way(dnnl, path, inputs, some(HOMES, name), 1):
        for output, expected in wanted.items():
            error = np.abs(found[output] - expected).max() / np.abs(expected).max()
            assert error <= _TOLERANCE, f"{output} is off by {error} {how}"
    loaded = load_onnx(path)
    assert graph_macs(loaded) == macs(workload)
    if isinstance(workload, Graph):  # of others the graph counts numbers and masks among the weights
        assert graph_parameters(loaded) == parameters(workload)


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_an_unrolled_layer_is_the_layer(dnnl: Dnnl, tmp_path: Path, cell: Literal["LSTM", "GRU"], tokens: int) -> None:
    sizes = {"vocabulary": 97, "embedding": 12, "hidden": 8, "batch": 4}
    made = unrolled_language_model("unrolled", cell, tokens=tokens, **sizes)
    layer = recurrent_language_model("layer", cell, tokens=tokens, **sizes)
    assert parameters(made) == parameters(layer)
    assert macs(made) == macs(layer)
    path = save_workload(made, tmp_path / "model.onnx")
    inputs = _inputs(_session(path))
    expected = _run(path, inputs)
    found = own_outputs(dnnl, path, inputs)
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)


_SEED, _MOST_BYTES, _TURNS = 4, 125_000_000, max(len(kinds) for _, kinds in FAMILIES.values())
#: One of each element type, and the families whose nodes are most unlike.
_FIRST = [("decoder", "float32"), ("tagger", "dynamic"), ("mobile_cnn", "qdq"), ("table", "float32"), ("recurrent", "float32")]
_EACH = list(dict.fromkeys([*_FIRST, *((family, kind) for family, (_, kinds) in FAMILIES.items() for kind in kinds)]))
Models = Mapping[tuple[str, str], ExportedModel]


@pytest.fixture(scope="module")
def models() -> Models:
    """The first model of each family in each element type."""
    found: dict[tuple[str, str], ExportedModel] = {}
    for model in export_models(_SEED, _TURNS):
        found.setdefault((model.family, model.elements), model)
    assert set(found) == set(_EACH)
    return found


@pytest.mark.parametrize("drawn", by_day(_EACH, least=len(_FIRST)), ids="-".join)
def test_a_drawn_model_is_valid_and_runs_with_finite_outputs(models: Models, tmp_path: Path, drawn: tuple[str, str]) -> None:
    path, kind = models[drawn].write(tmp_path / "model.onnx"), drawn[1]
    assert path.stat().st_size < _MOST_BYTES
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert 13 <= next(one.version for one in model.opset_import if not one.domain) <= 18
    assert all(dim.dim_value > 0 for one in model.graph.input for dim in one.type.tensor_type.shape.dim)
    written = {node.op_type for node in model.graph.node}
    assert ("DynamicQuantizeLinear" in written or "DynamicQuantizeLSTM" in written) == (kind == "dynamic")
    assert ("QuantizeLinear" in written) == (kind == "qdq")
    outputs = _session(path, optimised=True).run(None, random_inputs(model))
    assert all(value.size and np.isfinite(value).all() for value in outputs)


def test_a_seed_gives_the_same_models_and_bytes_another_seed_other_sizes(models: Models, tmp_path: Path) -> None:
    same, again, other = (list(export_models(seed, 1)) for seed in (_SEED, _SEED, _SEED + 1))
    assert len({model.name for model in same}) == len(FAMILIES)
    for one, two in zip(same, again, strict=True):
        assert one.name == two.name
        assert one.exported.model.SerializeToString() == two.exported.model.SerializeToString()
    assert all(one.exported.model != two.exported.model for one, two in zip(same, other, strict=True))
    for kind in ("float32", "dynamic", "qdq"):
        small = models["table", kind]
        assert small.write(tmp_path / "a").read_bytes() == small.write(tmp_path / "b").read_bytes()


def test_batches_are_of_one_and_of_more_and_those_of_one_are_most_frequent() -> None:
    shapes = [model.exported.model.graph.input[0].type.tensor_type.shape for model in export_models(_SEED, 4)]
    batches = [shape.dim[0].dim_value for shape in shapes]
    assert max(batches) > 8
    assert 0.4 < batches.count(1) / len(batches) < 0.85
