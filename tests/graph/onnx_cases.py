"""Tests that the package `onnx` ships: a model, its inputs, and the outputs that they give.

Inputs that an operator takes as constants (the starts of a Slice, the shape of a Reshape) are fixed, as `--set` fixes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from edgeplan.chapters.cold_start.api import read_model
from edgeplan.errors import EdgeplanError
from edgeplan.graph.onnx.prepare import Preparation, prepared
from edgeplan.graph.operators.registry import SPECS
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import NCHW
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession

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
        onnx.save(prepared(model, Preparation(), case.name), path)
        graph, _ = read_model(path)
        program = default_program(dnnl, path, graph, NCHW)
        found = SequentialSession(dnnl, program, folder).run({name: given[name] for name in graph.inputs})
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
