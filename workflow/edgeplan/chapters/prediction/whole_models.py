"""Measures whole models, plain and unprofiled: those that are evaluated and those that calibrate the intervals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.devices.config import DeviceFile
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import AnySubject, Measurement

#: Seconds: repeats closer than this meet the same moment of the machine and say nothing of the next one.
APART_SECONDS = 120.0


def open_bench(params: PredictionParams, device: DeviceFile, rows: Path) -> Bench:
    """Open a bench whose blocks of one model lie at least `truth.min_gap_seconds` apart."""
    settings = params.measurement.model_copy(update={"min_gap_seconds": params.truth.min_gap_seconds})
    return Bench(device, settings, rows)


def measure_shuffled(
    bench: Bench, subjects: Sequence[AnySubject], seed: int, repeat: int, description: str
) -> list[Measurement | None]:
    """Measure subjects in a seeded order; return measurements in the subjects' own order, None where time did not suffice.

    A batch is gone through block by block. Family by family, one of small models would be through within seconds, and the
    blocks of a model would meet the same moment of the machine; large models among them keep its blocks apart.
    """
    order = list(range(len(subjects)))
    Random(f"{seed}/truth").shuffle(order)  # noqa: S311  not cryptography
    measured = bench.measure_in_time([subjects[i] for i in order], repeat, description)
    return [m for _, m in sorted(zip(order, measured, strict=True), key=lambda pair: pair[0])]
