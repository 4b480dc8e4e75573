"""Prepares models for ncnn, f32: the engine that NNV12 extends."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from edgeplan.engines.cold import Artefact, model_outputs
from edgeplan.engines.description import UnsupportedError
from edgeplan.graph.model_file import model_files
from edgeplan.support.lazy import lazily
from edgeplan.support.subprocesses import program_command, run


def converted(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Convert the model by pnnx; UnsupportedError where it cannot be converted, or is not of a batch of one."""
    del threads
    if any(shape[0] != 1 or len(shape) == 1 for shape in inputs.values()):
        raise UnsupportedError("ncnn has no batch axis: only batches of one")
    param, weights = convert(model, inputs, folder)
    return Artefact(
        main=param,
        files=(param, weights),
        companions={"weights": weights},
        outputs={f"out{index}": shape for index, shape in enumerate(model_outputs(model).values())},
        note=f"converted by pnnx {converter_version()}",
    )


if TYPE_CHECKING:
    import onnx
    from google.protobuf import message

    from edgeplan.graph.onnx import constants
else:  # preparing alone needs them
    onnx, message, constants = map(lazily, ("onnx", "google.protobuf.message", "edgeplan.graph.onnx.constants"))

_SECONDS = 600
#: What pnnx says of an operator for which it knows no ncnn layer; it writes a file all the same, which ncnn then refuses.
_UNKNOWN = "todo "
_STEPS_BATCH_DIRECTIONS = [0, 2, 1, 3]
_JOINED = [0, 0, -1]


def convert(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path) -> tuple[Path, Path]:
    """Write ncnn's `.param` and `.bin` of an ONNX model, f32, into `folder`."""
    program = _pnnx()
    param, weights = folder / "model.ncnn.param", folder / "model.ncnn.bin"
    with tempfile.TemporaryDirectory(dir=folder) as made:
        work = Path(made)
        shapes = ",".join(f"[{','.join(map(str, shape))}]f32" for shape in inputs.values())
        command = program_command(program, str(_source(model, work)), "fp16=0", f"inputshape={shapes}")
        try:
            done = run(command, timeout=_SECONDS, cwd=work)
        except subprocess.TimeoutExpired as error:
            raise UnsupportedError(f"pnnx did not convert the model within {_SECONDS} s") from error
        said = (done.stdout + done.stderr).decode(errors="replace").splitlines()
        unknown = sorted({line.removeprefix(_UNKNOWN).strip() for line in said if line.startswith(_UNKNOWN)})
        if unknown:
            raise UnsupportedError(f"pnnx knows no ncnn layer for {', '.join(unknown)}")
        if done.returncode != 0 or not (work / param.name).is_file():
            raise UnsupportedError(f"pnnx could not convert the model (exit code {done.returncode})")
        for path in (param, weights):
            (work / path.name).replace(path)
    return param, weights


def converter_version() -> str:
    """Return the version of the converter; "unknown" where it was not installed as a package."""
    try:
        return version("pnnx")
    except PackageNotFoundError:
        return "unknown"


def _source(model: Path, work: Path) -> Path:
    """Return the model in the working folder, since pnnx writes beside its input; with LSTMs in the one form that pnnx knows.

    It is one file: pnnx crashes on external data.
    """
    source = work / "model.onnx"
    external = len(model_files(model)) > 1
    proto = constants.read_whole_model(model)
    if _join_directions(proto.graph) or external:
        try:
            source.write_bytes(proto.SerializeToString())
        except (ValueError, message.EncodeError) as error:
            raise UnsupportedError("pnnx reads models of up to 2 GB") from error
    else:
        source.symlink_to(model.resolve())
    return source


def _join_directions(graph: onnx.GraphProto) -> bool:
    """Join the directions of LSTMs as PyTorch's exporter does: swapped behind the batch, then a reshape to [0, 0, -1].

    pnnx finds LSTMs by that reshape. One to another shape keeps its place behind it and sees the same elements.
    """
    writers = {name: node for node in graph.node for name in node.output}
    joined = False
    for index, node in reversed(list(enumerate(graph.node))):
        swap = writers.get(node.input[0]) if node.op_type == "Reshape" else None
        lstm = writers.get(swap.input[0]) if swap is not None and swap.op_type == "Transpose" else None
        if swap is None or lstm is None or lstm.op_type != "LSTM" or _order(swap) != _STEPS_BATCH_DIRECTIONS:
            continue
        name = f"{lstm.name or lstm.output[0]}.joined"
        graph.initializer.append(onnx.numpy_helper.from_array(np.array(_JOINED, np.int64), f"{name}.shape"))
        graph.node.insert(index, onnx.helper.make_node("Reshape", [node.input[0], f"{name}.shape"], [name], name=name))
        node.input[0] = name
        joined = True
    return joined


def _order(transpose: onnx.NodeProto) -> list[int]:
    return next((list(a.ints) for a in transpose.attribute if a.name == "perm"), [])


def _pnnx() -> str:
    """Return the path of the converter's program, found without its package, which wants torch as the program does not."""
    spec = find_spec("pnnx")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        program = Path(folder) / "pnnx"
        if program.is_file():
            return str(program)
    raise UnsupportedError("ncnn's converter is not installed: pip install --no-deps pnnx")
