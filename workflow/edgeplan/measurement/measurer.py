"""A measurer times batches of subjects on one machine: on this one, or on a board that a command reaches.

The bench plans batches, stores rows and judges noise on the host; a measurer knows neither stores nor stages.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from edgeplan.graph.ir import Graph
from edgeplan.measurement.records import AnySubject, Measurement
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.measurement.settings import MeasurementSettings

#: Members of each node that an engine executes, in order: names of operators of the graph.
NodeMembers = tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """Holds the facts about a machine that decide its rows.

    Attributes:
        engine_version: version of the device's engine.
        fingerprint: fingerprint of the machine.
        environment: state of the machine worth keeping beside rows.
    """

    engine_version: str
    fingerprint: str
    environment: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Batch:
    """Holds subjects that are loaded and timed together, in interleaved blocks.

    Attributes:
        key: key of the rows that the batch gives: all that decides them but the subjects.
        subjects: subjects to time.
        names: the id of each in the store.
        sample: 0 for the first measurement of a subject, k for the k-th repetition.
        settings: how to measure.
        nominal: times of the references on the quiet machine.
    """

    key: str
    subjects: tuple[AnySubject, ...]
    names: tuple[str, ...]
    sample: int
    settings: MeasurementSettings
    nominal: ReferenceTimes


@dataclass(frozen=True, slots=True)
class MeasuringConditions:
    """Records the conditions that a batch was measured in: the cores, and the load at its end."""

    affinity: tuple[int, ...]
    load_1min: float


class Measurer(Protocol):
    """Times batches on one machine.

    `describe` comes first. `held` is entered before the first of some batches. After each batch `conditions` tells of it.
    """

    def describe(self) -> MachineFacts:
        """Return the facts about the measured machine that decide its rows."""

    def held(self) -> AbstractContextManager[None]:
        """Hold the machine while batches are measured."""

    def nominal(self, reference_runs: int, seconds: float | None = None) -> ReferenceTimes:
        """Time the references until their least times are known, for these seconds, or as long as is usual."""

    def measure(self, batch: Batch) -> list[Measurement]:
        """Measure a batch: one measurement for each subject, in order, under its name in the store; none of nodes refused."""

    def conditions(self) -> MeasuringConditions:
        """Return the conditions that the last batch was measured in."""

    def kept(self, batch: Batch) -> list[Measurement]:
        """Hand over what the machine measured of a batch's subjects earlier and could not hand over then."""

    def executed(self, graphs: Sequence[Graph]) -> Iterable[NodeMembers]:
        """Load each graph and tell the nodes that the engine would execute; nothing is timed."""

    def close(self) -> None:
        """Let go of the machine."""
