"""ONNX's own tests of single operators: computed as they say, or refused by name; never wrong."""

from __future__ import annotations

import csv
import warnings
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest
from onnx import TensorProto
from onnx.backend.test.case.node import collect_testcases
from onnx_cases import Case, outcome

from edgeplan.runtime.dnnl import Dnnl

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
    found = {case.name: outcome(dnnl, case, tmp_path) for case in cases()[operator]}
    assert found
    assert not {name: told for name, told in found.items() if told.startswith("wrong") and name not in _OTHERWISE}
    refused = {name: told.removeprefix("refused: ") for name, told in found.items() if told.startswith("refused")}
    assert refused == {name: why for name, why in _refused().items() if name in found}
