"""Tells by names which operators of a file ONNX Runtime runs in each node of its optimised model.

Outputs of nodes keep the names of the file's tensors, but for those of blocked nodes and of nodes between reshapes: these are
named after an operator or its output, and show what was fused later by an attribute or an input.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import onnx

from edgeplan.graph.external_data import everything

_REORDERS = ("ReorderInput", "ReorderOutput")
#: Blocked nodes are named after what the last operator fused before blocking writes, others after an operator.
_BLOCKED = re.compile(r"(.+?)(_bn)?_nchwc(_token_\d+)?")
_FUSED = re.compile(r"(.+?)(/\w*Fusion/?|_new_reshape|_token_\d+)+")
_INPUTS_WITH_SUM = 4
#: What ONNX Runtime calls tensors inside a function that it writes out.
_INSIDE = "_inlfunc_"


def operators_of(model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto], constants: Iterable[str]) -> list[tuple[str, ...]]:
    """Return the names of the operators of a file that each node of the optimised model holds.

    They are those between what it writes and what other nodes write; none where neither tensors nor its name tell.
    """
    given = [node for graph in everything(model, onnx.GraphProto) for node in graph.node]
    named, order = {node.name: node for node in given}, {node.name: place for place, node in enumerate(given)}
    writer = {name: node for node in given for name in node.output if name}
    readers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in given:
        for name in node.input:
            readers[name].append(node)
    folded = {tensor.name for graph in everything(model, onnx.GraphProto) for tensor in graph.initializer} | set(constants)
    for node in given:  # shapes are known: what follows from them is, too
        steady = node.op_type in ("Constant", "Shape", "Size") or (node.input and folded.issuperset(filter(None, node.input)))
        if steady and node.op_type != "DequantizeLinear":
            folded.update(node.output)
    carried = {node.input[0]: node.output[0] for node in nodes if node.op_type == "ReorderOutput"}
    ends = [[] if node.op_type in _REORDERS else _ends(node, carried, writer, readers, named) for node in nodes]
    bounds = {name for its in ends for name in its} | folded
    found, taken = list[tuple[str, ...]](), set[str]()
    for executed, its in zip(nodes, ends, strict=True):
        held, waiting = list[str](), list(its)
        same = named.get(executed.name)
        while waiting:
            name = waiting.pop()
            node = same if same and name in same.output else writer.get(name)  # branches may write the same name
            if node is not None and node.name not in taken and (name in its or name not in bounds):
                taken.add(node.name)
                held.append(node.name)
                waiting += node.input
        found.append(tuple(sorted(held, key=order.__getitem__)))
    holder = {name: place for place, node in enumerate(nodes) for name in node.input if name}
    for place, node in reversed([*enumerate(nodes)]):  # parts of a function belong to its call
        if not found[place] and (inside := next((name for name in node.output if _INSIDE in name), "")) in holder:
            found[place] = found[holder[inside]]
    return found


def _ends(
    node: onnx.NodeProto,
    carried: Mapping[str, str],
    writer: Mapping[str, onnx.NodeProto],
    readers: Mapping[str, Sequence[onnx.NodeProto]],
    named: Mapping[str, onnx.NodeProto],
) -> list[str]:
    """Return the tensors of a file that a node of the optimised model writes, as far as names tell."""
    if known := [name for one in node.output if (name := carried.get(one, one)) in writer]:
        return known
    if (blocked := _BLOCKED.fullmatch(node.name)) and blocked[1] in writer:
        end = blocked[1]
    else:
        fused = _FUSED.fullmatch(node.name)
        stem = fused[1] if fused and node.name not in named else node.name
        if stem not in named or len(named[stem].output) != 1:
            return list(named[stem].output) if stem in named else []
        end = named[stem].output[0]
    sums: tuple[str, ...] = ()
    if node.op_type.endswith("Conv") and len(node.input) >= _INPUTS_WITH_SUM:
        sums = ("Add", "Sum")
    elif node.op_type.endswith("Gemm") and writer[end].op_type == "MatMul":
        sums = ("Add",)
    activation = tuple(one.s.decode() for one in node.attribute if one.name == "activation")
    for types in (sums, activation):  # fused after the node was named
        after = readers[end]
        if writer[end].op_type not in types and len(after) == 1 and after[0].op_type in types:
            end = after[0].output[0]
    return [end]
