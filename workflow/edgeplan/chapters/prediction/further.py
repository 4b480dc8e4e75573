"""Measures nodes of one model on its device: those that weigh most in what is not known of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.devices.config import DeviceFile
from edgeplan.errors import DeviceError, StoreError
from edgeplan.graph.nodes import ExecutedModel, NodeConfig
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.kernel_labels import label_us
from edgeplan.measurement.records import CALLS, NodeSubject, call_us
from edgeplan.measurement.references import References, quiet_times
from edgeplan.measurement.settings import MeasurementSettings, ReferenceExponents, node_settings
from edgeplan.predictors.nodes.storing import own_folder, read_measured, write_measured
from edgeplan.predictors.source import Source
from edgeplan.support.files import read_json, state_folder, write_json
from edgeplan.support.machine import fingerprint

#: Nodes measured of one model, at most.
MOST = 25
#: For how long the references are timed alone before anything else.
_QUIET_S = 0.5
_REFERENCES_S, _REFERENCE_RUNS = 1.0, 4
SETTINGS = node_settings(
    MeasurementSettings(
        blocks=3,
        min_runs=2,
        max_runs=200,
        block_ms=6.0,
        reference_runs=2,
        batch_size=16,
        batch_weight_mb=1000,
        min_gap_seconds=0.0,
        max_noise=0.05,
        extra_blocks=0,
        max_noisy_share=1.0,
        retries=0,
        reference_exponents=ReferenceExponents(compute=0.8, bandwidth=0.05),
    )
)


def brought_here(device: DeviceFile, source: Source) -> Source:
    """Return predictors of another machine's CPU with its times scaled by a second of references on this one's.

    The scale is kept by machine. A board, a GPU, and an engine that is not here leave them as they are.
    """
    if source.here or source.nominal_us is None or device.board is not None:
        return source
    try:
        engine = device.load_engine()
    except DeviceError:
        return source
    if engine.reference_loads() is not None:
        return source
    try:
        kept = state_folder() / "references" / f"{fingerprint()}-{device.name}.json"
    except StoreError:  # a machine without an id, and nowhere to keep one
        return source
    if kept.is_file():
        times = read_json(kept, _Times, "times of the references")
    else:
        before = os.sched_getaffinity(0)
        try:
            device.pin()
            found = quiet_times(References(None), _REFERENCE_RUNS, _REFERENCES_S)
        finally:
            os.sched_setaffinity(0, before)
        times = _Times(compute_us=found.compute_us, bandwidth_us=found.bandwidth_us)
        with suppress(StoreError):  # nowhere to keep it: each prediction times them
            write_json(kept, times.model_dump())
    compute, bandwidth = source.nominal_us
    predictor = source.predictor
    now = SETTINGS.reference_exponents.scaled(times.compute_us / compute, times.bandwidth_us / bandwidth)
    scale = now / predictor.speed
    own = read_measured(own_folder(device.name, predictor.engine, predictor.engine_version))
    return replace(source, scale=scale, known={**source.known, **{key: us / scale for key, us in own.items()}})


class _Times(BaseModel):
    """Holds what the references take on a machine, us."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compute_us: float = Field(gt=0)
    bandwidth_us: float = Field(gt=0)


def measured_further(device: DeviceFile, source: Source, model: ExecutedModel, *, seconds: float, most: int = MOST) -> Source:
    """Measure nodes while the time lasts, and return the predictors with what is known then; it is kept for later."""
    predictor = source.predictor
    wanted = predictor.to_measure(model, source.known, seconds=seconds, most=most)
    if not wanted:
        return source
    found = measure_configs(device, wanted, model.context_bytes)
    folder = own_folder(device.name, predictor.engine, predictor.engine_version)
    write_measured(folder, {**read_measured(folder), **found})
    return replace(source, known={**source.known, **{key: us / source.scale for key, us in found.items()}})


def measure_configs(device: DeviceFile, configs: Sequence[NodeConfig], context_bytes: int) -> Mapping[str, float]:
    """Measure nodes of a model as the device runs now, us by key; those that the engine refuses are left out."""
    subjects = [NodeSubject(config, context_bytes) for config in configs]
    rows = state_folder() / "rows" / device.name / "measured"
    with Bench(device, SETTINGS, rows, quiet_seconds=_QUIET_S) as bench:
        calls = bench.measure(CALLS, description="the call")
        found = bench.measure_in_time(subjects, description="kernels of the model")
    call, measured = call_us(calls), [(one, m) for one, m in zip(subjects, found, strict=True) if m is not None]
    usual = float(np.median([m.slowness for m in (*calls, *(m for _, m in measured))]))  # times as the machine has them now
    labels = (label_us(one.config, m, call, one.copies) for one, m in measured)
    return {label[0].key: label[1] * usual for label in labels if label}
