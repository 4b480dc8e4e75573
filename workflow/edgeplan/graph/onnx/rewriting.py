"""Nodes that preparation writes anew: a Scaler, an If, a TopK of constants and an Einsum as operators that the graph knows."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, NoReturn

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from edgeplan.errors import ModelError
from edgeplan.graph.onnx.constants import MOST_SMALL, held_value, held_values
from edgeplan.graph.operators.base import attributes_of, copied, input_of, refuse
from edgeplan.graph.shapes import Shape

Array = npt.NDArray[Any]
#: Element types and shapes of tensors, as far as they are known.
Known = Mapping[str, tuple[int, Shape | None]]
OWN_DOMAINS, MICROSOFT = ("", "ai.onnx"), "com.microsoft"
NEXT = "correct the node, or export the model again: the file may be corrupt"
#: How the messages of ONNX's inference name the node, before what is wrong.
INFERRED = re.compile(r"\(op_type:(?P<type>\w+)(?:, node name: (?P<name>.*?))?\): ")
#: Of the operator Scaler.
_CLASSICAL = "ai.onnx.ml"
#: A term of the equation of an Einsum.
_TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")
_ELLIPSIS = "..."
#: From these opsets on the axes of a sum, and of means and other reductions, are an input.
_AXES_OF_SUMS, _AXES = 13, 18


def names_in(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all tensors and nodes of a graph."""
    of_nodes = (name for node in graph.node for name in (node.name, *node.input, *node.output))
    return {*(value.name for values in (graph.input, graph.output, graph.initializer) for value in values), *of_nodes}


def opset_of(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators."""
    return max((one.version for one in model.opset_import if one.domain in OWN_DOMAINS), default=1)


def operator_key(node: onnx.NodeProto) -> tuple[str, str]:
    """Return an operator's domain, "" for ONNX's own, and name."""
    return "" if node.domain in OWN_DOMAINS else node.domain, node.op_type


class Rewriting:
    """A rewriting puts together the nodes that replace those of a graph, each in the place of the one that it stands for.

    Names of new nodes and tensors begin with that of the node being replaced; `constants` are the graph's and new ones.
    """

    def __init__(self, graph: onnx.GraphProto, source: str = "", opset: int = 1, known: Known = MappingProxyType({})) -> None:
        self.source, self.opset, self.known = source, opset, known
        self._graph, self._nodes, self._new = graph, list[onnx.NodeProto](), list[TensorProto]()
        self._count, self._taken = 0, set[str]()
        self.name, self.node, self.attributes = "", onnx.NodeProto(), dict[str, Any]()

    @cached_property
    def constants(self) -> dict[str, TensorProto]:
        """Return the constants by name, once a way asks for them: those of a model that has no such node may be malformed."""
        nodes = (node for node in self._graph.node if node.op_type == "Constant" and node.output)
        held = {node.output[0]: value for node in nodes if (value := held_value(node)) is not None}
        return {tensor.name: tensor for tensor in self._graph.initializer} | held

    def run(self, way_of: Callable[[onnx.NodeProto], Way | None]) -> None:
        """Have nodes that have a way written by it, and put all that into the graph; others stay.

        ModelError for a node that lacks what its operator has.
        """
        if not any(map(way_of, self._graph.node)):
            return
        self._taken = names_in(self._graph)
        for node in self._graph.node:
            self.node, self.name = node, node.name or next(iter(node.output), "")
            if (way := way_of(node)) is None:
                self.keep()
                continue
            try:  # the checker has not seen the node
                self.attributes = attributes_of(node)
                way(self)
            except (LookupError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
                self.refuse(f"with inputs, outputs or attributes that do not fit: {error}", NEXT)
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend(self._new)

    def get(self, name: str, default: Any) -> Any:
        """Return an attribute, or what it is where it is not given."""
        return self.attributes.get(name, default)

    def read(self, place: int) -> str:
        """Name of an input of the node being replaced, "" for none."""
        return input_of(self.node, place)

    def shape(self, place: int) -> Shape:
        """Return the known shape of an input."""
        return self.known[self.node.input[place]][1] or ()

    def refuse(self, what: str, next_step: str) -> NoReturn:
        """Refuse the node being replaced."""
        refuse(self.node, self.source, what, next_step)

    def keep(self, node: onnx.NodeProto | None = None) -> None:
        """Write a node as it is, by default the one being replaced."""
        self._nodes.append(node or self.node)

    def new(self) -> str:
        """Return a name that nothing has."""
        while (found := f"{self.name}:{self._count}") in self._taken:
            self._count += 1
        self._taken.add(found)
        return found

    def do(self, op_type: str, *reads: str, into: str = "", **attributes: Any) -> str:
        """Write a node of ONNX's own domain; the name of what it writes."""
        while reads and not reads[-1]:
            reads = reads[:-1]
        name = self.new()
        self._nodes.append(helper.make_node(op_type, reads, [into or name], name=name, **attributes))
        return into or name

    def hand_out(self, *found: str) -> None:
        """Write the outputs of the node being replaced, those that are wanted."""
        for name, written in zip(self.node.output, found, strict=False):
            if name:
                self.do("Identity", written, into=name)

    def number(self, value: float) -> str:
        """Write a constant of single precision."""
        return self.constant(np.array(value, np.float32))

    def integers(self, values: int | Iterable[int]) -> str:
        """Write a constant of integers."""
        return self.constant(np.array(values if isinstance(values, int) else tuple(values), np.int64))

    def reshaped(self, tensor: str, shape: Iterable[int]) -> str:
        """Write a tensor in another shape."""
        return self.do("Reshape", tensor, self.integers(shape))

    def reduced(self, op_type: str, tensor: str, axes: Sequence[int], **attributes: Any) -> str:
        """Write a reduction, whose axes are an attribute or an input by opset."""
        if self.opset < (_AXES_OF_SUMS if op_type == "ReduceSum" else _AXES):
            return self.do(op_type, tensor, axes=list(axes), **attributes)
        return self.do(op_type, tensor, self.integers(axes), **attributes)

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


#: What writes the nodes that stand for one.
Way = Callable[[Rewriting], object]


def light(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose larger constants are inputs: ONNX's own tools copy it, and need no weights."""
    body = onnx.GraphProto(name="model", node=model.graph.node, input=model.graph.input, output=model.graph.output)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= MOST_SMALL:
            body.initializer.append(tensor)
        else:
            body.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return helper.make_model(body, opset_imports=model.opset_import, ir_version=model.ir_version)


def known_tensors(model: onnx.ModelProto, source: str) -> dict[str, tuple[int, Shape | None]]:
    """Return element type and shape of what the nodes of a model read and write, as far as ONNX's inference knows them.

    Large constants take no part in it; sizes that are not known are -1, without a rank the shape is None.
    """
    bare = light(model)
    del bare.graph.output[:]
    try:
        found = shape_inference.infer_shapes(bare, data_prop=True).graph
    except shape_inference.InferenceError as error:
        at = INFERRED.search(str(error))
        where = source + (f", node {at['name']!r}" if at and at["name"] else "")
        raise ModelError(f"not a valid ONNX model: {str(error).splitlines()[0]}", where=where, next_step=NEXT) from error
    known = dict[str, tuple[int, Shape | None]]()
    for value in (*found.value_info, *found.input, *found.output):
        kind = value.type.tensor_type
        sizes = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
        known[value.name] = (kind.elem_type, sizes if kind.HasField("shape") else None)
    return known | {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in model.graph.initializer}


def plain_scalers(model: onnx.ModelProto, source: str) -> None:
    """Write each Scaler of a model, of classical learning, as (x - offset) x scale; these are of the last axis."""

    def write(of: Rewriting) -> None:
        found = of.do("Cast", of.read(0), to=TensorProto.FLOAT)
        for op_type, name in (("Sub", "offset"), ("Mul", "scale")):
            if value := of.get(name, ()):
                found = of.do(op_type, found, of.constant(np.array(value, np.float32)))
        of.hand_out(found)

    Rewriting(model.graph, source).run(lambda node: write if operator_key(node) == (_CLASSICAL, "Scaler") else None)


def plain_branches(model: onnx.ModelProto, source: str) -> int:
    """Write every `If` of a model as its two branches and a `Where`, if these write the same static shapes; how many.

    A branch computes and changes nothing, so that to compute both is right; it takes the time of both. Branches that write
    other shapes than each other, or hold branches or loops themselves, stay as they are.
    """
    if not any(node.op_type == "If" for node in model.graph.node):
        return 0
    both = onnx.ModelProto()
    both.CopyFrom(model)
    outputs = _written_out(both.graph, source)
    known = {name: shape for name, (_, shape) in known_tensors(both, source).items()}
    if not all(_same(known.get(one), known.get(other)) for pair in outputs.values() for one, other in pair):
        return 0
    model.graph.CopyFrom(both.graph)
    return len(outputs)


def _same(one: Shape | None, other: Shape | None) -> bool:
    return one is not None and one == other and min(one, default=1) > 0


def _written_out(graph: onnx.GraphProto, source: str) -> Mapping[str, list[tuple[str, str]]]:
    """Write branches out in their places; what both write for each output, by the name of the node that chose."""
    found = dict[str, list[tuple[str, str]]]()

    def write(of: Rewriting) -> None:
        branches = [of.get(name, None) for name in ("then_branch", "else_branch")]
        if not all(map(_is_flat, branches)):
            of.keep()
            return
        written = [_inlined(branch, of) for branch in branches]
        scalar = of.do("Reshape", of.node.input[0], of.integers([1]))
        found[of.name] = list(zip(*written, strict=True))
        for output, (one, other) in zip(of.node.output, found[of.name], strict=True):
            of.do("Where", scalar, one, other, into=output)

    Rewriting(graph, source).run(lambda node: write if node.op_type == "If" else None)
    return found


def _is_flat(branch: onnx.GraphProto | None) -> bool:
    """Tell whether a branch holds no further graphs and no constants of other kinds than tensors."""
    if branch is None or branch.sparse_initializer:
        return False
    return not any(a.HasField("g") or a.graphs for node in branch.node for a in node.attribute)


def _inlined(branch: onnx.GraphProto, of: Rewriting) -> list[str]:
    names = {tensor.name: of.tensor(tensor) for tensor in branch.initializer}
    for node in branch.node:
        copy = copied(node)
        names |= {name: of.new() for name in node.output if name}
        copy.name = of.new()
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        of.keep(copy)
    return [names.get(output.name, output.name) for output in branch.output]


def fold_choices(model: onnx.ModelProto, source: str) -> bool:
    """Write every TopK of constants as the constants that it chooses, and tell whether there was one: no optimizer does."""
    folded = list[onnx.NodeProto]()

    def write(of: Rewriting) -> None:
        if (chosen := _chosen(of)) is None:
            of.keep()
            return
        folded.append(of.node)
        for name, value in zip(of.node.output, chosen, strict=False):
            if name:
                of.constant(value, name)

    Rewriting(model.graph, source).run(lambda node: write if node.op_type == "TopK" else None)
    return bool(folded)


def drop_idle(model: onnx.ModelProto, source: str) -> bool:
    """Leave out what functions do in case, and tell whether there was any: sums with zeros, choices that a constant decides."""
    known, found = known_tensors(model, source), list[str]()
    places = {"Add": ((0, 1), (1, 0)), "Where": ((0, 2),)}  # the first is all zeros, the second is what is left

    def write(of: Rewriting) -> None:
        for place, other in places[of.node.op_type]:
            value, kept = of.value(of.node.input[place]), of.node.input[other]
            same = kept in known and known[kept] == known.get(of.node.output[0])
            if value is not None and not value.any() and same:
                found.append(of.do("Identity", kept, into=of.node.output[0]))
                return
        of.keep()

    Rewriting(model.graph, source).run(lambda node: write if node.op_type in places else None)
    return bool(found)


def _chosen(of: Rewriting) -> tuple[Array, Array] | None:
    """Return the best values, and where they stood; None where they depend on data, or the node is none that ONNX knows."""
    values, count, axis = of.value(of.read(0)), of.value(of.read(1)), int(of.get("axis", -1))
    if values is None or count is None or count.size != 1 or not -values.ndim <= axis < values.ndim:
        return None
    wanted = int(count.reshape(-1)[0])
    if not 0 < wanted <= values.shape[axis]:
        return None
    places = np.take(_order(values, axis, largest=bool(of.get("largest", 1))), np.arange(wanted), axis)
    return np.take_along_axis(values, places, axis), places.astype(np.int64)


def _order(values: Array, axis: int, *, largest: bool) -> Array:
    if not largest:
        return np.argsort(values, axis, kind="stable")
    backwards = np.flip(np.argsort(np.flip(values, axis), axis, kind="stable"), axis)
    return np.asarray(values.shape[axis] - 1 - backwards)


class _Operand(NamedTuple):
    """An operand is a tensor with a label for each axis."""

    tensor: str
    labels: tuple[str, ...]


def plain_products(model: onnx.ModelProto, known: Known, source: str) -> None:
    """Write each Einsum of a model as products of matrices, sums and transpositions, by known shapes of what it reads.

    Operands are multiplied from the left to the right. Axes that two of them share are summed over by a product of matrices as
    soon as nothing else needs them.
    """
    rewriting = Rewriting(model.graph, source, opset_of(model), known)
    rewriting.run(lambda node: (lambda of: _Einsum(of).run()) if node.op_type == "Einsum" else None)


class _Einsum:
    def __init__(self, of: Rewriting) -> None:
        self.of = of
        self.equation = of.get("equation", b"").decode(errors="replace").replace(" ", "")
        self.sizes: dict[str, int] = {}
        self.shapes = {name: shape for name, (_, shape) in of.known.items() if shape is not None}

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
        self.of.hand_out(found.tensor)

    def _refuse(self, what: str) -> NoReturn:
        self.of.refuse(f"{self.equation!r} {what}", "correct the equation, or export the model again")

    def _operands(self) -> tuple[list[_Operand], tuple[str, ...]]:
        """The operands and the labels of the output; axes that an ellipsis stands for are numbered from the last one on."""
        left, arrow, right = self.equation.partition("->")
        terms = left.split(",")
        if len(terms) != len(self.of.node.input) or not all(map(_TERM.fullmatch, (*terms, right))):
            self._refuse(f"of {len(self.of.node.input)} operands")
        operands = []
        for term, name in zip(terms, self.of.node.input, strict=True):
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

    def _alone(self, operand: _Operand, needed: set[str]) -> _Operand:
        """Return an operand without axes that are broadcast or needed by nothing else."""
        shape = self.shapes[operand.tensor]
        kept = [(x, size) for x, size in zip(operand.labels, shape, strict=True) if size == self.sizes[x]]
        tensor = operand.tensor if len(kept) == len(shape) else self.of.reshaped(operand.tensor, [size for _, size in kept])
        found = _Operand(tensor, tuple(label for label, _ in kept))
        summed = [axis for axis, label in enumerate(found.labels) if label not in needed]
        if not summed:
            return found
        rest = tuple(label for label in found.labels if label in needed)
        return _Operand(self.of.reduced("ReduceSum", found.tensor, summed, keepdims=0), rest)

    def _arranged(self, operand: _Operand, labels: Sequence[str]) -> _Operand:
        order = [operand.labels.index(label) for label in labels]
        if order == list(range(len(order))):
            return operand
        return _Operand(self.of.do("Transpose", operand.tensor, perm=order), tuple(labels))

    def _product(self, first: _Operand, second: _Operand, needed: set[str]) -> _Operand:
        both = [label for label in first.labels if label in second.labels]
        batch, summed = [x for x in both if x in needed], [x for x in both if x not in needed]
        rows = [label for label in first.labels if label not in both]
        columns = [label for label in second.labels if label not in both]
        labels = (*batch, *rows, *columns)
        if not summed:
            a = self._arranged(first, (*batch, *rows)).tensor
            a = self.of.reshaped(a, [*self._shape((*batch, *rows)), *[1] * len(columns)]) if columns else a
            b = self._arranged(second, (*batch, *columns)).tensor
            b = self.of.reshaped(b, [*self._shape(batch), *[1] * len(rows), *self._shape(columns)]) if rows else b
            return _Operand(self.of.do("Mul", a, b), labels)
        left = self._matrix(self._arranged(first, (*batch, *rows, *summed)), batch, rows, summed)
        right = self._matrix(self._arranged(second, (*batch, *summed, *columns)), batch, summed, columns)
        product = self.of.do("MatMul", left, right)
        if len(rows) != 1 or len(columns) != 1:
            product = self.of.reshaped(product, self._shape(labels))
        return _Operand(product, labels)

    def _matrix(self, operand: _Operand, batch: Sequence[str], rows: Sequence[str], columns: Sequence[str]) -> str:
        """Return an operand with its labels joined to the rows and columns of matrices."""
        if len(rows) == 1 and len(columns) == 1:
            return operand.tensor
        sizes = (math.prod(self._shape(rows)), math.prod(self._shape(columns)))
        return self.of.reshaped(operand.tensor, [*self._shape(batch), *sizes])
