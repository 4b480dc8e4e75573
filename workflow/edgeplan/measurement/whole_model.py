"""Measures one model file on this machine now, as whole models of the pipeline are: `edgeplan measure`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from edgeplan.devices.config import DeviceFile
from edgeplan.engines.base import Engine
from edgeplan.errors import EdgeplanError, ModelError
from edgeplan.measurement.blocks import load_plain, measure_batch
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.nominal import nominal_times
from edgeplan.measurement.preemption import waited_ms
from edgeplan.measurement.records import FileSubject, Measurement, Subject
from edgeplan.measurement.references import References
from edgeplan.measurement.settings import MeasurementSettings, ReferenceExponents
from edgeplan.support.cpus import throttled_ms
from edgeplan.support.scratch import ScratchFolder

_BLOCKS = range(3, 9)
_LEAST_RUNS = 2
#: Of a block's share of the time that runs take.
_PLAIN_SHARE = 0.6
#: Fitted on carriers: see docs/measuring.md.
_EXPONENTS = ReferenceExponents(compute=0.8, bandwidth=0.05)
_MS = 1e3


@dataclass(frozen=True)
class WholeModel:
    """A whole model was measured.

    Attributes:
        measurement: of the model.
        waited: share of the time that this process's threads were ready and others had their processors.
        throttled: share of the time that a CPU quota of a control group stopped them.
        seconds: how long it took.
    """

    measurement: Measurement
    waited: float
    throttled: float
    seconds: float


def measure_subject(device: DeviceFile, subject: Subject | FileSubject, rows: Path, seconds: float) -> WholeModel:
    """Measure a file on a device: plain, unprofiled runs in blocks that lie apart in time, each between references.

    It is never ended by noise: what it finds is told with its noise. The cores of this process are put back.

    Args:
        device: the device.
        subject: the file.
        rows: folder of all rows, see `nominal_times`.
        seconds: about how long to take; a model that is run for longer than that takes three blocks of two runs.
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
