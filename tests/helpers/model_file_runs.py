"""Model files of a few nodes: what is said of wrong ones, and outputs by ONNX Runtime, by the runtime and from plan folders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from plan_folders import start_right

from depth import some
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.engines.base import random_inputs
from edgeplan.errors import ModelError
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.compare import session_options
from edgeplan.graph.onnx.prepare import Preparation, load_prepared, prepare_file
from edgeplan.graph.onnx.read import from_onnx
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES, NCHW
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.program import build_program, default_program, step_candidates
from edgeplan.runtime.session import SequentialSession
from edgeplan.runtime.weights import locate_weights

Array = npt.NDArray[np.float32]
AnyArray = npt.NDArray[Any]
_TOLERANCE = 1e-4
_CANDIDATES = 2


def values(*shape: int, seed: int = 0) -> Array:
    """Seeded weights around 0."""
    return np.random.default_rng(seed).uniform(-0.5, 0.5, shape).astype(np.float32)


def node(op_type: str, reads: str | Sequence[str], writes: str | Sequence[str] = "y", **attributes: Any) -> onnx.NodeProto:
    """A node; names in one text are parted by spaces, and `-` stands for an absent input."""
    inputs = ["" if name == "-" else name for name in (reads.split() if isinstance(reads, str) else reads)]
    return helper.make_node(op_type, inputs, writes.split() if isinstance(writes, str) else list(writes), **attributes)


def weight(name: str, *shape: int, kind: type = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.full(shape, 0.25, dtype=kind), name)


def integers(name: str, *given: int) -> TensorProto:
    return numpy_helper.from_array(np.array(given, dtype=np.int64), name)


IMAGE = (1, 4, 8, 8)
W = weight("w", 6, 4, 3, 3)


def conv(x: str = "x", y: str = "y", **attributes: Any) -> onnx.NodeProto:
    """A convolution named `c` with the weight `w`."""
    return node("Conv", [x, "w"], [y], **{"name": "c", **attributes})


def model(
    nodes: Sequence[onnx.NodeProto],
    constants: Sequence[TensorProto] = (),
    shape: Sequence[int | str] = IMAGE,
    *,
    output: Sequence[int] | None = None,
    opset: int = 17,
    more: Sequence[tuple[str, Sequence[int]]] = (),
) -> onnx.ModelProto:
    """A model from `x` of this shape to `y`, of which the file says this shape; `more` are further inputs."""
    found = made(nodes, {"x": shape}, opset=opset)
    found.graph.input.extend(told(*pair) for pair in more)
    found.graph.output[0].CopyFrom(told("y", output))
    found.graph.initializer.extend(constants)
    return found


def refused(given: onnx.ModelProto, said: str) -> ModelError:
    """The error in which a model ends, whose message holds these words."""
    with pytest.raises(ModelError, match=said) as caught:
        from_onnx(given, "the file")
    assert caught.value.where.startswith("the file")
    assert caught.value.next_step
    return caught.value


def unprepared(given: onnx.ModelProto, folder: Path, said: str) -> ModelError:
    """The error in which the preparation of a model ends, or the reading of what it leaves."""
    with pytest.raises(ModelError, match=said) as caught:
        load_prepared(write(given, folder / "m.onnx"), Preparation())
    assert caught.value.next_step
    return caught.value


def told(name: str, given: Any, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    """What a file says of an input or output: a shape, or a type and a shape."""
    typed = isinstance(given, tuple) and len(given) == 2 and (given[1] is None or isinstance(given[1], list | tuple))
    return helper.make_tensor_value_info(name, *(given if typed else (kind, given)))


def made(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Any],
    constants: Mapping[str, npt.ArrayLike] | None = None,
    *,
    output: str = "y",
    opset: int = 17,
    kind: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """A model of these nodes; inputs are told by shapes, or by types and shapes, outputs by names that spaces part."""
    body = helper.make_graph(
        list(nodes),
        "made",
        [told(name, given, kind) for name, given in inputs.items()],
        [told(name, None, kind) for name in output.split()],
        [numpy_helper.from_array(np.asarray(v), name) for name, v in (constants or {}).items()],
    )
    domains = [helper.make_opsetid(domain, 1) for domain in sorted({n.domain for n in nodes if n.domain})]
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", opset), *domains], ir_version=8)


def write(model: onnx.ModelProto, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def onnxruntime_outputs(given: Path | onnx.ModelProto, inputs: Mapping[str, AnyArray]) -> list[AnyArray]:
    """Outputs of ONNX Runtime, operator by operator."""
    whole = str(given) if isinstance(given, Path) else given.SerializeToString()
    session = ort.InferenceSession(whole, session_options(1, optimised=False), providers=["CPUExecutionProvider"])
    return [np.asarray(found) for found in session.run(None, {i.name: inputs[i.name] for i in session.get_inputs()})]


def own_outputs(dnnl: Dnnl, path: Path, inputs: Mapping[str, AnyArray], home: str = NCHW) -> dict[str, AnyArray]:
    """What the runtime computes of a file, by the first candidate of each step."""
    graph, _ = read_model(path)
    return dict(SequentialSession(dnnl, default_program(dnnl, path, graph, home), path.parent).run(dict(inputs)))


def prepared_outputs(
    dnnl: Dnnl, given: onnx.ModelProto | Path, inputs: Mapping[str, AnyArray], folder: Path
) -> dict[str, AnyArray]:
    """What the runtime computes of a model once it is prepared, as `prepared.onnx` of the folder."""
    path = given if isinstance(given, Path) else write(given, folder / "given.onnx")
    return own_outputs(dnnl, prepare_file(path, Preparation(), folder / "prepared.onnx"), inputs)


def each_way(
    dnnl: Dnnl, path: Path, inputs: Mapping[str, AnyArray], homes: Iterable[str] = HOMES, most: int | None = _CANDIDATES
) -> Iterator[tuple[str, dict[str, AnyArray]]]:
    """What the runtime computes under home layouts, by so many candidates of each step (None: all), and how it was."""
    _, lowered = read_model(path)
    weights = locate_weights(path, lowered)
    dnnl.set_threads(1)
    for home in homes:
        offered = step_candidates(dnnl, lowered, home)
        for k in range(max(map(len, offered)))[:most]:
            choices = [candidates[min(k, len(candidates) - 1)] for candidates in offered]
            program = build_program(dnnl, lowered, home, choices, weights)
            how = f"under {home}: {[choice.name for choice in choices]}"
            yield how, dict(SequentialSession(dnnl, program, path.parent).run(dict(inputs)))


def assert_runs(dnnl: Dnnl, path: Path, like: Path | None = None, most: int | None = _CANDIDATES) -> Lowered:
    """A model gives what ONNX Runtime gives, for it or for another that means the same, by day under one layout; its steps."""
    graph, lowered = read_model(path)
    inputs = random_inputs(graph)
    wanted = dict(zip(graph.outputs, onnxruntime_outputs(like or path, inputs), strict=True))
    for how, found in each_way(dnnl, path, inputs, some(HOMES, str(path.stat().st_size)), most):
        for name, value in wanted.items():
            assert found[name].shape == value.shape
            assert np.abs(found[name] - value).max() <= _TOLERANCE * np.abs(value).max(), how
    return lowered


def assert_starts(dnnl: Dnnl, planned: object, path: Path, folder: Path, like: Path | None = None) -> None:
    """A plan of a model starts from its raw weights, and from cached ones, with the outputs of ONNX Runtime."""
    graph, _ = read_model(path)
    for sources in (("raw",), ("cached_mmap",)):
        plan = planned(path, graph, sources=sources, model_sha256=model_sha256(path))  # type: ignore[operator]
        built = build_plan_folder(dnnl, path, plan, folder / sources[0])
        wanted = onnxruntime_outputs(like or path, random_inputs(graph))
        start_right(built, graph, dict(zip(graph.outputs, wanted, strict=True)))
