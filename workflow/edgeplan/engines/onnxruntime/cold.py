"""Prepares models for ONNX Runtime, f32: what it offers for a faster start, or for less memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import onnxruntime as ort

from edgeplan.engines.cold import Artefact, as_it_is
from edgeplan.graph.onnx.compare import session_options

_EXTERNAL = "session.optimized_model_external_initializers"
_LEAST_BYTES = 1024  # smaller weights stay in the model's own file


def optimised(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Save the optimised model, its weights as external data."""
    del inputs
    return _saved(model, folder, threads)


def prepacked(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Save the weights as kernels pack them, too."""
    del inputs
    return _saved(model, folder, threads, {"session.save_external_prepacked_constant_initializers": "1"})


def offline(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Save the optimised model for sessions that pack nothing: its weights stay pages of their file."""
    del inputs
    return _saved(model, folder, threads, {"session.disable_prepacking": "1"})


def mapped(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Save the optimised model in ONNX Runtime's own format, weights within: a file that can be mapped."""
    del inputs
    return _saved(model, folder, threads, {"session.save_model_format": "ORT"}, "mapped.ort")


def _saved(
    model: Path, folder: Path, threads: int, entries: Mapping[str, str] | None = None, name: str = "optimised.onnx"
) -> Artefact:
    found, weights = folder / name, folder / "weights.bin"
    options = session_options(threads, entries or {})
    options.optimized_model_filepath = str(found)
    if found.suffix == ".onnx":
        options.add_session_config_entry(f"{_EXTERNAL}_file_name", weights.name)
        options.add_session_config_entry(f"{_EXTERNAL}_min_size_in_bytes", str(_LEAST_BYTES))
    ort.InferenceSession(str(model), options, ["CPUExecutionProvider"])
    files = tuple(path for path in (found, weights) if path.is_file())
    return Artefact(main=found, files=files, note="blocked layouts of this machine: not portable")


def external(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Save weights apart as the model holds them: sessions that never copy them can map them."""
    del inputs, threads
    found, weights = folder / "external.onnx", folder / "weights.bin"
    onnx.save_model(onnx.load(model), found, save_as_external_data=True, location=weights.name, size_threshold=_LEAST_BYTES)
    return Artefact(main=found, files=tuple(path for path in (found, weights) if path.is_file()))


def cuda(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Name the model, and one that adds its input to itself: with it a GPU's context is made before a start."""
    value = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "x"], ["y"])], "one", value[:1], value[1:])
    made = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 13)], ir_version=8)
    onnx.save_model(made, folder / "one.onnx")
    return as_it_is(model, inputs, folder, threads).model_copy(update={"companions": {"one_step": folder / "one.onnx"}})
