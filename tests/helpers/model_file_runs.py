"""Model files as `edgeplan plan cold-start` reads them, run under every home layout and from a plan folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from plan_starts import start_right

from depth import some
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.engines.base import random_inputs
from edgeplan.graph.ir import Graph
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.program import build_program, step_candidates
from edgeplan.runtime.session import SequentialSession
from edgeplan.runtime.weights import locate_weights

Array = npt.NDArray[np.float32]
_TOLERANCE = 1e-4
_CANDIDATES = 2


def values(*shape: int, seed: int = 0) -> Array:
    """Seeded weights around 0."""
    return np.random.default_rng(seed).uniform(-0.5, 0.5, shape).astype(np.float32)


def node(op_type: str, reads: str, writes: str = "y", **attributes: object) -> onnx.NodeProto:
    """A node without a name; `-` stands for an absent input."""
    return helper.make_node(op_type, ["" if name == "-" else name for name in reads.split()], writes.split(), **attributes)


def made(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, npt.ArrayLike] | None = None,
    *,
    output: str = "y",
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model of these nodes."""
    body = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(output, kind, None)],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (constants or {}).items()],
    )
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def write(model: onnx.ModelProto, path: Path) -> Path:
    """Write a model, its folder, too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def reference(path: Path, graph: Graph) -> Mapping[str, Array]:
    """Outputs of ONNX Runtime, operator by operator, for `random_inputs`."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip(graph.outputs, session.run(None, random_inputs(graph)), strict=True))


def assert_runs(dnnl: Dnnl, path: Path, like: Path | None = None) -> Lowered:
    """A model gives what ONNX Runtime gives, for it or for another that means the same, by day under one layout; its steps."""
    graph, lowered = read_model(path)
    wanted = reference(like or path, graph)
    weights = locate_weights(path, lowered)
    dnnl.set_threads(1)
    for home in some(HOMES, str(path.stat().st_size)):
        offered = step_candidates(dnnl, lowered, home)
        for k in range(min(_CANDIDATES, max(map(len, offered)))):
            choices = [candidates[min(k, len(candidates) - 1)] for candidates in offered]
            program = build_program(dnnl, lowered, home, choices, weights)
            found = SequentialSession(dnnl, program, path.parent).run(random_inputs(graph))
            for name, value in wanted.items():
                assert found[name].shape == value.shape
                assert np.abs(found[name] - value).max() <= _TOLERANCE * np.abs(value).max(), (home, k)
    return lowered


def assert_starts(dnnl: Dnnl, planned: object, path: Path, folder: Path, like: Path | None = None) -> None:
    """A plan of a model starts from its raw weights, and from cached ones, with the outputs of ONNX Runtime."""
    graph, _ = read_model(path)
    for sources in (("raw",), ("cached_mmap",)):
        plan = planned(path, graph, sources=sources, model_sha256=model_sha256(path))  # type: ignore[operator]
        built = build_plan_folder(dnnl, path, plan, folder / sources[0])
        start_right(built, graph, reference(like or path, graph))
