"""Measures on this machine: an engine in this process, on the device's cores, beside the references."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace

from edgeplan.devices.config import DeviceFile
from edgeplan.engines.base import Engine
from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Graph
from edgeplan.measurement.blocks import measure_batch
from edgeplan.measurement.lock import after_measurements, machine_lock
from edgeplan.measurement.measurer import Batch, MachineFacts, MeasuringConditions, NodeMembers
from edgeplan.measurement.nominal import quiet_times
from edgeplan.measurement.records import Measurement
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.support import cpus
from edgeplan.support.machine import environment, fingerprint


class Local:
    """Measures on this machine; what a bench stores of it is also journalled here, so nothing is kept apart.

    Args:
        device: the device.
        clock: tells the time that blocks begin at, in seconds since the epoch.
    """

    def __init__(self, device: DeviceFile, clock: Callable[[], float] = time.time) -> None:
        self._device, self._clock, self._before = device, clock, os.sched_getaffinity(0)
        self._references: References | None = None
        self._engine: Engine | None = None

    def describe(self) -> MachineFacts:
        """Tell what decides rows here.

        A device file whose processor is not the host's may name the machine that its rows were begun on: the engine's version
        names the card, and what the host is changes little of it.
        """
        here, facts = fingerprint(), environment()
        named = self._device.fingerprint or here
        if named != here:
            if self._loaded().reference_loads() is None:
                raise DeviceError(
                    f"its fingerprint is {named}, and this machine's is {here}",
                    where=f"device {self._device.name!r}",
                    next_step="leave `fingerprint` out of the device file: rows of this machine are none of another's",
                )
            facts |= {"fingerprint": named, "machine": here}
        return MachineFacts(self._device.engine_version(), named, facts)

    def held(self) -> AbstractContextManager[None]:
        """Hold this machine while others wait."""
        return machine_lock()

    def nominal(self, reference_runs: int, seconds: float | None = None) -> ReferenceTimes:
        """Time the references on the device's cores while nobody else measures."""
        with self.held():
            self._device.pin()
            return quiet_times(self._loads(), reference_runs, seconds)

    def measure(self, batch: Batch) -> list[Measurement]:
        """Measure a batch on the device's cores."""
        self._device.pin()  # where others work now may not be where they did before
        references, engine = self._loads(), self._loaded()
        began = time.monotonic()
        found = measure_batch(
            engine, batch.subjects, batch.settings, references, batch.nominal, batch.sample, clock=self._clock
        )
        names = {subject.id: name for subject, name in zip(batch.subjects, batch.names, strict=True)}
        share = (time.monotonic() - began) / max(1, len(found))
        return [replace(m, subject=names[m.subject], seconds=share) for m in found]

    def conditions(self) -> MeasuringConditions:
        """Tell this process's cores, and the load: this process adds about 1 to it."""
        return MeasuringConditions(tuple(sorted(os.sched_getaffinity(0))), round(os.getloadavg()[0], 2))

    def kept(self, batch: Batch) -> list[Measurement]:  # noqa: ARG002  likewise
        """Keep nothing apart from the bench's own store."""
        return []

    def executed(self, graphs: Sequence[Graph]) -> Iterable[NodeMembers]:
        """Load graphs, on all processors that were allowed: nothing is timed."""
        after_measurements()
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cpus.allowed())
        try:
            with ThreadPoolExecutor(cpus.workers()) as pool:
                return list(pool.map(self._members, graphs))
        finally:
            os.sched_setaffinity(0, before)

    def _members(self, graph: Graph) -> NodeMembers:
        return tuple(node.members for node in self._loaded().told(graph))

    def close(self) -> None:
        """Go back to the processors that this process had; the engine ends with it."""
        os.sched_setaffinity(0, self._before)

    def _loads(self) -> References:
        self._references = self._references or References(self._loaded().reference_loads())
        return self._references

    def _loaded(self) -> Engine:
        self._engine = self._engine or self._device.load_engine()
        return self._engine
