"""Nodes that preparation writes anew: a Scaler, an If, a TopK of constants and an Einsum as operators that the graph knows."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from edgeplan.graph.onnx.constants import MOST_SMALL, held_value, held_values
from edgeplan.graph.operators.base import attributes_of, input_of, refuse

Array = npt.NDArray[Any]
#: Of the operator Scaler.
_CLASSICAL = "ai.onnx.ml"
#: A term of the equation of an Einsum.
_TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")
_ELLIPSIS = "..."
#: From this opset on the axes of a sum are an input.
_AXES_AS_INPUT = 13


def names_in(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all tensors and nodes of a graph."""
    of_nodes = (name for node in graph.node for name in (node.name, *node.input, *node.output))
    return {*(value.name for values in (graph.input, graph.output, graph.initializer) for value in values), *of_nodes}


class Writer:
    """A writer puts together the nodes that replace those of a graph, each in the place of the one that it stands for.

    Names of new nodes and tensors begin with `name`, of the node being replaced; `constants` are the graph's and new ones.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph, self._nodes, self._new = graph, list[onnx.NodeProto](), list[TensorProto]()
        self._count = 0
        self._taken = names_in(graph)
        self.name = ""
        self.constants: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and (value := held_value(node)) is not None:
                self.constants[node.output[0]] = value

    def keep(self, node: onnx.NodeProto) -> None:
        """Write a node as it is."""
        self._nodes.append(node)

    def new(self) -> str:
        """Return a name that nothing has."""
        while (found := f"{self.name}:{self._count}") in self._taken:
            self._count += 1
        self._taken.add(found)
        return found

    def node(self, op_type: str, reads: Sequence[str], written: str = "", **attributes: Any) -> str:
        """Write a node of ONNX's own domain; the name of what it writes."""
        while reads and not reads[-1]:
            reads = reads[:-1]
        name = self.new()
        written = written or name
        self._nodes.append(helper.make_node(op_type, list(reads), [written], name=name, **attributes))
        return written

    def nodes(self, op_type: str, reads: Sequence[str], written: Sequence[str], **attributes: Any) -> None:
        """Write a node of ONNX's own domain with several outputs, "" for those that nothing reads."""
        self._nodes.append(helper.make_node(op_type, list(reads), list(written), name=self.new(), **attributes))

    def constant(self, value: Array, name: str = "") -> str:
        """Write a constant; its name."""
        return self.tensor(numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape)), name)

    def tensor(self, value: TensorProto, name: str = "") -> str:
        """Write a constant as it is stored, under another name; the name."""
        name = name or self.new()
        tensor = TensorProto()
        tensor.CopyFrom(value)
        tensor.name = name
        self.constants[name] = tensor
        self._new.append(tensor)
        return name

    def value(self, name: str) -> Array | None:
        """Return the values of a constant; None if it is none."""
        tensor = self.constants.get(name)
        return None if tensor is None else held_values(tensor)

    def kind(self, name: str) -> int:
        """Return the element type of a constant; 0 if it is none."""
        return self.constants[name].data_type if name in self.constants else 0

    def size(self, name: str) -> int:
        """Return the number of elements of a constant; 1 if it is none."""
        return math.prod(self.constants[name].dims) if name in self.constants else 1

    def finish(self) -> None:
        """Put the written nodes and constants into the graph."""
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend(self._new)


def light(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose larger constants are inputs: ONNX's own tools copy it, and need no weights."""
    body = onnx.GraphProto(name="model", node=model.graph.node, input=model.graph.input, output=model.graph.output)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= MOST_SMALL:
            body.initializer.append(tensor)
        else:
            body.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return helper.make_model(body, opset_imports=model.opset_import, ir_version=model.ir_version)


def known_tensors(model: onnx.ModelProto) -> dict[str, tuple[int, tuple[int, ...] | None]]:
    """Return element type and shape of what the nodes of a model read and write, as far as ONNX's inference knows them.

    Large constants take no part in it; sizes that are not known are -1, without a rank the shape is None.
    """
    bare = light(model)
    del bare.graph.output[:]
    found = shape_inference.infer_shapes(bare, data_prop=True).graph
    known: dict[str, tuple[int, tuple[int, ...] | None]] = {}
    for value in (*found.value_info, *found.input, *found.output):
        kind = value.type.tensor_type
        sizes = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
        known[value.name] = (kind.elem_type, sizes if kind.HasField("shape") else None)
    return known | {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in model.graph.initializer}


def plain_scalers(model: onnx.ModelProto) -> None:
    """Write each Scaler of a model, of classical learning, as (x - offset) x scale; these are of the last axis."""
    if all(node.domain != _CLASSICAL for node in model.graph.node):
        return
    write = Writer(model.graph)
    for node in model.graph.node:
        write.name = node.name or node.output[0]
        if (node.domain, node.op_type) != (_CLASSICAL, "Scaler"):
            write.keep(node)
            continue
        attributes, found = attributes_of(node), write.node("Cast", [node.input[0]], to=TensorProto.FLOAT)
        if offset := attributes.get("offset"):
            found = write.node("Sub", [found, write.constant(np.array(offset, np.float32))])
        if scale := attributes.get("scale"):
            found = write.node("Mul", [found, write.constant(np.array(scale, np.float32))])
        write.node("Identity", [found], node.output[0])
    write.finish()


def plain_branches(model: onnx.ModelProto) -> int:
    """Write every `If` of a model as its two branches and a `Where`, if these write the same static shapes; how many.

    A branch computes and changes nothing, so that to compute both is right; it takes the time of both. Branches that write
    other shapes than each other, or hold branches or loops themselves, stay as they are.
    """
    if not any(node.op_type == "If" for node in model.graph.node):
        return 0
    both = onnx.ModelProto()
    both.CopyFrom(model)
    outputs = _written_out(both.graph)
    known = {name: shape for name, (_, shape) in known_tensors(both).items()}
    if not all(_same(known.get(one), known.get(other)) for pair in outputs.values() for one, other in pair):
        return 0
    model.graph.CopyFrom(both.graph)
    return len(outputs)


def _same(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> bool:
    return one is not None and one == other and min(one, default=1) > 0


def _written_out(graph: onnx.GraphProto) -> Mapping[str, list[tuple[str, str]]]:
    """Write branches out in their places; what both write for each output, by the name of the node that chose."""
    write, found = Writer(graph), dict[str, list[tuple[str, str]]]()
    for node in graph.node:
        branches = [attributes_of(node).get(name) for name in ("then_branch", "else_branch")]
        if node.op_type != "If" or not all(map(_is_flat, branches)):
            write.keep(node)
            continue
        write.name = node.name or node.output[0]
        written = [_inlined(branch, write) for branch in branches]
        scalar = write.node("Reshape", [node.input[0], write.constant(np.array([1], np.int64))])
        found[write.name] = list(zip(*written, strict=True))
        for output, (one, other) in zip(node.output, found[write.name], strict=True):
            write.node("Where", [scalar, one, other], output)
    write.finish()
    return found


def _is_flat(branch: onnx.GraphProto | None) -> bool:
    """Tell whether a branch holds no further graphs and no constants of other kinds than tensors."""
    if branch is None or branch.sparse_initializer:
        return False
    return not any(a.HasField("g") or a.graphs for node in branch.node for a in node.attribute)


def _inlined(branch: onnx.GraphProto, write: Writer) -> list[str]:
    """Write a branch's constants and nodes under new names; the names of its outputs."""
    names: dict[str, str] = {}
    for tensor in branch.initializer:
        names[tensor.name] = write.tensor(tensor)
    for node in branch.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        names |= {name: write.new() for name in node.output if name}
        copy.name = write.new()
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        write.keep(copy)
    return [names.get(output.name, output.name) for output in branch.output]


def fold_choices(model: onnx.ModelProto) -> bool:
    """Write every TopK of constants as the constants that it chooses, and tell whether there was one: no optimizer does."""
    if not any(node.op_type == "TopK" for node in model.graph.node):
        return False
    write, folded = Writer(model.graph), False
    for node in model.graph.node:
        chosen = _chosen(node, write) if node.op_type == "TopK" else None
        if chosen is None:
            write.keep(node)
            continue
        folded = True
        for name, value in zip(node.output, chosen, strict=False):
            if name:
                write.constant(value, name)
    if folded:
        write.finish()
    return folded


def _chosen(node: onnx.NodeProto, write: Writer) -> tuple[Array, Array] | None:
    """Return the best values, and where they stood; None where they depend on data, or the node is none that ONNX knows."""
    values, count = write.value(input_of(node, 0)), write.value(input_of(node, 1))
    given = attributes_of(node)
    axis = int(given.get("axis", -1))
    if values is None or count is None or count.size != 1 or not -values.ndim <= axis < values.ndim:
        return None
    wanted = int(count.reshape(-1)[0])
    if not 0 < wanted <= values.shape[axis]:
        return None
    order = _order(values, axis, largest=bool(given.get("largest", 1)))
    places = np.take(order, np.arange(wanted), axis)
    return np.take_along_axis(values, places, axis), places.astype(np.int64)


def _order(values: Array, axis: int, *, largest: bool) -> Array:
    """Return the places along an axis, the best first, of equal ones the first."""
    if not largest:
        return np.argsort(values, axis, kind="stable")
    backwards = np.flip(np.argsort(np.flip(values, axis), axis, kind="stable"), axis)
    return np.asarray(values.shape[axis] - 1 - backwards)


class _Operand(NamedTuple):
    """An operand is a tensor with a label for each axis."""

    tensor: str
    labels: tuple[str, ...]


def plain_products(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], source: str) -> None:
    """Write each Einsum of a model as products of matrices, sums and transpositions, by known shapes of what it reads.

    Operands are multiplied from the left to the right. Axes that two of them share are summed over by a product of matrices as
    soon as nothing else needs them.
    """
    if all(node.op_type != "Einsum" for node in model.graph.node):
        return
    write = Writer(model.graph)
    opset = max(opset.version for opset in model.opset_import if opset.domain in ("", "ai.onnx"))
    for node in model.graph.node:
        write.name = node.name or node.output[0]
        if node.op_type == "Einsum":
            _Einsum(node, write, shapes, opset, source).run()
        else:
            write.keep(node)
    write.finish()


class _Einsum:
    """The nodes that stand for one Einsum."""

    def __init__(
        self, node: onnx.NodeProto, write: Writer, shapes: Mapping[str, Sequence[int]], opset: int, source: str
    ) -> None:
        self.node, self.write, self.opset, self.source = node, write, opset, source
        self.equation = attributes_of(node).get("equation", b"").decode(errors="replace").replace(" ", "")
        self.sizes: dict[str, int] = {}
        self.shapes = shapes

    def run(self) -> None:
        """Write the nodes that compute the equation, the last of which writes the output."""
        operands, wanted = self._operands()
        self._know_sizes(operands)
        left = [
            self._alone(operand, {*wanted, *(x for o in operands if o is not operand for x in o.labels)})
            for operand in operands
        ]
        found = left.pop(0)
        while left:
            needed = {*wanted, *(label for other in left[1:] for label in other.labels)}
            found = self._product(found, left.pop(0), needed)
        found = self._arranged(found, wanted)
        self.write.node("Identity", [found.tensor], self.node.output[0])

    def _refuse(self, what: str) -> NoReturn:
        refuse(self.node, self.source, f"{self.equation!r} {what}", "correct the equation, or export the model again")

    def _operands(self) -> tuple[list[_Operand], tuple[str, ...]]:
        """The operands and the labels of the output; axes that an ellipsis stands for are numbered from the last one on."""
        left, arrow, right = self.equation.partition("->")
        terms = left.split(",")
        if len(terms) != len(self.node.input) or not all(map(_TERM.fullmatch, (*terms, right))):
            self._refuse(f"of {len(self.node.input)} operands")
        operands = []
        for term, name in zip(terms, self.node.input, strict=True):
            if name not in self.shapes:
                self._refuse(f"of {name!r}, whose shape is not known")
            labels = self._labels(term, len(self.shapes[name]))
            if len(labels) != len(self.shapes[name]):
                self._refuse(f"with {len(labels)} labels for {len(self.shapes[name])} axes")
            if len(set(labels)) < len(labels):
                self._refuse("that takes a diagonal")
            operands.append(_Operand(name, labels))
        used = Counter(label for operand in operands for label in operand.labels)
        behind = sorted((label for label in used if label.isdigit()), key=int, reverse=True)
        if not arrow:
            return operands, (*behind, *sorted(label for label, count in used.items() if count == 1 and label.isalpha()))
        wanted = self._labels(right, len(right.replace(_ELLIPSIS, "")) + (len(behind) if _ELLIPSIS in right else 0))
        if len(set(wanted)) < len(wanted) or not used.keys() >= set(wanted):
            self._refuse("whose output repeats a label, or has one of its own")
        return operands, wanted

    def _labels(self, term: str, rank: int) -> tuple[str, ...]:
        before, dots, after = term.partition(_ELLIPSIS)
        more = rank - len(before) - len(after) if dots else 0
        return (*before, *(str(place) for place in range(more - 1, -1, -1)), *after)

    def _know_sizes(self, operands: Sequence[_Operand]) -> None:
        for operand in operands:
            for label, size in zip(operand.labels, self.shapes[operand.tensor], strict=True):
                known = self.sizes.setdefault(label, size)
                if size < 1 or (known != size and 1 not in (known, size)):
                    self._refuse(f"whose axis {label!r} is of {known} and of {size}")
                self.sizes[label] = max(known, size)

    def _shape(self, labels: Sequence[str]) -> list[int]:
        return [self.sizes[label] for label in labels]

    def _reshaped(self, tensor: str, shape: Sequence[int]) -> str:
        return self.write.node("Reshape", [tensor, self.write.constant(np.array(shape, np.int64))])

    def _alone(self, operand: _Operand, needed: set[str]) -> _Operand:
        """Return an operand without axes that are broadcast or needed by nothing else."""
        shape = self.shapes[operand.tensor]
        kept = [(x, size) for x, size in zip(operand.labels, shape, strict=True) if size == self.sizes[x]]
        tensor = operand.tensor if len(kept) == len(shape) else self._reshaped(operand.tensor, [size for _, size in kept])
        found = _Operand(tensor, tuple(label for label, _ in kept))
        summed = [axis for axis, label in enumerate(found.labels) if label not in needed]
        if not summed:
            return found
        rest = tuple(label for label in found.labels if label in needed)
        if self.opset >= _AXES_AS_INPUT:
            reads = [found.tensor, self.write.constant(np.array(summed, np.int64))]
            return _Operand(self.write.node("ReduceSum", reads, keepdims=0), rest)
        return _Operand(self.write.node("ReduceSum", [found.tensor], axes=summed, keepdims=0), rest)

    def _arranged(self, operand: _Operand, labels: Sequence[str]) -> _Operand:
        """Return an operand with its axes in another order."""
        order = [operand.labels.index(label) for label in labels]
        if order == list(range(len(order))):
            return operand
        return _Operand(self.write.node("Transpose", [operand.tensor], perm=order), tuple(labels))

    def _product(self, first: _Operand, second: _Operand, needed: set[str]) -> _Operand:
        both = [label for label in first.labels if label in second.labels]
        batch, summed = [x for x in both if x in needed], [x for x in both if x not in needed]
        rows = [label for label in first.labels if label not in both]
        columns = [label for label in second.labels if label not in both]
        labels = (*batch, *rows, *columns)
        if not summed:
            a = self._arranged(first, (*batch, *rows)).tensor
            a = self._reshaped(a, [*self._shape((*batch, *rows)), *[1] * len(columns)]) if columns else a
            b = self._arranged(second, (*batch, *columns)).tensor
            b = self._reshaped(b, [*self._shape(batch), *[1] * len(rows), *self._shape(columns)]) if rows else b
            return _Operand(self.write.node("Mul", [a, b]), labels)
        left = self._matrix(self._arranged(first, (*batch, *rows, *summed)), batch, rows, summed)
        right = self._matrix(self._arranged(second, (*batch, *summed, *columns)), batch, summed, columns)
        product = self.write.node("MatMul", [left, right])
        if len(rows) != 1 or len(columns) != 1:
            product = self._reshaped(product, self._shape(labels))
        return _Operand(product, labels)

    def _matrix(self, operand: _Operand, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> str:
        """Return an operand with its labels joined to the rows and columns of matrices."""
        if len(rows) == 1 and len(columns) == 1:
            return operand.tensor
        sizes = (math.prod(self._shape(rows)), math.prod(self._shape(columns)))
        return self._reshaped(operand.tensor, [*self._shape(batch), *sizes])
