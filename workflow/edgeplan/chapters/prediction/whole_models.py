"""Reads the models of models.parquet, and measures whole models, plain and unprofiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pandas as pd

from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.devices.config import DeviceFile
from edgeplan.graph.ir import Graph
from edgeplan.graph.simplify import simplify
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import AnySubject, Measurement
from edgeplan.support.frames import read_parquet
from edgeplan.zoo import FAMILIES, VariantSpec, build_variant

#: Seconds: repeats closer than this meet the same moment of the machine and say nothing of the next one.
APART_SECONDS = 120.0


def read_models(path: Path, *, bases: bool, variants: bool) -> pd.DataFrame:
    """Read rows of models.parquet: base models (index -1), evaluated variants, or both."""
    table = read_parquet(path, "model_id", "family", "index", "spec", "macs", "memory_bytes")
    return table[((table["index"] < 0) & bases) | ((table["index"] >= 0) & variants)].reset_index(drop=True)


def graphs(table: pd.DataFrame) -> Iterator[Graph]:
    """Yield the graphs of the rows, one at a time, as frameworks see them (see `simplify`)."""
    for family, spec in zip(table["family"], table["spec"], strict=True):
        yield simplify(build_variant(VariantSpec.from_json(spec)) if spec else FAMILIES[family].base())


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
