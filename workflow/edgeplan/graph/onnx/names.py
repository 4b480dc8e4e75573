"""A model file whose nodes bear the names of the graph's operators, so that what an engine says of nodes can be understood."""

from __future__ import annotations

from pathlib import Path

import onnx

from edgeplan.graph.onnx.contents import contents_of
from edgeplan.graph.onnx.write import EXTERNAL_DATA_THRESHOLD_BYTES


def named_file(model: Path, folder: Path) -> Path:
    """Return the file itself, or, where nodes are without names or share one, a copy that `load_onnx` reads as the same graph.

    Args:
        model: the ONNX file, which `load_onnx` has read.
        folder: where to write the copy.

    Raises:
        OSError, ValueError: external data are not there, or the copy cannot be written.
    """
    given = onnx.load(model, load_external_data=False)
    names = {tuple(node.output): node.name for node in contents_of(given, str(model)).nodes}
    if all(names.get(tuple(node.output), node.name) == node.name for node in given.graph.node):
        return model
    copy = onnx.load(model)
    for node in copy.graph.node:
        node.name = names.get(tuple(node.output), node.name)
    path = folder / f"named-{model.name}"
    size = sum(len(tensor.raw_data) for tensor in copy.graph.initializer)
    external = size > EXTERNAL_DATA_THRESHOLD_BYTES
    onnx.save(copy, path, save_as_external_data=external, location=f"{path.name}.data" if external else None)
    return path
