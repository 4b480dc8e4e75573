"""Models whose numbers are not single precision: predictors, and the kernels of the runtime, are of float32 alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from edgeplan.errors import ModelError

if TYPE_CHECKING:  # who runs plans reads no graphs
    from edgeplan.graph.ir import Graph


FLOAT32, FLOAT16 = "float32", "float16"
NEXT_STEP = f"export it in {FLOAT32}"


def whole_type(types: Iterable[str]) -> str:
    """Return the element type of a model none of whose numbers are float32; "" where some are, or there are none.

    Args:
        types: of its tensors or kernels, repeated or not; several are joined by "and".
    """
    found = set(types)
    return "" if FLOAT32 in found else " and ".join(sorted(found))


def of_type(types: str) -> str:
    """Describe the fault of a model all of whose numbers are of these types."""
    return f"the model is of {types}: {NEXT_STEP}"


#: Numbers with a point that no kernel of the runtime is of.
_OTHER_FLOATS = frozenset({FLOAT16, "bfloat16", "float64"})


def require_float32(graph: Graph, source: str) -> None:
    """Refuse a model whose numbers are of another type as a whole; integers and truth values may stand beside any."""
    names = (name for op in graph.operators for name in (*op.inputs, *op.outputs, *op.weights))
    found = {graph.tensors[name].dtype for name in names} & {FLOAT32, *_OTHER_FLOATS}
    if types := whole_type(found):
        raise ModelError(of_type(types), where=source, next_step=NEXT_STEP)
