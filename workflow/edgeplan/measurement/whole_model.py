"""Measures one model file on this machine now, as whole models of the pipeline are: `edgeplan measure`."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path

from edgeplan.devices.config import DeviceFile
from edgeplan.engines.base import Engine
from edgeplan.errors import EdgeplanError, ModelError
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.names import named_file
from edgeplan.measurement.blocks import measure_batch
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.nominal import nominal_times
from edgeplan.measurement.preemption import waited_ms
from edgeplan.measurement.records import Measurement, Subject
from edgeplan.measurement.references import References
from edgeplan.measurement.settings import MeasurementSettings, ReferenceExponents
from edgeplan.support.cpus import throttled_ms
from edgeplan.support.scratch import ScratchFolder

_BLOCKS = range(3, 9)
#: Of a block's share of the time: plain runs take it, and counting runs as much again.
_PLAIN_SHARE = 0.3
#: Fitted on carriers: see docs/measuring.md.
_EXPONENTS = ReferenceExponents(compute=0.8, bandwidth=0.05)
_MS = 1e3


@dataclass(frozen=True)
class WholeModel:
    """A whole model was measured by plain times, and by node times where the engine has them.

    Attributes:
        measurement: plain times, and node times where the engine has them.
        without_nodes: why there are no node times, "" where there are.
        waited: share of the time that this process's threads were ready and others had their processors.
        throttled: share of the time that a CPU quota of a control group stopped them.
        seconds: how long it took.
    """

    measurement: Measurement
    without_nodes: str
    waited: float
    throttled: float
    seconds: float


def measure_file(device: DeviceFile, model: Path, graph: Graph, rows: Path, seconds: float) -> WholeModel:
    """Measure a model on a device: plain, unprofiled runs in blocks that lie apart in time, each between references.

    It is never ended by noise: what it finds is told with its noise. The cores of this process are put back.

    Args:
        device: the device.
        model: the ONNX file.
        graph: of it, simplified.
        rows: folder of all rows, see `nominal_times`.
        seconds: about how long to take; a model that is run for longer than that takes three blocks of two runs.
    """
    began, before = time.monotonic(), os.sched_getaffinity(0)
    with machine_lock(), ScratchFolder("measure") as folder:
        try:
            device.pin()
            engine = device.load_engine()
            file = named_file(model, Path(folder))
            once = _time_of_one_run(engine, file, graph)
            without_nodes = _without_nodes(engine, file, graph)
            settings = _settings(seconds, once, counted=not without_nodes)
            references = References(engine.reference_loads())
            nominal = nominal_times(device.name, rows, references, settings.reference_runs)
            subject = Subject(graph, profiled=not without_nodes, file=file)
            ran, waited, throttled = time.process_time(), waited_ms(), throttled_ms()
            (found,) = measure_batch(engine, [subject], settings, references, nominal)
            ran, waited = time.process_time() - ran, max(0.0, waited_ms() - waited) / 1e3
            throttled = min((throttled_ms() - throttled) / 1e3, waited)  # a thread that is stopped counts as one that waits
        finally:
            os.sched_setaffinity(0, before)
    shares = ((waited - throttled) / (ran + waited), throttled / (ran + waited))
    found = replace(found, usual=True)  # a user's run is no best moment
    return WholeModel(found, without_nodes, *shares, time.monotonic() - began)


def _time_of_one_run(engine: Engine, file: Path, graph: Graph) -> float:
    """Measure the seconds of a run, the second one."""
    try:
        with engine.load(file, graph) as session:
            session.run()
            start = time.perf_counter()
            session.run()
            return time.perf_counter() - start
    except EdgeplanError:
        raise
    except Exception as error:  # engines raise what they like
        raise ModelError(
            f"{engine.name} cannot run the model: {_first_line(error)}",
            where=str(file),
            next_step="check it with another engine: edgeplan device init NAME --engine E, then --device NAME",
        ) from error


def _without_nodes(engine: Engine, file: Path, graph: Graph) -> str:
    """Return why an engine cannot be asked about its nodes, or "": without them the model is measured as a whole."""
    if not engine.reports_nodes:
        return f"{engine.name} does not report its nodes"
    try:
        engine.executed(file, graph)
    except Exception as error:  # noqa: BLE001  whatever is odd about nodes, the model as a whole can be measured
        return f"the nodes of {engine.name} cannot be told apart: {type(error).__name__}: {_first_line(error)}"
    return ""


def _settings(seconds: float, once: float, *, counted: bool) -> MeasurementSettings:
    """Return settings with blocks that share the time, fewer of them for a model whose runs are long."""
    runs = 2 + 2 * _LEAST_RUNS if counted else 1 + _LEAST_RUNS
    blocks = min(_BLOCKS[-1], max(_BLOCKS[0], int(seconds / (runs * once))))
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


_LEAST_RUNS = 2


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
