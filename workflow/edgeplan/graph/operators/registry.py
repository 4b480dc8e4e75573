"""This registry lists every operator; a new one is a value in the file of its family, a new family a file and a line here.

A new one is a value in the file of its family, a new family a file and a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.graph.operators import (
    activations,
    arithmetic,
    compiled,
    convolutions,
    copies,
    normalisations,
    pooling,
    products,
    quantising,
    recurrent,
    reductions,
    resizing,
    selecting,
    shapes,
)
from edgeplan.graph.operators.base import OperatorSpec

_FAMILIES = (
    convolutions, products, pooling, normalisations, activations, arithmetic, reductions, copies, shapes, resizing, recurrent,
    selecting, quantising, compiled,
)  # fmt: skip

#: By ONNX type.
SPECS: Mapping[str, OperatorSpec] = MappingProxyType(
    {name: spec for family in _FAMILIES for spec in family.SPECS for name in spec.types}
)
#: Rank of each kind as an anchor.
RANKS: Mapping[str, int] = MappingProxyType({kind: spec.rank for spec in SPECS.values() for kind in spec.all_kinds})
#: Kinds whose time follows from the bytes that they move.
BANDWIDTH_BOUND = frozenset(kind for spec in SPECS.values() if spec.bandwidth_bound for kind in spec.all_kinds)
