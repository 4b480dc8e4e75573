"""Shapes, element types and names of tensors. Imports next to nothing: who runs plans reads no graphs."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from itertools import chain, count
from types import MappingProxyType
from typing import TYPE_CHECKING

from edgeplan.errors import ModelError

if TYPE_CHECKING:
    from edgeplan.graph.ir import Graph

Shape = tuple[int, ...]
BYTES_PER_ELEMENT: Mapping[str, int] = MappingProxyType(
    {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}
)
FLOAT32, FLOAT16 = "float32", "float16"
NEXT_STEP = f"export it in {FLOAT32}"
#: Numbers with a point that no kernel of the runtime is of.
_OTHER_FLOATS = frozenset({FLOAT16, "bfloat16", "float64"})


def free(wanted: str, taken: Container[str]) -> str:
    """Return a name that nothing has: the one wanted, else with the first number behind it that makes it one."""
    return next(name for name in chain([wanted], (f"{wanted}~{k}" for k in count(1))) if name not in taken)


def whole_type(types: Iterable[str]) -> str:
    """Return the types, joined by "and", of a model none of whose numbers are float32; "" where some are, or none."""
    found = set(types)
    return "" if FLOAT32 in found else " and ".join(sorted(found))


def of_type(types: str) -> str:
    """Describe the fault of a model all of whose numbers are of these types."""
    return f"the model is of {types}: {NEXT_STEP}"


def require_float32(graph: Graph, source: str) -> None:
    """Refuse a model whose numbers are of another type as a whole; integers and truth values may stand beside any."""
    names = (name for op in graph.operators for name in (*op.inputs, *op.outputs, *op.weights))
    found = {graph.tensors[name].dtype for name in names} & {FLOAT32, *_OTHER_FLOATS}
    if types := whole_type(found):
        raise ModelError(of_type(types), where=source, next_step=NEXT_STEP)
