"""ONNX's own tests of small models: exporters' single layers, and whole architectures of constant weights."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper, version_converter
from onnx.backend.test.loader import DATA_DIR
from onnx_cases import Case, outcome

from edgeplan.runtime.dnnl import Dnnl

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
