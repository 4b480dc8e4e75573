"""The plan document: addresses of tensors and weights, what each load waits for, and the proven bound.

What belongs to a step or to a tensor stands in parallel arrays, in order of execution. A runtime needs
nothing else: it copies no decision into code, and a change of the budget is another document.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgeplan.errors import FormatError
from edgeplan.planning.layout.buffers import buffers, overlapping
from edgeplan.planning.memory.quick import Mode, Planned
from edgeplan.planning.memory.workload import Reader, Workload

Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Step = Annotated[int, Field(ge=-1)]
Name = Annotated[str, Field(min_length=1)]
_ROUGH_MS = 1e-6  # times are rounded to this in the document


class MemoryUse(StrEnum):
    """A use says which kind of data a piece of memory holds."""

    tensor = "activations"
    weights = "weights"
    stays = "weights that stay"


@dataclass(frozen=True, slots=True)
class Held:
    """Memory that is held for some steps.

    Attributes:
        name: of the tensor, or of whose weights it is.
        use: what it is held for.
        lower, upper: from step lower to before step upper.
        size, offset: bytes.
    """

    name: str
    use: MemoryUse
    lower: int
    upper: int
    size: int
    offset: int


class MemoryPlan(BaseModel):
    """A plan of weight streaming says where weights lie and when they are loaded.

    Attributes:
        format_version: version of this document.
        mode: what it is planned for: one inference that begins with memory filled, or inferences that
            follow each other.
        budget_bytes, arena_bytes: that were given, and the largest address in use.
        bytes_per_ms, lanes: of the reader it is planned for.
        steps: names, in order of execution; a step is a layer or a slice of one.
        weight_bytes, weight_offset: of each step; offset -1 without weights.
        after: step that has to end before the load of a step's weights begins; -1 for none, and for
            steps without weights.
        again: for loads with `after` -1, the step of the inference before that has to end before the
            weights are loaded again; its own for weights that stay; -1 otherwise.
        tensors: names of activations and scratch.
        tensor_lower, tensor_upper: each is alive from step lower to before step upper.
        tensor_bytes, tensor_offset: of each tensor.
        predicted_ms: latency, or the mean time between inferences.
        lower_bound_ms: proven for these steps and slices, this order, budget and bandwidth.
        loaded_bytes: read during an inference.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format_version: Literal[1] = 1
    mode: Literal["isolated", "back-to-back"]
    budget_bytes: Count
    arena_bytes: Count
    bytes_per_ms: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    lanes: Annotated[int, Field(ge=1)]
    steps: Annotated[tuple[Name, ...], Field(min_length=1)]
    weight_bytes: tuple[Count, ...]
    weight_offset: tuple[Step, ...]
    after: tuple[Step, ...]
    again: tuple[Step, ...]
    tensors: tuple[Name, ...]
    tensor_lower: tuple[Count, ...]
    tensor_upper: tuple[Count, ...]
    tensor_bytes: tuple[Count, ...]
    tensor_offset: tuple[Count, ...]
    predicted_ms: Milliseconds
    lower_bound_ms: Milliseconds
    loaded_bytes: Count

    @property
    def gap(self) -> float:
        """Relative distance of the prediction to the bound; 0 if the bound is 0."""
        return self.predicted_ms / self.lower_bound_ms - 1 if self.lower_bound_ms > 0 else 0.0

    @model_validator(mode="after")
    def _consistent(self) -> MemoryPlan:
        n, count = len(self.steps), len(self.tensors)
        if {len(self.weight_bytes), len(self.weight_offset), len(self.after), len(self.again)} != {n}:
            raise ValueError("weight_bytes, weight_offset, after, again: one for each step")
        ranges = (self.tensor_lower, self.tensor_upper, self.tensor_bytes, self.tensor_offset)
        if {len(values) for values in ranges} != {count}:
            raise ValueError("tensor_lower, tensor_upper, tensor_bytes, tensor_offset: one for each tensor")
        for k in range(n):
            if (self.weight_offset[k] < 0) != (self.weight_bytes[k] == 0):
                raise ValueError(f"weight_offset: of step {k}, which has {self.weight_bytes[k]} bytes of weights")
            if self.after[k] >= k or self.again[k] >= n:
                raise ValueError(f"after, again: of step {k}, a later one")
            if (self.again[k] >= k) != (self.after[k] < 0 and self.weight_offset[k] >= 0):
                raise ValueError(f"again: of step {k}, for weights that wait for no step alone")
        if any(not lower < upper <= n for lower, upper in zip(self.tensor_lower, self.tensor_upper, strict=True)):
            raise ValueError("tensor_lower, tensor_upper: not a range of steps")
        if self.arena_bytes > self.budget_bytes:
            raise ValueError("arena_bytes: above budget_bytes")
        if self.predicted_ms < self.lower_bound_ms - _ROUGH_MS:
            raise ValueError("predicted_ms: below lower_bound_ms")
        self._check_addresses()
        return self

    def held(self) -> Iterator[Held]:
        """Yield the pieces of memory held during an inference, tensors first, in their order.

        Weights live from their load to their step. Those that are loaded before the first step are there from the begin and,
        where another inference follows at once, from the end of the step that they wait for (`again`).
        """
        ranges = zip(self.tensor_lower, self.tensor_upper, self.tensor_bytes, self.tensor_offset, strict=True)
        for name, (lower, upper, size, offset) in zip(self.tensors, ranges, strict=True):
            yield Held(name, MemoryUse.tensor, lower, upper, size, offset)
        n = len(self.steps)
        for k, (size, offset) in enumerate(zip(self.weight_bytes, self.weight_offset, strict=True)):
            if offset < 0:
                continue
            name, again = f"weights of {self.steps[k]}", self.again[k]
            use, upper = (MemoryUse.stays, n) if again == k else (MemoryUse.weights, k + 1)
            yield Held(name, use, self.after[k] + 1, upper, size, offset)
            if k < again < n - 1 and self.mode == "back-to-back":
                yield Held(name, use, again + 1, n, size, offset)

    def _check_addresses(self) -> None:
        """No two of what lives at the same time share memory."""
        found = list(self.held())
        if any(held.offset + held.size > self.arena_bytes for held in found):
            raise ValueError("weight_offset, tensor_offset: above arena_bytes")
        try:
            alive = buffers([held.lower for held in found], [held.upper for held in found], [held.size for held in found])
            both = overlapping(alive, np.array([held.offset for held in found], dtype=np.int64))
        except (FormatError, OverflowError) as error:
            raise ValueError(f"weight_bytes, tensor_bytes: {error}") from error
        if both is not None:
            one, other = (found[k].name for k in both)
            raise ValueError(f"weight_offset, tensor_offset: {one} and {other} share memory")


def document(
    planned: Planned, workload: Workload, reader: Reader, steps: tuple[str, ...], tensors: tuple[str, ...]
) -> MemoryPlan:
    """Write a planned schedule as a plan document.

    Args:
        planned: the plan.
        workload: what it is for.
        reader: what weights are read with.
        steps: names.
        tensors: names.
    """
    placed = planned.placement
    waits = (placed.weight_offset >= 0) & (placed.after < 0)
    return MemoryPlan(
        mode="isolated" if planned.mode is Mode.isolated else "back-to-back",
        budget_bytes=planned.budget,
        arena_bytes=placed.height,
        bytes_per_ms=reader.bytes_per_ms,
        lanes=reader.lanes,
        steps=steps,
        weight_bytes=tuple(workload.weight_bytes.tolist()),
        weight_offset=tuple(placed.weight_offset.tolist()),
        after=tuple(placed.after.tolist()),
        again=tuple(np.where(waits, placed.again, -1).tolist()),
        tensors=tensors,
        tensor_lower=tuple(workload.tensors.lower.tolist()),
        tensor_upper=tuple(workload.tensors.upper.tolist()),
        tensor_bytes=tuple(workload.tensors.size.tolist()),
        tensor_offset=tuple(placed.tensor_offset.tolist()),
        predicted_ms=round(planned.predicted_ms, 6),
        lower_bound_ms=round(planned.lower_bound_ms, 6),
        loaded_bytes=planned.loaded_bytes,
    )
