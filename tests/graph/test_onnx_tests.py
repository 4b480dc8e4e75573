"""ONNX's own tests of operators, exporters' single layers and whole architectures: computed as they say, or refused by name.

Inputs that an operator takes as constants (the starts of a Slice, the shape of a Reshape) are fixed, as `--set` fixes them.
"""

from __future__ import annotations

import csv
import math
import warnings
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_file_runs import own_outputs
from onnx import TensorProto, numpy_helper, version_converter
from onnx.backend.test.case.node import collect_testcases
from onnx.backend.test.loader import DATA_DIR

from depth import MANY
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.errors import EdgeplanError
from edgeplan.graph.onnx.prepare import Preparation, prepared_model
from edgeplan.graph.operators.registry import SPECS
from edgeplan.runtime.dnnl import Dnnl

_TOLERANCE = 1e-3  # that of the tests themselves


@dataclass(frozen=True)
class Case:
    """A model, its inputs and the outputs that they give."""

    name: str
    model: onnx.ModelProto
    inputs: list[Any]
    outputs: list[Any]


def _fixed(case: Case) -> tuple[onnx.ModelProto, dict[str, Any]]:
    """The model with what steers it as constants, and its other inputs."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    given: dict[str, Any] = {}
    steering = set()
    for node in model.graph.node:
        spec = SPECS.get(node.op_type)
        roles = [role for role in spec.constants if role not in spec.computed] if spec else ()
        weights = {"Conv", "ConvTranspose", "BatchNormalization", "LSTM", "GRU", "RNN", "LayerNormalization", "PRelu"}
        weights |= {"InstanceNormalization", "GroupNormalization", "RMSNormalization", "QLinearConv", "ConvInteger"}
        steering |= {name for name, role in zip(node.input, roles, strict=False) if role}
        steering |= set(node.input[1:]) if node.op_type in weights else set()
        steering |= set(node.input[1:2]) if node.op_type in ("OneHot", "Compress", "CenterCropPad") else set()
        steering |= set(node.input[1:]) if node.op_type == "DFT" else set()
    stored = {tensor.name for tensor in model.graph.initializer}  # old files list them among the inputs
    for place, value in enumerate([i for i in model.graph.input if i.name not in stored]):
        array = np.asarray(case.inputs[place])
        if value.name in steering:
            model.graph.input.remove(value)
            model.graph.initializer.append(numpy_helper.from_array(array, value.name))
        else:
            given[value.name] = array
    return model, given


def outcome(dnnl: Dnnl, case: Case, folder: Path) -> str:
    """`equal`, `wrong: ...` or `refused: ...`."""
    model, given = _fixed(case)
    wanted = [np.asarray(value) for value in case.outputs]
    path = folder / "model.onnx"
    try:
        onnx.save(prepared_model(model, Preparation(), case.name), path)
        graph, _ = read_model(path)
        found = own_outputs(dnnl, path, {name: given[name] for name in graph.inputs})
    except EdgeplanError as error:
        return f"refused: {error.what}"
    for name, expected in zip(graph.outputs, wanted, strict=True):
        if (found[name].shape, found[name].dtype) != (expected.shape, expected.dtype):
            return f"wrong: {found[name].dtype}{found[name].shape}, not {expected.dtype}{expected.shape}"
        with np.errstate(invalid="ignore"):
            error = np.abs(found[name].astype(np.float64) - expected)
        finite = expected[np.isfinite(expected)]
        worst = error[~(np.isnan(error) & ~np.isfinite(expected))]
        if worst.size and not worst.max() <= _TOLERANCE * max(1e-6, np.abs(finite).max(initial=0.0)):
            return f"wrong: by {worst.max():.1e} of {np.abs(finite).max(initial=0.0):.1e}"
    return "equal"


_TYPES = {
    TensorProto.FLOAT, TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.UINT8, TensorProto.INT8,
}  # fmt: skip
#: Operators whose tests are asked for.
_OPERATORS = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh Attention AveragePool BatchNormalization
    BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Ceil Celu CenterCropPad Clip Compress Concat Conv
    ConvInteger ConvTranspose Cos Cosh CumSum DFT DepthToSpace DequantizeLinear Div DynamicQuantizeLinear Elu Equal
    Erf Exp Expand EyeLike Flatten Floor GRU Gather GatherElements GatherND Gelu Gemm GlobalAveragePool
    GlobalMaxPool GridSample Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish Hardmax Identity
    InstanceNormalization IsInf IsNaN LRN LSTM LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax
    LpNormalization LpPool MatMul MatMulInteger Max MaxPool Mean MeanVarianceNormalization Min Mish Mod Mul Neg
    Not OneHot Or PRelu Pad Pow QLinearConv QLinearMatMul QuantizeLinear RMSNormalization RNN Reciprocal
    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare Relu Reshape Resize ReverseSequence RotaryEmbedding Round ScatterElements ScatterND Selu
    Shrink Sigmoid Sign Sin Sinh Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum SwiGLU
    Swish Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze Upsample Where Xor
    """.split()  # noqa: SIM905  readable
)
#: What ONNX Runtime, which outputs are held to, computes otherwise than these tests say: it places pixels by whole sizes.
_OTHERWISE = frozenset(
    {"test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners"}
)
#: Those that are refused, and why.
_LIST = Path(__file__).parents[2] / "docs/refused-node-tests.csv"
#: Most of those that may be refused or computed otherwise.
_MOST_REFUSED = 0.05


@cache
def cases() -> dict[str, list[Case]]:
    """The tests of the operators asked for, of types that the graph knows, by the operator of the first node."""
    found = defaultdict(list)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numpy, in how the cases are made
        made = collect_testcases(None)
    for case in made:
        model = case.model
        if model is None or not case.data_sets or "_expanded" in case.name:
            continue
        types = {v.type.tensor_type.elem_type for v in (*model.graph.input, *model.graph.output)}
        tensors = all(v.type.HasField("tensor_type") for v in (*model.graph.input, *model.graph.output))
        operators = [node.op_type for node in model.graph.node]
        if tensors and types <= _TYPES and set(operators) <= _OPERATORS:
            found[operators[0]].append(Case(case.name, model, *map(list, case.data_sets[0])))
    return found


@cache
def _refused() -> dict[str, str]:
    with _LIST.open(newline="") as listed:
        return {row["test"]: row["refused_because"] for row in csv.DictReader(listed)}


def test_there_are_hundreds_of_them_and_most_are_computed() -> None:
    names = {case.name for of in cases().values() for case in of}
    assert len(names) > 300
    assert _refused().keys() | _OTHERWISE <= names
    assert len(_refused()) + len(_OTHERWISE) <= _MOST_REFUSED * len(names)


@pytest.mark.parametrize("operator", sorted(_OPERATORS - {"Cast"}))  # which only stands behind others here
def test_none_is_wrong_and_what_is_refused_is_listed(dnnl: Dnnl, tmp_path: Path, operator: str) -> None:
    every = 3 if operator == "Attention" and not MANY else 1  # of its 82 cases, products of a few features
    found = {case.name: outcome(dnnl, case, tmp_path) for case in cases()[operator][::every]}
    assert found
    assert not {name: told for name, told in found.items() if told.startswith("wrong") and name not in _OTHERWISE}
    refused = {name: told.removeprefix("refused: ") for name, told in found.items() if told.startswith("refused")}
    assert refused == {name: why for name, why in _refused().items() if name in found}


_DATA = Path(DATA_DIR)
#: Why a test is refused, by a word of the message, and how many there are: ONNX converts slopes to other channels.
_REFUSED = {"float64": 5, "PRelu of opset 6": 6}
_OLD = "which has another form since"
#: They take a second or two; the others hold up to half a gigabyte of constants.
_FAST = frozenset({"squeezenet", "shufflenet"})


def _array(path: Path) -> np.ndarray:
    return numpy_helper.to_array(TensorProto.FromString(path.read_bytes()))


def _case(folder: Path) -> Case:
    data = folder / "test_data_set_0"
    given = [
        [_array(data / f"{side}_{k}.pb") for k in range(len(list(data.glob(f"{side}_*.pb"))))] for side in ("input", "output")
    ]
    return Case(folder.name, onnx.load(folder / "model.onnx"), *given)


def _told(dnnl: Dnnl, case: Case, folder: Path) -> str:
    """What becomes of a test, converted where an operator is older than opset 7 and the message says how."""
    told = outcome(dnnl, case, folder)
    if _OLD not in told or "PRelu" in told:
        return told
    return outcome(dnnl, replace(case, model=version_converter.convert_version(case.model, 13)), folder)


def test_what_pytorch_exported_is_computed_or_refused_by_name(dnnl: Dnnl, tmp_path: Path) -> None:
    folders = [folder for kind in ("pytorch-converted", "pytorch-operator") for folder in sorted((_DATA / kind).glob("test_*"))]
    found = {folder.name: _told(dnnl, _case(folder), tmp_path) for folder in folders}
    assert len(found) > 100
    assert not {name: told for name, told in found.items() if told.startswith("wrong")}
    refused = Counter(next((w for w in _REFUSED if w in told), told) for told in found.values() if told != "equal")
    assert refused == _REFUSED


def _light(name: str) -> Case:
    model = onnx.load(_DATA / f"light/light_{name}.onnx")
    stored = {tensor.name for tensor in model.graph.initializer}
    (given,) = [i for i in model.graph.input if i.name not in stored]
    shape = [d.dim_value for d in given.type.tensor_type.shape.dim]
    ramp = (np.arange(math.prod(shape)).reshape(shape) / math.prod(shape)).astype(np.float32)  # as ONNX's runner makes it
    return Case(name, model, [ramp], [_array(_DATA / f"light/light_{name}_output_0.pb")])


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in _FAST else pytest.mark.slow)
        for name in sorted(path.stem.removeprefix("light_") for path in (_DATA / "light").glob("*.onnx"))
    ],
)
def test_whole_architectures_give_what_onnx_says(dnnl: Dnnl, tmp_path: Path, name: str) -> None:
    assert outcome(dnnl, _light(name), tmp_path) == "equal"
