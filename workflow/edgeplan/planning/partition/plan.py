"""The partition document, `plan.json`: where each operator runs, when, and why it is not split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edgeplan.support.files import write_text

Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
_ROUGH = 1e-6
PROVEN_GAP = 1e-4  # of what is called optimal: sums of the same times differ by their order


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class PlannedStep(_Part):
    """A planned step says where and when an operator runs.

    Attributes:
        name: of the operator.
        on: "cpu", "gpu" or "split".
        option: its position among the operator's options in the cost document.
        cpu_share: part that the CPU does.
        dimension: what a split divides.
        implementation: name of the kernels.
        start_ms, cpu_end_ms, gpu_end_ms: when; a processor without a part ends when the step
            starts.
        whole_because: why it is not split, "" if it is.
    """

    name: Name
    on: Literal["cpu", "gpu", "split"]
    option: Count
    cpu_share: Share
    dimension: str = ""
    implementation: str = ""
    start_ms: Milliseconds
    cpu_end_ms: Milliseconds
    gpu_end_ms: Milliseconds
    whole_because: str = ""


class PartitionPlan(_Part):
    """A plan of a partition says which processor runs each operator.

    Attributes:
        format_version: version of this document.
        model: its name.
        costs_sha256: of the cost document.
        processors: names, the CPU's first.
        steps: in the order of the model.
        makespan_ms: predicted.
        lower_bound_ms: what no plan with the admitted options beats.
        better_single, better_single_ms: the better single processor and its makespan.
        admitted_splits: operators of which a split is admitted: its predicted gain exceeds the
            error.
        planning_ms: time taken to plan.
    """

    format_version: Literal[1] = 1
    model: Name
    costs_sha256: str
    processors: tuple[Name, Name]
    steps: Annotated[tuple[PlannedStep, ...], Field(min_length=1)]
    makespan_ms: Milliseconds
    lower_bound_ms: Milliseconds
    better_single: Literal["cpu", "gpu"]
    better_single_ms: Milliseconds
    admitted_splits: Count
    planning_ms: Milliseconds

    @model_validator(mode="after")
    def _consistent(self) -> PartitionPlan:
        slack = _ROUGH * max(self.makespan_ms, 1.0)
        if self.makespan_ms < self.lower_bound_ms - slack:
            raise ValueError("makespan_ms: below lower_bound_ms")
        if self.makespan_ms > self.better_single_ms + slack:
            raise ValueError("makespan_ms: above better_single_ms")
        return self

    @property
    def gap(self) -> float:
        """Relative distance of the makespan to the bound."""
        return self.makespan_ms / self.lower_bound_ms - 1 if self.lower_bound_ms > 0 else float(self.makespan_ms > 0)

    @property
    def optimal(self) -> bool:
        """Tell whether no plan is faster, by more than sums round."""
        return self.gap <= PROVEN_GAP


def write_plan(plan: PartitionPlan, path: Path) -> None:
    """Write a partition plan to a file, atomically."""
    write_text(path, plan.model_dump_json(indent=1) + "\n")


def document(plan: PartitionPlan) -> dict[str, object]:
    """Return a plan as `--json` prints it, with what follows from it."""
    content: dict[str, object] = json.loads(plan.model_dump_json())
    return {**content, "gap": plan.gap, "optimal": plan.optimal}
