"""Stores a plan as a document: which candidate, where and when, for every step; small, since a cold start reads it.

What belongs to a step stands in parallel arrays; implementations and sources are positions in short lists of names; places
follow from the queues.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, ValidationError, model_serializer

from edgeplan.errors import FormatError
from edgeplan.planning.machine import MAIN
from edgeplan.planning.profile import Disk

Milliseconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]
_AGAIN = "plan the model again: edgeplan plan cold-start"


@dataclass(frozen=True, slots=True)
class Target:
    """A target names the model, library, and machine that a plan may be executed on.

    The hash covers the model's external data, `machine` is its fingerprint, and `threads` cores execute.
    """

    model: str
    model_sha256: str
    library: str
    library_version: str
    isa: str
    machine: str
    threads: int


def _gap_of(times: dict[str, Any]) -> float:
    makespan, bound = times["makespan_ms"], times["lower_bound_ms"]
    return float(makespan / bound - 1) if bound > 0 else 0.0


class Plan(BaseModel):
    """A plan of a cold start says how every step is made, and on which core. What it is for: see `Target`.

    Attributes:
        costs: whether they were profiled or predicted.
        equal_cores: whether preparing cores join the execution from `widen_from` on.
        little_ratio: a little core waits until its preparation has taken this many times its own duration; 1 on real chips and
            equal cores.
        implementations, implementation: names, and for each step the position of its own.
        source: for each step the position of its weights' source in `SOURCES`.
        later: for each step the position of the implementation that later runs switch to (section 3.5), prepared by cores with
            nothing else to do; none where later runs keep the kernels of the cold start.
        main, queues: steps prepared by the main core and by each preparing core, in order.
        widen_from: first step executed on all cores, after all preparations; the number of steps if none is.
        lower_bound_ms: proven for the costs, contention factors included, and this order of execution; over all layouts.
        gap: relative distance of the makespan to the bound, 0 if the bound is 0. It follows from the two: documents without it
            are of before it stood in them.
        noise: share of what the profile measured that was seen to be disturbed each time, 0 to 1: of the stages of all
            candidates, the plan's or not and whatever they cost, or of the starts, whichever is larger. How far off costs are
            it does not say. Left out of the document where it is 0, as documents of before it was kept leave it out.
        others: share of the processors' time that other work had while the profile was taken; left out likewise.
        disk_mb_per_s, disk_latency_ms: of the disk that weights were planned to come from; None for weights in memory.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format_version: Literal[1] = 1
    model: Name
    model_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    library: Name
    library_version: Name
    isa: Name
    machine: Name
    threads: Positive
    planner: Name
    costs: Literal["profiled", "predicted"]
    note: str
    layout: Name
    equal_cores: bool
    little_ratio: Annotated[float, Field(ge=1, allow_inf_nan=False)]
    steps: Annotated[tuple[Name, ...], Field(min_length=1)]
    implementations: tuple[str, ...]
    implementation: tuple[Count, ...]
    source: tuple[Count, ...]
    later: tuple[Count, ...] = ()
    main: tuple[Count, ...]
    queues: tuple[tuple[Count, ...], ...]
    widen_from: Count
    makespan_ms: Milliseconds
    lower_bound_ms: Milliseconds
    # No computed field: a strict document that may hold one needs a validator before all, which takes no arrays for tuples.
    gap: Annotated[float, Field(allow_inf_nan=False)] = Field(default_factory=_gap_of)
    planning_ms: Milliseconds
    read_bytes: Count
    cache_bytes: Count
    disk_mb_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    disk_latency_ms: Milliseconds | None = None
    noise: Annotated[float, Field(ge=0, le=1)] = 0.0
    others: Annotated[float, Field(ge=0, le=1)] = 0.0

    @model_serializer(mode="wrap")
    def _without_defaults(self, serialise: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = serialise(self)
        for name in ("noise", "others"):
            if not document.get(name):
                document.pop(name, None)
        return document

    @property
    def disk(self) -> Disk | None:
        """Return where the weights were planned to come from, if not from memory."""
        if self.disk_mb_per_s is None or self.disk_latency_ms is None:
            return None
        return Disk(self.disk_mb_per_s, self.disk_latency_ms)

    @property
    def target(self) -> Target:
        """Return the target that the plan was made for."""
        return Target(*(getattr(self, part.name) for part in fields(Target)))

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Return the preparing core of each step, `MAIN` for the main core."""
        places = [MAIN] * len(self.steps)
        for q, queue in enumerate(self.queues):
            for k in queue:
                places[k] = q
        return tuple(places)

    @cached_property
    def cold(self) -> tuple[str, ...]:
        """Return the implementation of each step."""
        return tuple(self.implementations[i] for i in self.implementation)

    @property
    def warm(self) -> tuple[str, ...]:
        """Return the implementations that later runs switch to, by step; none where they keep those of the cold start."""
        return tuple(self.implementations[i] for i in self.later)

    def with_later(self, names: Sequence[str]) -> Plan:
        """Return the same plan with implementations for later runs, one a step; the cold start stays as it is."""
        known = sorted({*self.implementations, *names})
        chosen = [known.index(name) for name in self.cold]
        positions = {"implementation": tuple(chosen), "later": tuple(known.index(name) for name in names)}
        return Plan.model_validate({**self.model_dump(), "implementations": tuple(known), **positions})


def plan_text(plan: Plan) -> str:
    """Return a plan as a line of JSON."""
    return json.dumps(plan.model_dump(mode="json"), separators=(",", ":")) + "\n"


def plan_of(text: bytes | str, where: str) -> Plan:
    """Return a plan from its JSON."""
    try:
        return Plan.model_validate_json(text)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}" for e in error.errors())
        raise FormatError(f"the plan does not fit: {problems}", where=where, next_step=_AGAIN) from error


def check_fits(plan: Plan, target: Target, steps: tuple[str, ...], where: str = "") -> None:
    """Check that a plan is for this model, library and machine, and for these steps, () to leave them unchecked."""
    pairs = [(part.name, getattr(plan, part.name), getattr(target, part.name)) for part in fields(Target)[1:]]
    differences = [f"{name} is {there}, the plan is for {planned}" for name, planned, there in pairs if planned != there]
    if steps and steps != plan.steps:
        k = next((k for k, (a, b) in enumerate(zip(steps, plan.steps, strict=False)) if a != b), None)
        what = (
            f"{len(steps)}, the plan has {len(plan.steps)}" if k is None else f"not those of the plan: step {k} is {steps[k]}"
        )
        differences.append(f"steps are {what}")
    if differences:
        next_step = "plan the model again on this machine: edgeplan plan cold-start"
        raise FormatError(f"the plan is for something else: {'; '.join(differences)}", where=where, next_step=next_step)
