"""Stage `calibration`: measure whole models of a seed of their own, on which predictions and intervals are calibrated."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pandas as pd

from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.chapters.prediction.whole_models import graphs, measure_shuffled, open_bench
from edgeplan.devices.config import load_device
from edgeplan.engines.registry import engine_class
from edgeplan.measurement.records import AnySubject, FileSubject, Subject
from edgeplan.support.frames import write_parquet
from edgeplan.workloads.exports import export_models
from edgeplan.zoo import FAMILIES, variants

#: Version of what `export_models` draws for a seed.
EXPORTS = "exports-1"


def calibrating_models(params: PredictionParams) -> pd.DataFrame:
    """Draw as many variants of each family as asked for, none of which is evaluated: model_id, family, spec (JSON)."""
    rows, wanted = [], params.calibration.variants_per_family
    for family in FAMILIES.values():
        evaluated = {s.choices for s in variants(family, params.zoo.variants_per_family, params.zoo.seed)}
        # So many hold enough that are not evaluated, even if all that are were among them.
        drawn = variants(family, wanted + len(evaluated), params.calibration.seed)
        rows += [
            {"model_id": f"{family.id}-calibrating-{spec.index:05d}", "family": family.id, "spec": spec.to_json()}
            for spec in islice((spec for spec in drawn if spec.choices not in evaluated), wanted)
        ]
    return pd.DataFrame(rows)


def measure_calibration(params: PredictionParams, *, device: Path, rows: Path, models: Path) -> None:
    """Measure the calibrating models as the evaluated ones are, once; those that exporters write where files are measured."""
    file = load_device(device)
    table = calibrating_models(params)
    subjects: list[AnySubject] = [Subject(graph) for graph in graphs(table)]
    if file.board is None and engine_class(file.engine).reads_files:
        count = min(params.sampling.exports_per_family, params.calibration.variants_per_family)
        exported = list(export_models(params.seed, count))
        subjects += [FileSubject(f"{EXPORTS}/{params.seed}/{one.name}", one.write) for one in exported]
        table = pd.concat([table, pd.DataFrame({"model_id": one.name, "family": one.family, "spec": ""} for one in exported)])
    with open_bench(params, file, rows) as bench:
        bench.limit(params.calibration.stage_seconds)
        found = measure_shuffled(bench, subjects, params.seed, 0, "models for the intervals")
    measured = [m for m in found if m is not None]
    write_parquet(
        table[[m is not None for m in found]].assign(
            measured_ms=[m.latency_us / 1e3 for m in measured],
            slowness=[m.slowness for m in measured],
            noise=[m.noise for m in measured],
            seconds=[round(m.seconds, 3) for m in measured],
            measured_at_s=[m.measured_at[0] for m in measured],
        ),
        models,
    )
