"""Forms that files have and the graph does not: those of earlier opsets, and layers that exporters spell out."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Attribute, Operator, Tensor
from edgeplan.graph.onnx.contents import Contents
from edgeplan.graph.shapes import free

_OPSET = 7
_AGAIN = "export it again, with opset 7 or later"
_OPERANDS = 2
#: Operators of any number of operands -> what joins two of them.
_JOINED: Mapping[str, str] = MappingProxyType({"Sum": "Add", "Max": "Max", "Min": "Min"})
#: From this opset on Softmax runs over one axis.
_OF_ONE_AXIS = 13
#: Coefficients by powers, of the input and of the function.
_Polynomial = dict[tuple[int, int], float]
#: What the function is of, for each operator that may be the heart of a GELU.
_HEARTS: Mapping[str, _Polynomial] = MappingProxyType(
    {"Erf": {(1, 0): math.sqrt(0.5)}, "Tanh": {(1, 0): math.sqrt(2 / math.pi), (3, 0): 0.044715 * math.sqrt(2 / math.pi)}}
)
_GELU: _Polynomial = {(1, 0): 0.5, (1, 1): 0.5}
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Neg"})
#: Exporters round constants, to half precision at worst.
_SAME = 3e-4
_DEEPEST = 8
_MOST_BEHIND = 16
_HIGHEST_POWER = 4
_BOTH = 2


def converted_by(source: str) -> str:
    """Return the command that brings a file to an opset of today."""
    code = (
        f"import onnx; from onnx.version_converter import convert_version; "
        f"onnx.save(convert_version(onnx.load({source!r}), 13), 'converted.onnx')"
    )
    return f"export it again, or convert it: python -c {shlex.quote(code)}"


def modern(contents: Contents, source: str) -> Contents:
    """Return a model whose nodes, which fit the schemas of its opset, mean what those of opset 7 do, without `Sum`."""
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


def over_one_axis(op: Operator, opset: int, tensors: MutableMapping[str, Tensor], taken: set[str]) -> tuple[Operator, ...]:
    """An operator as the graph knows it: an old Softmax over several axes has these joined before it and parted behind it.

    New tensors and names are added to `tensors` and `taken`.
    """
    if op.op_type not in ("Softmax", "LogSoftmax") or opset >= _OF_ONE_AXIS:
        return (op,)
    shape = tensors[op.inputs[0]].shape
    axis = op.integer("axis", 1)
    axis += len(shape) * (axis < 0)
    together = [i for i in range(axis, len(shape)) if shape[i] > 1]
    if len(together) < 2:  # the others make no difference
        return (replace(op, attributes=MappingProxyType({"axis": together[0] if together else axis})),)
    matrix = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    joined, parted, before, behind = (
        free(f"{name}:{told}", taken) for name in (op.outputs[0], op.name) for told in ("joined", "parted")
    )
    for name in (joined, parted):
        tensors[name] = Tensor(name, matrix, tensors[op.inputs[0]].dtype)
    taken |= {joined, parted, before, behind}
    return (
        Operator(before, "Reshape", op.inputs, (joined,), attributes=MappingProxyType({"shape": matrix})),
        replace(op, inputs=(joined,), outputs=(parted,), attributes=MappingProxyType({"axis": 1})),
        Operator(behind, "Reshape", (parted,), op.outputs, attributes=MappingProxyType({"shape": shape})),
    )


def recognised(
    operators: Sequence[Operator], tensors: Mapping[str, Tensor], constants: Mapping[str, TensorProto], outputs: Sequence[str]
) -> tuple[Operator, ...]:
    """Return the operators of a graph, with one in place of those that are a GELU or a layer normalisation."""
    if not {"Erf", "Tanh", "Sqrt"} & {op.op_type for op in operators}:
        return tuple(operators)
    found = _Patterns(operators, tensors, constants)
    made = {op.outputs[0]: op for heart in operators for op in (*found.gelu(heart), *found.layer(heart))}
    return _without_dead([made.get(op.outputs[0], op) for op in operators], operators, set(outputs))


def _without_dead(
    replaced: Sequence[Operator], operators: Sequence[Operator], outputs: AbstractSet[str]
) -> tuple[Operator, ...]:
    read_before = {name for op in operators for name in op.inputs}
    read, kept = set(outputs), list[Operator]()
    for op in reversed(replaced):
        if any(name in read or name not in read_before for name in op.outputs):
            read |= set(op.inputs)
            kept.append(op)
    return tuple(reversed(kept))


class _Patterns:
    def __init__(
        self, operators: Sequence[Operator], tensors: Mapping[str, Tensor], constants: Mapping[str, TensorProto]
    ) -> None:
        self.tensors, self.constants = tensors, constants
        self.producer = {name: op for op in operators for name in op.outputs}
        self.readers: dict[str, list[Operator]] = {}
        for op in operators:
            for name in dict.fromkeys(op.inputs):
                self.readers.setdefault(name, []).append(op)

    def number(self, name: str) -> float | None:
        """Return the value of a constant of one number that adds no axes to what it meets."""
        constant = self.constants.get(name)
        if constant is None or constant.data_location == TensorProto.EXTERNAL or list(constant.dims) not in ([], [1]):
            return None
        return float(np.ravel(numpy_helper.to_array(constant))[0])

    # GELU

    def gelu(self, heart: Operator) -> Iterator[Operator]:
        """Yield the GELU around an error function or hyperbolic tangent."""
        if heart.op_type not in _HEARTS:
            return
        for x in self._leaves(heart.inputs[0], _DEEPEST):
            if _equal(self._polynomial(heart.inputs[0], x, "", _DEEPEST), _HEARTS[heart.op_type]):
                for product in self._behind(heart):
                    if _equal(self._polynomial(product.outputs[0], x, heart.outputs[0], _DEEPEST), _GELU):
                        form = MappingProxyType[str, Attribute]({"approximate": "none" if heart.op_type == "Erf" else "tanh"})
                        yield Operator(product.name, "Gelu", (x,), product.outputs, attributes=form)
                        return

    def _leaves(self, tensor: str, depth: int) -> dict[str, None]:
        """Return the activations that a tensor is computed of by arithmetic, itself first."""
        found = {tensor: None}
        made = self.producer.get(tensor)
        if depth and made is not None and made.op_type in _ARITHMETIC:
            for name in made.inputs:
                found |= self._leaves(name, depth - 1)
        return found

    def _behind(self, op: Operator) -> tuple[Operator, ...]:
        """Return the operators behind an operator by arithmetic, the nearest first; of many readers only the first."""
        found = [op]
        for last in found:
            near = (reader for reader in self.readers.get(last.outputs[0], ()) if reader.op_type in _ARITHMETIC)
            found += [reader for reader in near if reader not in found][: _MOST_BEHIND - len(found)]
        return tuple(found[1:])

    def _polynomial(self, tensor: str, x: str, function: str, depth: int) -> _Polynomial | None:
        if tensor in (x, function):
            return {(1, 0) if tensor == x else (0, 1): 1.0}
        if (number := self.number(tensor)) is not None:
            return {(0, 0): number}
        made = self.producer.get(tensor)
        if not depth or made is None or made.op_type not in _ARITHMETIC:
            return None
        terms = [self._polynomial(name, x, function, depth - 1) for name in made.operands]
        known = [term for term in terms if term is not None]
        return _computed(made, known) if len(known) == len(terms) else None

    # Layer normalisation

    def layer(self, root: Operator) -> Iterator[Operator]:
        """Yield the normalisation over the last axes whose deviation is a square root."""
        if root.op_type != "Sqrt" or (variance := self._made(root.inputs[0], "Add")) is None or len(variance.weights) != 1:
            return
        epsilon, mean = self.number(variance.weights[0]), self._made(variance.inputs[0], "ReduceMean")
        if epsilon is None or mean is None or (apart := self._squared(mean.inputs[0])) is None:
            return
        x = apart.operands[0]
        centre = self._made(apart.operands[1], "ReduceMean")
        axes = self._last_axes(mean)
        if centre is None or centre.inputs != (x,) or not axes or self._last_axes(centre) != axes:
            return
        for quotient in self.readers.get(root.outputs[0], ()):
            if quotient.op_type == "Div" and len(quotient.inputs) == _BOTH and quotient.operands[1] == root.outputs[0]:
                above = self._made(quotient.operands[0], "Sub")
                if above is not None and above.operands == apart.operands:
                    yield self._with_weights(quotient, x, axes, epsilon)

    def _made(self, tensor: str, op_type: str) -> Operator | None:
        made = self.producer.get(tensor)
        return made if made is not None and made.op_type == op_type else None

    def _squared(self, tensor: str) -> Operator | None:
        made = self.producer.get(tensor)
        if made is None or made.weights:
            return None
        square = made.op_type == "Pow" and made.attributes.get("exponent") in (2, 2.0, (2,), (2.0,))
        product = made.op_type == "Mul" and len(made.inputs) == _BOTH and made.inputs[0] == made.inputs[1]
        found = self._made(made.inputs[0], "Sub") if square or product else None
        return found if found is not None and not found.weights else None

    def _last_axes(self, mean: Operator) -> tuple[int, ...]:
        """Return the axes of a mean that keeps them, where they are the last ones."""
        rank = len(self.tensors[mean.inputs[0]].shape)
        axes = tuple(sorted(axis % rank for axis in mean.integers("axes", ())))
        last = axes == tuple(range(rank - len(axes), rank))
        return axes if last and mean.integer("keepdims", 1) else ()

    def _with_weights(self, quotient: Operator, x: str, axes: tuple[int, ...], epsilon: float) -> Operator:
        """With the scale, and the shift behind it, that alone read what is normalised."""
        inner = tuple(self.tensors[x].shape[axis] for axis in axes)
        last, weights = quotient, list[str]()
        for op_type in ("Mul", "Add"):
            after = self.readers.get(last.outputs[0], ())
            if len(after) != 1 or after[0].op_type != op_type or len(after[0].weights) != 1 or len(after[0].inputs) != 1:
                break
            if self.tensors[after[0].weights[0]].shape != inner:
                break
            last = after[0]
            weights.append(last.weights[0])
        attributes: dict[str, Attribute] = {"axis": axes[0], "epsilon": epsilon}
        return Operator(last.name, "LayerNormalization", (x,), last.outputs, tuple(weights), MappingProxyType(attributes))


def _equal(found: _Polynomial | None, wanted: _Polynomial) -> bool:
    if found is None:
        return False
    return all(
        math.isclose(found.get(powers, 0.0), wanted.get(powers, 0.0), rel_tol=_SAME, abs_tol=0.0) for powers in found | wanted
    )


def _computed(op: Operator, terms: Sequence[_Polynomial]) -> _Polynomial | None:
    """Return the polynomial of an arithmetic operator; None if it is none, or one of high powers."""
    first, second = terms[0], terms[-1]
    if op.op_type == "Neg":
        return {powers: -value for powers, value in first.items()}
    if op.op_type in ("Add", "Sub"):
        sign = 1 if op.op_type == "Add" else -1
        found = {powers: first.get(powers, 0.0) + sign * second.get(powers, 0.0) for powers in first | second}
        return {powers: value for powers, value in found.items() if value}
    if op.op_type == "Div":
        divisor = second.get((0, 0), 0.0) if len(second) == 1 else 0.0
        return {powers: value / divisor for powers, value in first.items()} if divisor else None
    if op.op_type == "Mul":
        return _product(terms)
    powers = [power for power in (1, 2, 3) if op.attributes.get("exponent") in (power, (power,))]
    return _product([first] * powers[0]) if powers else None


def _product(factors: Sequence[_Polynomial]) -> _Polynomial | None:
    found: _Polynomial = {(0, 0): 1.0}
    for factor in factors:
        terms = [((a + c, b + d), one * other) for (a, b), one in found.items() for (c, d), other in factor.items()]
        found = {}
        for powers, value in terms:
            found[powers] = found.get(powers, 0.0) + value
        if any(sum(powers) > _HIGHEST_POWER for powers in found):
            return None
    return found
