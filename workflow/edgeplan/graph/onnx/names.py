"""A model file whose nodes bear the names of the graph's operators, so that what an engine says of nodes can be understood."""

from __future__ import annotations

from pathlib import Path

from edgeplan.graph.model_file import read_model
from edgeplan.graph.onnx.contents import contents_of
from edgeplan.graph.onnx.outside import leave_outside, save


def named_file(model: Path, folder: Path) -> Path:
    """Return the file itself, or, where nodes are without names or share one, a copy that `load_onnx` reads as the same graph.

    Args:
        model: the ONNX file, which `load_onnx` has read.
        folder: where to write the copy.
    """
    given = read_model(model)
    names = {tuple(node.output): node.name for node in contents_of(given, str(model)).nodes}
    if all(names.get(tuple(node.output), node.name) == node.name for node in given.graph.node):
        return model
    leave_outside(given, model)
    for node in given.graph.node:
        node.name = names.get(tuple(node.output), node.name)
    return save(given, folder / f"named-{model.name}")
