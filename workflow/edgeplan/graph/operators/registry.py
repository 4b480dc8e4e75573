"""Every operator by its ONNX type: a new one is a value in the file of its family, a new family a file and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.graph.operators import compiled, copies, elementwise, products, quantising, reductions, resizing, windows
from edgeplan.graph.operators.base import OperatorSpec

_FAMILIES = (windows, products, reductions, elementwise, copies, resizing, quantising, compiled)

#: By ONNX type.
SPECS: Mapping[str, OperatorSpec] = MappingProxyType(
    {name: spec for family in _FAMILIES for spec in family.SPECS for name in spec.types}
)
#: Rank of each kind as an anchor.
RANKS: Mapping[str, int] = MappingProxyType({kind: spec.rank for spec in SPECS.values() for kind in spec.all_kinds})
