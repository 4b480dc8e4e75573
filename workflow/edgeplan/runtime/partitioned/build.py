"""From a partition to the program that executes it, its weights, and where and when its steps run."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from edgeplan.runtime.creation import Creator
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.partitioned.program import Partitioned, crossings, host_kernels
from edgeplan.runtime.processor import Region
from edgeplan.runtime.streaming.build import Built, Places, Segment, StepInMaking, raw_segment, stream_program


class PairPlaces(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where and when the steps of a program run on two lanes: 0, the host's, and 1, the other processor's.

    Attributes:
        needed: how many steps of the other lane must be done before each starts.
        origin: for each step, the number of the model's step that it is (a part of).
        buffer_offset: address of each buffer in the arena.
        moved_in, moved_out: of each step, what crosses before it and behind it where each lane has its own copy of the arena.
    """

    lanes: tuple[int, ...]
    needed: tuple[int, ...]
    origin: tuple[int, ...]
    buffer_offset: tuple[int, ...]
    arena_bytes: int
    moved_in: tuple[tuple[Region, ...], ...]
    moved_out: tuple[tuple[Region, ...], ...]


def build_pair(dnnl: Dnnl, partitioned: Partitioned, threads: int = 1) -> tuple[Built, PairPlaces]:
    """Build the program of a partition that was made for the host's blocks."""
    ranged = partitioned.ranged
    steps = ranged.lowered
    whole = replace(partitioned.lowered, shapes=steps.shapes)  # copies of rows have a place, too
    places = Places(whole, ranged, partitioned.layouts, dnnl.info.block)
    creator = Creator(dnnl, steps.shapes, partitioned.layouts, places.tokens, steps.types)
    rows: list[StepInMaking] = []
    made = host_kernels(creator, partitioned, threads)
    for step, lane, origin, (kernel, created) in zip(steps.steps, partitioned.lanes, ranged.origin, made, strict=True):
        if lane:
            segment = raw_segment(steps, step) if step.weights else None
        else:
            segment = Segment(((step, created, 0),), created.weight_bytes) if created.slots else None
        rows.append(StepInMaking(step, kernel, created, origin, -1, segment))
    program = stream_program(creator, whole, places, rows, threads, lanes=2)
    scratch = max((row.created.scratch_bytes for row in rows), default=0)
    views = {k for k, row in enumerate(rows) if not partitioned.lanes[k] and not row.created.calls}
    offsets = tuple(partitioned.offsets.get(name, partitioned.arena_bytes) for name in program.buffer_names)
    found = PairPlaces(
        tuple(int(lane) for lane in partitioned.lanes), partitioned.needed, tuple(ranged.origin), offsets,
        partitioned.arena_bytes + scratch, *crossings(partitioned, dnnl.info.block, views),
    )  # fmt: skip
    return Built(program, tuple(row.segment for row in rows), ranged, tuple(row.origin for row in rows), ()), found


class ProcessorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A processor of a pair: its engine's name, the cores it computes on, and options as device files write them."""

    engine: str
    cores: tuple[int, ...] = ()
    options: dict[str, str] = {}


class PairSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where each step of a model runs, and on what: a processor for each lane, one alone where all steps are the host's.

    The lanes wait by "polling" or "events", "" of one processor. The plan is the partition document but for what it predicts
    (`planning.partition.planner.PartitionPlan`).
    """

    pair: str
    processors: tuple[ProcessorSpec, ...]
    synchronisation: str
    placed: PairPlaces
    plan: dict[str, Any]


class PairCheck(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The check of a plan by execution: the ways to run its model, one inference of each in turn, each in its own process.

    Attributes:
        way: the fastest, which the folder holds.
        median_ms: of every way that ran, stock engines by the names of their settings.
        next_best: the way that it is held against; "" where there is no other.
        margin: time of that one over its own, with the ends of its 95 % interval.
        turns: that each way had.
        planned_factor: time of the planned way over its prediction; 0 where it did not run.
        left_out: why a way was not among them, by way.
        seconds: from the model to the plan, and as `steps` of each part of that.
    """

    way: str
    median_ms: dict[str, float]
    next_best: str
    margin: float
    low: float
    high: float
    turns: int
    planned_factor: float
    left_out: dict[str, str]
    seconds: float
    steps: dict[str, float]


class PairPrediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The rest of the partition document, its costs, and the check; None of a plan that was predicted alone."""

    plan: dict[str, Any]
    costs: msgspec.Raw
    check: PairCheck | None = None
