"""Operators that run as compiled kernels, and those that do where their tensors are not of float32.

What an operator is computed by is a kernel's name (`runtime.kernels`) and a block of numbers
(`graph.blocks`). Kernels read and write row-major tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from types import MappingProxyType

from edgeplan.graph import blocks
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators import base
from edgeplan.graph.operators.base import OperatorSpec, Part
from edgeplan.graph.operators.copies import slice_ranges
from edgeplan.graph.shapes import FLOAT32
from edgeplan.graph.steps import GATHERED

#: Name and block of a kernel; None where there is none for an operator's types.
_Found = tuple[str, tuple[int, ...]] | None
_Finder = Callable[[Graph, Operator], _Found]

_TRUTH, _HALVES = frozenset({"bool"}), frozenset({"float16", "bfloat16"})
#: What kernels take the elements for.
_ELEMENT = MappingProxyType({**{dtype: dtype for dtype in base.ANY}, "bool": "uint8"})


def _types(graph: Graph, names: tuple[str, ...]) -> list[str]:
    return [graph.tensors[name].dtype for name in names]


def _block(graph: Graph, op: Operator, written: str) -> tuple[int, ...]:
    operands = [(graph.shape(name), graph.tensors[name].dtype) for name in op.operands]
    return blocks.element_wise(graph.shape(op.outputs[0]), operands, written)


def _element_wise(graph: Graph, op: Operator, kernel: str, types: frozenset[str]) -> _Found:
    read = _types(graph, op.operands)
    if len(set(read)) != 1 or read[0] not in types:
        return None
    return f"{kernel}_{_ELEMENT[read[0]]}", _block(graph, op, graph.tensors[op.outputs[0]].dtype)


def _plain(kernel: str, types: frozenset[str]) -> _Finder:
    return lambda graph, op: _element_wise(graph, op, kernel, types)


def _modulo(graph: Graph, op: Operator) -> str:
    floats = "float_" if graph.tensors[op.outputs[0]].dtype == FLOAT32 else ""
    return floats + ("remainder" if op.integer("fmod", 0) else "modulo")


def _power(graph: Graph, op: Operator) -> _Found:
    if "exponent" in op.attributes:
        return None
    raised, exponent = _types(graph, op.operands)
    if raised != exponent and {raised, exponent} <= base.NUMBERS:
        return f"power_by_{exponent}_{raised}", _block(graph, op, raised)
    return _element_wise(graph, op, "float_power" if raised == FLOAT32 else "power", base.NUMBERS)


def _infinity(graph: Graph, op: Operator) -> _Found:
    kernel = {(1, 1): "is_infinity", (1, 0): "is_positive_infinity", (0, 1): "is_negative_infinity"}
    both = (op.integer("detect_positive", 1), op.integer("detect_negative", 1))
    return _element_wise(graph, op, kernel[both], frozenset({FLOAT32})) if both in kernel else None


def _cast(graph: Graph, op: Operator) -> _Found:
    before, after = graph.tensors[op.operands[0]], graph.tensors[op.outputs[0]]
    block = _block(graph, op, after.dtype)
    if before.dtype == FLOAT32 and after.dtype in _HALVES:
        return f"to_{after.dtype}_{FLOAT32}", block
    if before.dtype in _HALVES and after.dtype == FLOAT32:
        return f"of_{before.dtype}_to_{FLOAT32}", block
    if {before.dtype, after.dtype} - base.ANY:
        return None
    same = before.dtype == after.dtype
    return (f"copied_{base.moved(after.dtype)}" if same else f"to_{after.dtype}_{_ELEMENT[before.dtype]}"), block


def _where(graph: Graph, op: Operator) -> _Found:
    written = graph.tensors[op.outputs[0]].dtype
    if set(_types(graph, op.operands[1:])) - base.ANY:
        return None
    return f"where_{base.moved(written)}", _block(graph, op, written)


def _gather(graph: Graph, op: Operator) -> _Found:
    if "indices" in op.attributes:
        return _gathered_evenly(graph, op)
    data, indices = (graph.tensors[name] for name in op.operands)
    if data.dtype not in base.ANY:
        return None
    axis = base.axis_of(op, len(data.shape), 0)
    return f"{GATHERED}{indices.dtype}_{base.moved(data.dtype)}", blocks.gathered(
        data.shape, axis, indices.elements, data.dtype, indices.dtype
    )


def _best(most: str) -> _Finder:
    def found(graph: Graph, op: Operator) -> _Found:
        data = graph.tensors[op.operands[0]]
        if data.dtype not in base.NUMBERS:
            return None
        last = "last_" if op.integer("select_last_index", 0) else ""
        axis = base.axis_of(op, len(data.shape), 0)
        return f"{last}{most}_{_ELEMENT[data.dtype]}", blocks.along(data.shape, axis, (data.dtype, "int64"), kept=False)

    return found


def _sums(graph: Graph, op: Operator) -> _Found:
    data = graph.tensors[op.operands[0]]
    if data.dtype not in base.NUMBERS:
        return None
    (axis,) = op.integers("axis", (0,))
    backwards = bool(op.integer("reverse", 0))
    kernel = "summed_before" if op.integer("exclusive", 0) else "summed"
    way = blocks.along(data.shape, axis % len(data.shape), (data.dtype, data.dtype), kept=True, backwards=backwards)
    return f"{kernel}_{_ELEMENT[data.dtype]}", way


def _copied(graph: Graph, op: Operator, strides: tuple[int, ...], start: int = 0) -> _Found:
    out = graph.tensors[op.outputs[0]]
    if out.dtype not in base.ANY - {FLOAT32}:  # oneDNN moves float32
        return None
    ways = (strides, blocks.dense(out.shape))
    return f"copied_{base.moved(out.dtype)}", blocks.strided(out.shape, ways, (out.dtype, out.dtype), (start, 0))


def _gathered_evenly(graph: Graph, op: Operator) -> _Found:
    """Constant places that are one, or lie at equal distances."""
    shape, strides = graph.shape(op.operands[0]), blocks.dense(graph.shape(op.operands[0]))
    axis, more = base.axis_of(op, len(shape), 0), len(graph.shape(op.outputs[0])) - len(shape)
    places = [place % shape[axis] for place in op.integers("indices", ())]
    apart = places[1] - places[0] if len(places) > 1 else 0
    if more > 0 or any(after - before != apart for before, after in pairwise(places)):
        return None
    along = (apart * strides[axis],) if more == 0 else ()
    return _copied(graph, op, (*strides[:axis], *along, *strides[axis + 1 :]), places[0] * strides[axis])


def _transposed(graph: Graph, op: Operator) -> _Found:
    own = blocks.dense(graph.shape(op.operands[0]))
    return _copied(graph, op, tuple(own[axis] for axis in op.integers("perm", tuple(reversed(range(len(own)))))))


def _sliced(graph: Graph, op: Operator) -> _Found:
    strides = blocks.dense(graph.shape(op.operands[0]))
    taken = slice_ranges(graph, op)
    steps = tuple(s * (taken[axis].step if axis in taken else 1) for axis, s in enumerate(strides))
    return _copied(graph, op, steps, sum(places.start * strides[axis] for axis, places in taken.items()))


_FUNCTIONS = ("Sin", "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh")
#: Kernels that compute a value of those at the same place, of one type, by the types that there are of them.
_PLAIN: Mapping[frozenset[str], Mapping[str, str]] = MappingProxyType(
    {
        base.ANY: {"Equal": "equal"},
        base.NUMBERS | base.BYTES: {
            "Greater": "greater", "Less": "less", "GreaterOrEqual": "greater_or_equal", "LessOrEqual": "less_or_equal",
        },
        base.NUMBERS: {"Sign": "sign"},
        _TRUTH: {"And": "both", "Or": "either", "Xor": "one_alone", "Not": "invert"},
        frozenset({FLOAT32}): {
            "Floor": "floor", "Ceil": "ceil", "Round": "rounded", "Erf": "erf", "IsNaN": "is_nan",
            **{name: name.lower() for name in _FUNCTIONS},
        },
        base.INTEGERS | base.BYTES: {
            "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "quotient", "Min": "minimum", "Max": "maximum",
            **{f"Bitwise{what}": f"bitwise_{what.lower()}" for what in ("And", "Or", "Xor", "Not")},
        },
        base.INTEGERS: {"Abs": "absolute", "Neg": "negative"},
    }
)  # fmt: skip
#: How an operator is compiled; of those that oneDNN has primitives for, where tensors are not of float32.
_FINDERS: Mapping[str, _Finder] = MappingProxyType(
    {
        **{name: _plain(kernel, types) for types, kernels in _PLAIN.items() for name, kernel in kernels.items()},
        "Where": _where,
        "Cast": _cast,
        "ArgMax": _best("largest"),
        "ArgMin": _best("smallest"),
        "CumSum": _sums,
        "Mod": lambda graph, op: _element_wise(graph, op, _modulo(graph, op), base.NUMBERS | base.BYTES),
        "Pow": _power,
        "Gather": _gather,
        "IsInf": _infinity,
        "Transpose": _transposed,
        "Expand": lambda graph, op: _copied(
            graph, op, blocks.broadcast(graph.shape(op.operands[0]), graph.shape(op.outputs[0]))
        ),
        "Slice": _sliced,
    }
)


def compiled(graph: Graph, op: Operator) -> Part | None:
    """Return the compiled step of an operator; None where oneDNN computes it, or there is no kernel for its types."""
    find = _FINDERS.get(op.op_type)
    found = find(graph, op) if find else None
    return base.kernel_part(op, *found) if found is not None else None


def lacks_kernel(graph: Graph, op: Operator, elements: frozenset[str]) -> str:
    """Describe the types of an operator that neither its steps, of `elements`, nor a compiled kernel compute, or ""."""
    types = _types(graph, (*op.operands, *op.outputs))
    odd = sorted(set(types) - {FLOAT32})
    if compiled(graph, op) is not None or (not set(types) - elements and op.op_type not in _ALONE):
        return ""
    return f"not {FLOAT32} but {' and '.join(odd)}" if odd else "this form"


def _lower(graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    found = compiled(graph, op)
    assert found is not None  # noqa: S101  `lacks_kernel` was asked
    return (found,)


def _of(name: str, *, rank: int = base.PAIR, constants: tuple[str, ...] = ()) -> OperatorSpec:
    return OperatorSpec((name,), name.lower(), _lower, (), rank, constants, ordered=True)


_OF_ONE = ("Not", "Cast", "Floor", "Ceil", "Round", "Erf", "Sign", "IsNaN", "IsInf", "BitwiseNot", *_FUNCTIONS)
_OF_TWO = (
    *("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "And", "Or", "Xor", "Mod"),
    *("BitwiseAnd", "BitwiseOr", "BitwiseXor"),
)
SPECS = (
    *(_of(name) for name in (*_OF_ONE, *_OF_TWO, "Where")),
    *(_of(name, rank=base.COPY) for name in ("ArgMax", "ArgMin")),
    _of("CumSum", rank=base.COPY, constants=("", "axis")),
)
#: Types that compiled kernels alone compute.
_ALONE = frozenset(name for spec in SPECS for name in spec.types)
