"""Measures on this machine: an engine in this process, on the device's cores, beside the references.

Every subject of a batch is loaded once; then the batch is gone through block by block, so that the blocks of one subject lie
apart in time and drift of the machine meets all subjects alike. References are timed before and after each block. One file is
measured now as whole models of the pipeline are: `edgeplan measure`.
"""

from __future__ import annotations

import gc
import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from edgeplan.devices.config import DeviceFile
from edgeplan.engines.base import Engine, ProfiledSession, Session
from edgeplan.engines.registry import ENGINES, engine_protocol
from edgeplan.errors import DeviceError, EdgeplanError, ModelError
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.lock import after_measurements, machine_lock
from edgeplan.measurement.others import timed_runs, waited_ms
from edgeplan.measurement.records import (
    COLUMNS,
    AnySubject,
    Batch,
    FileSubject,
    MachineFacts,
    Measurement,
    MeasuringConditions,
    NodeMembers,
    NodeSubject,
    Subject,
)
from edgeplan.measurement.references import References, ReferenceTimes, nominal_times, quiet_times
from edgeplan.measurement.settings import MeasurementSettings, ReferenceExponents
from edgeplan.support import cpus
from edgeplan.support.cpus import throttled_ms
from edgeplan.support.machine import environment, fingerprint
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.sources import file_digest, imported

log = logging.getLogger(__name__)


@dataclass
class _Loaded:
    """A loaded subject holds its sessions and the times of each block so far, in the order of `COLUMNS`."""

    subject: AnySubject
    plain: Session
    counting: ProfiledSession | None
    blocks: list[tuple[float, ...]] = field(default_factory=list)
    counted: list[tuple[int, int]] = field(default_factory=list)
    counting_runs: int = 0


def load_plain(engine: Engine, subject: AnySubject, folder: Path) -> Session:
    """Load a subject without counters; what is written for it goes into the folder, and away again."""
    if isinstance(subject, NodeSubject):
        return engine.load_copies(subject.config, subject.copies)
    path = folder / f"{subject.id}.onnx"
    try:
        if isinstance(subject, FileSubject):
            return engine.load_file(subject.write(path), subject.wanted)
        return engine.load(subject.file or save_onnx(subject.graph, path), subject.graph)
    finally:
        for leftover in folder.glob(f"{path.name}*"):
            leftover.unlink()


def _load(engine: Engine, subject: AnySubject, folder: Path) -> Iterator[_Loaded]:
    """Load a subject; a node that the engine refuses ends no batch of hundreds."""
    counting = None
    try:
        plain = load_plain(engine, subject, folder)
        if isinstance(subject, NodeSubject) and engine.counts_copies:
            counting = engine.load_copies_profiled(subject.config, subject.copies)
    except EdgeplanError as error:  # whatever of its copies this engine lacks
        if not isinstance(subject, NodeSubject):
            raise
        log.warning("a node is left out: %s (%s)", error.what, error.where)
        return
    if isinstance(subject, Subject) and subject.profiled:
        path = folder / f"{subject.id}.onnx"
        counting = engine.load_profiled(subject.file or save_onnx(subject.graph, path), subject.graph)
        for leftover in folder.glob(f"{path.name}*"):
            leftover.unlink()
    yield _Loaded(subject, plain, counting)


def _block(
    item: _Loaded,
    references: References,
    settings: MeasurementSettings,
    threads: int,
    began: float,
    before: ReferenceTimes | None,
) -> ReferenceTimes:
    """Time one block of one subject: references, unless those after another's block are its own, runs, and references."""
    before = before or references.time(settings.reference_runs)
    item.plain.run()  # brings weights and buffers back into the caches
    least, most = settings.min_runs, settings.max_runs
    runs = timed_runs(item.plain.run, least=least, most=most, block_ms=settings.block_ms, threads=threads)
    if item.counting is not None:
        item.counting.run()
        first = item.counting_runs + 1
        for _ in runs:
            item.counting.run()
        item.counting_runs = first + len(runs)
        item.counted.append((first, item.counting_runs))
    after = references.time(settings.reference_runs)
    around = (min(before.compute_us, after.compute_us), min(before.bandwidth_us, after.bandwidth_us))
    item.blocks.append((min(runs) / 1e3, float(np.median(runs)) / 1e3, *around, began))
    return after


def _finish(item: _Loaded, nominal: ReferenceTimes, settings: MeasurementSettings, sample: int) -> Measurement:
    nodes, node_us = item.counting.profile(item.counted) if item.counting is not None else ((), np.zeros((len(item.blocks), 0)))
    columns: dict[str, Any] = dict(zip(COLUMNS, map(np.array, zip(*item.blocks, strict=True)), strict=True))
    return Measurement(
        subject=item.subject.id,
        sample=sample,
        **columns,
        nodes=nodes,
        node_us=node_us,
        nominal=nominal,
        exponents=settings.reference_exponents,
    )


def measure_batch(
    engine: Engine,
    subjects: Sequence[AnySubject],
    settings: MeasurementSettings,
    references: References,
    nominal: ReferenceTimes,
    sample: int = 0,
    *,
    clock: Callable[[], float] = time.time,
) -> list[Measurement]:
    """Measure subjects together; those still noisy after all blocks get further ones.

    Gives one measurement per subject, in order, but of nodes that the engine refuses. Whether the batch as a whole is quiet
    enough is for the caller to judge. `clock` tells the time that a block begins at, seconds since the epoch.
    """
    with ScratchFolder("models") as folder:
        loaded = [one for subject in subjects for one in _load(engine, subject, Path(folder))]
    collecting = gc.isenabled()
    gc.disable()
    try:
        pending = loaded
        for block in range(settings.blocks + settings.extra_blocks):
            if block >= settings.blocks:
                plain = ((item, _finish(replace(item, counting=None), nominal, settings, 0)) for item in loaded)
                pending = [item for item, found in plain if found.noise > settings.max_noise]
            if not pending:
                break
            began = time.monotonic()
            after: ReferenceTimes | None = None
            for item in pending:  # blocks of nodes are as short as the references, and share those between them
                shared = after if isinstance(item.subject, NodeSubject) else None
                after = _block(item, references, settings, engine.settings.threads, clock(), shared)
            if block + 1 < settings.blocks:
                time.sleep(max(0.0, settings.min_gap_seconds - (time.monotonic() - began)))
        return [_finish(item, nominal, settings, sample) for item in loaded]
    finally:
        if collecting:
            gc.enable()
        for item in loaded:
            item.plain.close()
            if item.counting is not None:
                item.counting.close()


class Local:
    """Measures on this machine; what a bench stores of it is also journalled here, so nothing is kept apart."""

    def __init__(self, device: DeviceFile, clock: Callable[[], float] = time.time) -> None:
        self._device, self._clock, self._before = device, clock, os.sched_getaffinity(0)

    def describe(self) -> MachineFacts:
        """Tell what decides rows here.

        A device file whose processor is not the host's may name the machine that its rows were begun on: the engine's version
        names the card, and what the host is changes little of it.
        """
        here, facts = fingerprint(), environment()
        named = self._device.fingerprint or here
        if named != here:
            if self._engine.reference_loads() is None:
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
            return quiet_times(self._references, reference_runs, seconds)

    def measure(self, batch: Batch) -> list[Measurement]:
        """Measure a batch on the device's cores."""
        self._device.pin()  # where others work now may not be where they did before
        references, engine = self._references, self._engine
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
                return list(pool.map(lambda graph: tuple(node.members for node in self._engine.told(graph)), graphs))
        finally:
            os.sched_setaffinity(0, before)

    def close(self) -> None:
        """Go back to the processors that this process had; the engine ends with it."""
        os.sched_setaffinity(0, self._before)

    @cached_property
    def _references(self) -> References:
        return References(self._engine.reference_loads())

    @cached_property
    def _engine(self) -> Engine:
        return self._device.load_engine()


_BLOCKS = range(3, 9)
_LEAST_RUNS = 2
#: Of a block's share of the time that runs take.
_PLAIN_SHARE = 0.6
#: Fitted on carriers: see docs/measuring.md.
_EXPONENTS = ReferenceExponents(compute=0.8, bandwidth=0.05)
_MS = 1e3


@dataclass(frozen=True)
class WholeModel:
    """A whole model was measured: shares of the time that its threads waited for others, or a CPU quota stopped them."""

    measurement: Measurement
    waited: float
    throttled: float
    seconds: float


def measure_subject(device: DeviceFile, subject: Subject | FileSubject, rows: Path, seconds: float) -> WholeModel:
    """Measure a file on a device: plain, unprofiled runs in blocks that lie apart in time, each between references.

    It is never ended by noise: what it finds is told with its noise. The cores of this process are put back. It takes about so
    many seconds; a model that is run for longer than that takes three blocks of two runs. `rows`: see `nominal_times`.
    """
    began, before = time.monotonic(), os.sched_getaffinity(0)
    with machine_lock(), ScratchFolder("measure") as folder:
        try:
            device.pin()
            engine = device.load_engine()
            settings = _settings(seconds, _time_of_one_run(engine, subject, Path(folder)))
            references = References(engine.reference_loads())
            nominal = nominal_times(device.name, rows, references, settings.reference_runs)
            ran, waited, throttled = time.process_time(), waited_ms(), throttled_ms()
            (found,) = measure_batch(engine, [subject], settings, references, nominal)
            ran, waited = time.process_time() - ran, max(0.0, waited_ms() - waited) / 1e3
            throttled = min((throttled_ms() - throttled) / 1e3, waited)  # a thread that is stopped counts as one that waits
        finally:
            os.sched_setaffinity(0, before)
    shares = ((waited - throttled) / (ran + waited), throttled / (ran + waited))
    return WholeModel(found, *shares, time.monotonic() - began)


def _time_of_one_run(engine: Engine, subject: Subject | FileSubject, folder: Path) -> float:
    """Measure the seconds of a run, the second one."""
    try:
        with load_plain(engine, subject, folder) as session:
            session.run()
            start = time.perf_counter()
            session.run()
            return time.perf_counter() - start
    except EdgeplanError:
        raise
    except Exception as error:  # engines raise what they like
        raise ModelError(
            f"{engine.name} cannot run the model: {(str(error).strip().splitlines() or [type(error).__name__])[0]}",
            where="edgeplan measure",
            next_step="check it with another engine: edgeplan device init NAME --engine E, then --device NAME",
        ) from error


def _settings(seconds: float, once: float) -> MeasurementSettings:
    """Return settings with blocks that share the time, fewer of them for a model whose runs are long."""
    blocks = min(_BLOCKS[-1], max(_BLOCKS[0], int(seconds / ((1 + _LEAST_RUNS) * once))))
    share = seconds / blocks
    return MeasurementSettings(
        blocks=blocks,
        min_runs=_LEAST_RUNS,
        max_runs=2000,
        block_ms=min(10_000.0, _PLAIN_SHARE * share * _MS),
        reference_runs=4,
        batch_size=1,
        batch_weight_mb=1,
        min_gap_seconds=min(600.0, share),
        max_noise=0.05,
        extra_blocks=blocks // 2,
        max_noisy_share=1.0,
        retries=0,
        reference_exponents=_EXPONENTS,
    )


@cache
def sources_digest(engine: str) -> str:
    """Digest what measures on an engine here, names of protocols and modules: a board and its host must agree."""
    names = [engine_protocol(face, engine).name for face in ("measure", "mapping")]
    modules = imported(__name__)
    session = ENGINES[engine].session.partition(":")[0]
    if session.startswith("edgeplan."):  # not of another package
        modules |= imported(session)
    return hashlib.sha256("\n".join([*names, *sorted(map(file_digest, modules))]).encode()).hexdigest()
