"""Models drawn as exporters write them: valid, finite, the same of a seed, and run as the nodes that real files have."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from depth import by_day
from edgeplan.workloads.exports import FAMILIES, ExportedModel, export_models, random_inputs

LANE = "numerics"
_SEED, _MOST_BYTES, _TURNS = 4, 125_000_000, max(len(kinds) for _, kinds in FAMILIES.values())
_EACH = [(family, kind) for family, (_, kinds) in FAMILIES.items() for kind in dict.fromkeys(kinds)]
#: One of each element type, and the families whose nodes are most unlike.
_FIRST = [("decoder", "float32"), ("tagger", "dynamic"), ("mobile_cnn", "qdq"), ("table", "float32"), ("recurrent", "float32")]
#: What ONNX Runtime executes of two models a family.
_EXECUTED = """
Add ArgMax Cast Clip Concat Conv ConvTranspose DequantizeLinear Div DynamicQuantizeLinear DynamicQuantizeLSTM
DynamicQuantizeMatMul Erf Expand FastGelu Flatten FusedConv FusedGemm FusedMatMul GRU Gather Gelu Gemm HardSigmoid
InstanceNormalization LSTM LayerNormalization LeakyRelu MatMul MatMulIntegerToFloat MaxPool Mul Neg Pad Pow QGemm QLinearAdd
QLinearConcat QLinearConv QLinearMatMul QuantizeLinear QuickGelu ReduceMean Relu ReorderInput ReorderOutput Reshape Resize
Sigmoid SimplifiedLayerNormalization SkipLayerNormalization Softmax Split Sqrt Sub Tanh TopK Transpose Unsqueeze Where
"""
Models = Mapping[tuple[str, str], ExportedModel]


@pytest.fixture(scope="module")
def models() -> Models:
    """The first model of each family in each element type."""
    found: dict[tuple[str, str], ExportedModel] = {}
    for model in export_models(_SEED, _TURNS):
        found.setdefault((model.family, model.elements), model)
    assert set(found) == set(_EACH)
    return found


def _executed(path: Path) -> list[onnx.NodeProto]:
    """Run a model once; return the nodes that are executed."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.optimized_model_filepath = str(path.with_suffix(".optimised"))
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    outputs = session.run(None, random_inputs(onnx.load(path)))
    assert all(np.isfinite(value).all() for value in outputs)
    assert all(value.size for value in outputs)
    return list(onnx.load(path.with_suffix(".optimised")).graph.node)


@pytest.mark.parametrize(("family", "kind"), by_day([*_FIRST, *(one for one in _EACH if one not in _FIRST)], len(_FIRST), 2))
def test_a_drawn_model_is_valid_and_runs_with_finite_outputs(models: Models, tmp_path: Path, family: str, kind: str) -> None:
    path = models[family, kind].write(tmp_path / "model.onnx")
    assert path.stat().st_size < _MOST_BYTES
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert 13 <= next(one.version for one in model.opset_import if not one.domain) <= 18
    assert all(dim.dim_value > 0 for one in model.graph.input for dim in one.type.tensor_type.shape.dim)
    written = {node.op_type for node in model.graph.node}
    assert ("DynamicQuantizeLinear" in written or "DynamicQuantizeLSTM" in written) == (kind == "dynamic")
    assert ("QuantizeLinear" in written) == (kind == "qdq")
    assert _executed(path)


def test_a_seed_gives_the_same_models_another_seed_other_sizes(tmp_path: Path) -> None:
    same, again, other = (list(export_models(seed, 1)) for seed in (_SEED, _SEED, _SEED + 1))
    assert len({model.name for model in same}) == len(FAMILIES)
    for one, two in zip(same, again, strict=True):
        assert one.name == two.name
        assert one.exported.model.SerializeToString() == two.exported.model.SerializeToString()
    assert all(one.exported.model != two.exported.model for one, two in zip(same, other, strict=True))
    small = next(model for model in same if model.family == "table")
    assert small.write(tmp_path / "a").read_bytes() == small.write(tmp_path / "b").read_bytes()


@pytest.mark.parametrize("kind", ["dynamic", "qdq"])
def test_quantising_a_model_again_gives_the_same_bytes(models: Models, tmp_path: Path, kind: str) -> None:
    model = models["table", kind]
    assert model.write(tmp_path / "a").read_bytes() == model.write(tmp_path / "b").read_bytes()


def test_batches_are_of_one_and_of_more_and_those_of_one_are_most_frequent() -> None:
    shapes = [model.exported.model.graph.input[0].type.tensor_type.shape for model in export_models(_SEED, 4)]
    batches = [shape.dim[0].dim_value for shape in shapes]
    assert max(batches) > 8
    assert 0.4 < batches.count(1) / len(batches) < 0.85


@pytest.mark.long
def test_drawn_models_execute_the_types_that_exported_files_execute(tmp_path: Path) -> None:
    executed = {node.op_type for model in export_models(_SEED, 2) for node in _executed(model.write(tmp_path / model.name))}
    assert not set(_EXECUTED.split()) - executed
