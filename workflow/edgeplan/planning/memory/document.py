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
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.planning.memory.quick import Mode, PlannedMemory
from edgeplan.planning.memory.workload import Reader, Workload

Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Step = Annotated[int, Field(ge=-1)]
Name = Annotated[str, Field(min_length=1)]


class MemoryUse(StrEnum):
    """A use says which kind of data a piece of memory holds."""

    tensor = "activations"
    weights = "weights"
    stays = "weights that stay"


@dataclass(frozen=True, slots=True)
class Held:
    """Held memory, in bytes, belongs to a tensor, or to somebody's weights, from step `lower` to before step `upper`."""

    name: str
    use: MemoryUse
    lower: int
    upper: int
    size: int
    offset: int


class MemoryPlan(BaseModel):
    """A plan of weight streaming says where weights lie and when they are loaded.

    Attributes:
        mode: for one inference that begins with memory filled, or for inferences that follow each other.
        budget_bytes, arena_bytes: that were given, and the largest address in use.
        bytes_per_ms, lanes: of the reader it is planned for.
        steps: names, in order of execution; a step is a layer or a slice of one.
        weight_bytes, weight_offset: of each step; offset -1 without weights.
        after, again: see `workload.Placement`; -1 for steps without weights, and `again` where `after` is a step.
        tensors: names of activations and scratch, alive from step `tensor_lower` to before step `tensor_upper`.
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


def memory_document(
    planned: PlannedMemory, workload: Workload, reader: Reader, steps: tuple[str, ...], tensors: tuple[str, ...]
) -> MemoryPlan:
    """Write a planned schedule as a plan document."""
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
