"""Prepares models for ONNX Runtime, f32: what it offers for a faster start, or for less memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import onnx
import onnxruntime as ort

from edgeplan.engines.cold import Artefact, as_it_is
from edgeplan.graph.onnx.compare import session_options

_EXTERNAL = "session.optimized_model_external_initializers"
_LEAST_BYTES = 1024  # smaller weights stay in the model's own file


def _saved(
    model: Path,
    inputs: Mapping[str, tuple[int, ...]],
    folder: Path,
    threads: int,
    *,
    name: str = "optimised.onnx",
    **entries: str,
) -> Artefact:
    """Save the optimised model, by a session with these entries; weights of an ONNX file as external data."""
    del inputs
    found, weights = folder / name, folder / "weights.bin"
    options = session_options(threads, {f"session.{entry}": value for entry, value in entries.items()})
    options.optimized_model_filepath = str(found)
    if found.suffix == ".onnx":
        options.add_session_config_entry(f"{_EXTERNAL}_file_name", weights.name)
        options.add_session_config_entry(f"{_EXTERNAL}_min_size_in_bytes", str(_LEAST_BYTES))
    ort.InferenceSession(str(model), options, ["CPUExecutionProvider"])
    files = tuple(path for path in (found, weights) if path.is_file())
    return Artefact(main=found, files=files, note="blocked layouts of this machine: not portable")


optimised = _saved
#: With the weights as kernels pack them, too.
prepacked = partial(_saved, save_external_prepacked_constant_initializers="1")
#: For sessions that pack nothing: weights stay pages of their file.
offline = partial(_saved, disable_prepacking="1")
#: In ONNX Runtime's own format, weights within: a file that can be mapped.
mapped = partial(_saved, save_model_format="ORT", name="mapped.ort")


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
