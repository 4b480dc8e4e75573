"""Sums, maxima and minima of many as those of two. What opset 7 changed is refused in files before it."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType

import onnx
from onnx import helper

from edgeplan.errors import ModelError
from edgeplan.graph.names import free
from edgeplan.graph.onnx.contents import Contents

_OPSET = 7
_AGAIN = "export it again, with opset 7 or later"
_OPERANDS = 2
#: Operators of any number of operands -> what joins two of them.
_JOINED: Mapping[str, str] = MappingProxyType({"Sum": "Add", "Max": "Max", "Min": "Min"})


def converted_by(source: str) -> str:
    """Return the command that brings a file to an opset of today."""
    code = (
        f"import onnx; from onnx.version_converter import convert_version; "
        f"onnx.save(convert_version(onnx.load({source!r}), 13), 'converted.onnx')"
    )
    return f"export it again, or convert it: python -c {shlex.quote(code)}"


def modern(contents: Contents, source: str) -> Contents:
    """Return a model whose nodes mean what those of opset 7 do, without `Sum`.

    Args:
        contents: the model; its nodes fit the schemas of its opset.
        source: where it comes from, for messages.
    """
    for node in contents.nodes if contents.opset < _OPSET else ():
        if onnx.defs.get_schema(node.op_type, _OPSET).since_version > contents.opset:
            what = f"{node.op_type} of opset {contents.opset}, which has another form since"
            next_step = _AGAIN if any(map(_is_aligned, contents.nodes)) else converted_by(source)
            raise ModelError(what, where=f"{source}, node {node.name!r}", next_step=next_step)
    taken = contents.names
    nodes = [plain for node in contents.nodes for plain in _additions(node, contents.constants, taken)]
    return replace(contents, nodes=tuple(nodes))


def _is_aligned(node: onnx.NodeProto) -> bool:
    """Tell whether a node broadcasts from an axis on, which `onnx.version_converter` gets wrong."""
    return node.op_type == "PRelu" or {"axis", "broadcast"} <= {attribute.name for attribute in node.attribute}


def _additions(node: onnx.NodeProto, constants: Collection[str], taken: set[str]) -> list[onnx.NodeProto]:
    """Return a sum, maximum or minimum of many as a chain of those of two, constants last; of one input it is that input."""
    joined = _JOINED.get(node.op_type)
    if joined is None or (node.op_type == joined and len(node.input) == _OPERANDS):
        return [node]
    if len(node.input) == 1:
        return [helper.make_node("Identity", node.input, node.output, name=node.name)]
    total, *others = sorted(node.input, key=lambda name: name in constants)
    found = []
    for place, name in enumerate(others, start=1):
        last = place == len(others)
        wanted = f"{node.name}:{place}:sum", f"{node.name}:{place}"
        written, called = (node.output[0], node.name) if last else (free(name, taken) for name in wanted)
        taken |= {written, called}
        found.append(helper.make_node(joined, [total, name], [written], name=called))
        total = written
    return found
