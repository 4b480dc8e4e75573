"""The documents of a pair's plan: where each step runs and on what, and what was predicted."""

from __future__ import annotations

from typing import Any

import msgspec

from edgeplan.runtime.partitioned.build import PairPlaces


class ProcessorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A processor of a pair: its engine's name, the cores it computes on, and options as device files write them."""

    engine: str
    cores: tuple[int, ...] = ()
    options: dict[str, str] = {}


class PairSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where each step of a model runs, and on what.

    Attributes:
        pair: name of the pair.
        processors: of each lane; one alone where all steps are the host's.
        synchronisation: how the lanes wait for each other: "polling" or "events"; "" of one processor.
        placed: where and when the steps of the program run.
        plan: the partition document but for what it predicts (`planning.partition.plan`).
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
        median_ms: of every way that ran.
        next_best: the way that it is held against; "" where there is no other.
        margin: time of that one over its own.
        low, high: ends of the margin's 95 % interval.
        turns: that each way had.
        planned_factor: time of the planned way over its prediction; 0 where it did not run.
        left_out: why a way was not among them, by way.
        stock_ms: times of stock engines on all cores of the pair, float32, by setting.
        seconds: from the model to the plan.
        steps: how many seconds each part of that took.
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
    stock_ms: dict[str, float]
    seconds: float
    steps: dict[str, float]

    @property
    def stock(self) -> tuple[str, float] | None:
        """Return the fastest stock engine with its time; None where none ran."""
        return min(self.stock_ms.items(), key=lambda one: one[1], default=None)


class PairPrediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The prediction of a pair's plan: the rest of the partition document, and its costs.

    Attributes:
        plan: the rest of the partition document.
        costs: the cost document.
        check: what executing the plan beside other ways told; None of a plan that was predicted alone.
    """

    plan: dict[str, Any]
    costs: msgspec.Raw
    check: PairCheck | None = None
