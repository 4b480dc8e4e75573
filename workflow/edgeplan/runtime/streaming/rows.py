"""Tables that are gathered from stay in the file: a step reads the rows that its indices name, and no others.

An embedding has a row for each word of a vocabulary, of which an inference needs those of its tokens alone.
"""

from __future__ import annotations

import math
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from edgeplan.graph import blocks
from edgeplan.graph.shapes import BYTES_PER_ELEMENT
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.creation import paged

_IMAGE_RANK = 4


class Table(msgspec.Struct, frozen=True):
    """A weight that lies in the file as it is: where, and how many bytes."""

    weight: str
    at: int
    size: int


def with_rows(lowered: Lowered) -> tuple[Lowered, tuple[Table, ...]]:
    """Steps that gather whole rows of a weight read them from the file; the tables lie at its beginning."""
    tables: dict[str, Table] = {}
    steps: list[Step] = []
    at = 0
    for step in lowered.steps:
        if not _gathers_rows(step, lowered):
            steps.append(step)
            continue
        weight = step.weights["operand_0"]
        rows, *rest = lowered.shapes[weight]
        row = BYTES_PER_ELEMENT[lowered.types.get(weight, "float32")] * math.prod(rest)
        if weight not in tables:
            tables[weight] = Table(weight, at, rows * row)
            at += paged(rows * row)
        settings = MappingProxyType({"at": tables[weight].at, "rows": rows, "row_bytes": row})
        steps.append(replace(step, kind="rows", weights=MappingProxyType({}), settings=settings))
    return replace(lowered, steps=tuple(steps)), tuple(tables.values())


def _gathers_rows(step: Step, lowered: Lowered) -> bool:
    """Tell whether a step picks slices along the first axis of a weight."""
    if not step.picks_places or [*step.weights] != ["operand_0"]:
        return False
    outer = step.sizes("block")[blocks.AT_DIMS]  # places before the axis that is picked from
    return outer == 1 and len(lowered.shapes[step.outputs[0]]) != _IMAGE_RANK and not step.post_ops
