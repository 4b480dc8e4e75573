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
        processors: of each lane.
        synchronisation: how the lanes wait for each other: "polling" or "events".
        placed: where and when the steps of the program run.
        plan: the partition document but for what it predicts (`planning.partition.plan`).
    """

    pair: str
    processors: tuple[ProcessorSpec, ...]
    synchronisation: str
    placed: PairPlaces
    plan: dict[str, Any]


class PairPrediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prediction of a pair's plan: the rest of the partition document, and its costs.

    Attributes:
        plan: the rest of the partition document.
        costs: the cost document.
    """

    plan: dict[str, Any]
    costs: msgspec.Raw
