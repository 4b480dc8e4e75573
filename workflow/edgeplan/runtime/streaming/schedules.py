"""Schedules of plans of memory, where and when, and predictions of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from edgeplan.runtime.folder import MEMORY

if TYPE_CHECKING:
    from edgeplan.runtime.folder import PlanFolder


#: How weights are stored: as kernels take them, or in half the bytes.
Stored = Literal["f32", "bf16", "f16"]
F32: Stored = "f32"
BF16: Stored = "bf16"
F16: Stored = "f16"
#: Outputs of a plan with such weights may differ from ONNX Runtime's by so much of the largest magnitude.
HALVES_TOLERANCE = 0.02
#: Bytes of a half, and of its value.
HALF_BYTES, VALUE_BYTES = 2, 4


BACK_TO_BACK = "back-to-back"


class Schedule(msgspec.Struct, frozen=True):
    """Addresses of buffers and weights, and what each load waits for: the part of a plan document that running needs.

    `back_to_back`: inferences follow each other; else memory is filled before each. Buffers have addresses in the arena; of
    each step's weights see `planning.memory.document`.
    """

    back_to_back: bool
    arena_bytes: int
    buffer_offset: Sequence[int]
    weight_offset: Sequence[int]
    after: Sequence[int]
    again: Sequence[int]

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Schedule:
        """The schedule of a plan document."""
        names = ("arena_bytes", "tensor_offset", "weight_offset", "after", "again")
        return cls(plan["mode"] == BACK_TO_BACK, *(plan[name] for name in names))


class MemorySchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where and when of a plan of memory.

    Attributes:
        mode: "isolated", memory is filled before each inference, or "back-to-back", inferences follow each other.
        budget_bytes: over the idle process, all pages counted.
        limit_bytes: the most bytes of weights of a part of a step.
        regions: first and last step, and rows of a band, of what runs in bands.
        compute, reader: processors of the computing and of the reading threads.
    """

    mode: str
    budget_bytes: int
    limit_bytes: int
    regions: tuple[tuple[int, int, int], ...]
    compute: tuple[int, ...]
    reader: tuple[int, ...]
    placed: Schedule
    weights: Stored = F32


class MemoryPrediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The prediction of a plan of memory, and the profile that it was made from.

    Attributes:
        ms: latency, or the mean time between inferences; the bound on it is proven.
        loaded_bytes: read during an inference.
        profile: what the program takes on its machine (`profiling.streaming.StreamProfile`); none while it is measured.
        error: of weights in half their bytes: the largest difference of outputs from ONNX Runtime's on the inputs that the plan
            was tried with, relative to the largest magnitude; None where it is not known.
    """

    ms: float = 0.0
    lower_bound_ms: float = 0.0
    loaded_bytes: int = 0
    profile: dict[str, Any] = {}
    error: float | None = None


class _Weights(msgspec.Struct, frozen=True):
    """The kind of stored weights of a schedule alone."""

    weights: Stored = F32


def stored_as(plan: PlanFolder) -> Stored:
    """The kind of stored weights of a plan; those of plans of other kinds are stored whole."""
    return plan.scheduled(_Weights).weights if plan.kind == MEMORY else F32
