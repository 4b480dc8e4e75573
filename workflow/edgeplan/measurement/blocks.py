"""Times a batch of subjects in interleaved blocks.

Every subject of the batch is loaded once; then the batch is gone through block by block, so that the blocks of one subject lie
apart in time and drift of the machine meets all subjects alike. References are timed before and after each block.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from edgeplan.engines.base import Engine, ProfiledSession, Session
from edgeplan.errors import EdgeplanError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.preemption import timed_runs
from edgeplan.measurement.records import AnySubject, FileSubject, Measurement, NodeSubject, Subject
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.measurement.settings import MeasurementSettings
from edgeplan.support.scratch import ScratchFolder

log = logging.getLogger(__name__)


@dataclass
class _Loaded:
    """A loaded subject holds its sessions and the times gathered so far."""

    subject: AnySubject
    plain: Session
    counting: ProfiledSession | None
    least: list[float] = field(default_factory=list)
    median: list[float] = field(default_factory=list)
    references: list[ReferenceTimes] = field(default_factory=list)
    started: list[float] = field(default_factory=list)
    counted: list[tuple[int, int]] = field(default_factory=list)
    counting_runs: int = 0


def load_plain(engine: Engine, subject: AnySubject, folder: Path) -> Session:
    """Load a subject without counters; what is written for it goes into the folder, and away again.

    Raises:
        ModelError: the engine refuses a node.
    """
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
    item.started.append(began)
    before = before or references.time(settings.reference_runs)
    item.plain.run()  # brings weights and buffers back into the caches
    runs = timed_runs(
        item.plain.run,
        least=settings.min_runs,
        most=settings.max_runs,
        block_ms=settings.block_ms,
        threads=threads,
    )
    if item.counting is not None:
        item.counting.run()
        first = item.counting_runs + 1
        for _ in runs:
            item.counting.run()
        item.counting_runs = first + len(runs)
        item.counted.append((first, item.counting_runs))
    after = references.time(settings.reference_runs)
    item.least.append(min(runs) / 1e3)
    item.median.append(float(np.median(runs)) / 1e3)
    item.references.append(
        ReferenceTimes(min(before.compute_us, after.compute_us), min(before.bandwidth_us, after.bandwidth_us))
    )
    return after


def _finish(item: _Loaded, nominal: ReferenceTimes, settings: MeasurementSettings, sample: int) -> Measurement:
    nodes, node_us = item.counting.profile(item.counted) if item.counting is not None else ((), np.zeros((len(item.least), 0)))
    return Measurement(
        subject=item.subject.id,
        sample=sample,
        least_us=np.array(item.least),
        median_us=np.array(item.median),
        compute_us=np.array([r.compute_us for r in item.references]),
        bandwidth_us=np.array([r.bandwidth_us for r in item.references]),
        measured_at=np.array(item.started),
        nodes=nodes,
        node_us=node_us,
        nominal=nominal,
        exponents=settings.reference_exponents,
    )


def _is_noisy(item: _Loaded, nominal: ReferenceTimes, settings: MeasurementSettings) -> bool:
    empty = _Loaded(item.subject, item.plain, None, item.least, item.median, item.references, item.started)
    return _finish(empty, nominal, settings, 0).noise > settings.max_noise


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

    Args:
        engine: to measure on.
        subjects: what to time.
        settings: how to.
        references: timed beside each block.
        nominal: what they take on the quiet machine.
        sample: number of the repetition.
        clock: tells the time that a block begins at, seconds since the epoch.

    Returns:
        One measurement per subject, in order, but of nodes that the engine refuses. Whether the batch as a whole is quiet
        enough is for the caller to judge.
    """
    with ScratchFolder("models") as folder:
        loaded = [one for subject in subjects for one in _load(engine, subject, Path(folder))]
    collecting = gc.isenabled()
    gc.disable()
    try:
        pending = loaded
        for block in range(settings.blocks + settings.extra_blocks):
            if block >= settings.blocks:
                pending = [item for item in loaded if _is_noisy(item, nominal, settings)]
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
