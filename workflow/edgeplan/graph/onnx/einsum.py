"""Einsum with a fixed equation as products of matrices, sums and transpositions, which preparation writes.

Operands are multiplied from the left to the right. Axes that two of them share are summed over by a product of matrices as soon
as nothing else needs them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple, NoReturn

import numpy as np
import onnx

from edgeplan.graph.onnx.nodes import Writer
from edgeplan.graph.operators.base import attributes_of, refuse

_TERM = re.compile(r"([A-Za-z]*)(\.\.\.)?([A-Za-z]*)")
_ELLIPSIS = "..."
#: From this opset on the axes of a sum are an input.
_AXES_AS_INPUT = 13


class _Operand(NamedTuple):
    """An operand is a tensor with a label for each axis."""

    tensor: str
    labels: tuple[str, ...]


def plain_products(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]], source: str) -> None:
    """Write each Einsum of a model as operators that the graph knows.

    Args:
        model: the model; it is changed.
        shapes: of what its nodes read, as far as known.
        source: where it comes from, for messages.
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
