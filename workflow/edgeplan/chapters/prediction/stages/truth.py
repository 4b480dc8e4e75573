"""Stage `truth`: measure whole models, plain and unprofiled, normalised by the references that normalise the labels."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from math import nan
from pathlib import Path

import pandas as pd

from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.chapters.prediction.whole_models import APART_SECONDS, graphs, measure_shuffled, open_bench, read_models
from edgeplan.devices.config import load_device
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Measurement, Subject
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_parquet
from edgeplan.support.machine import environment as machine_environment


def measure_models(params: PredictionParams, *, device: Path, models: Path, rows: Path, truth: Path, environment: Path) -> None:
    """Measure every evaluated variant, and each a second time where the repeatability ceiling is asked for.

    Of each model truth.parquet also says when its first block began (seconds since the epoch), how long after that the last of
    its blocks began, and how long after it its second measurement did (seconds).
    """
    file = load_device(device)
    table = read_models(models, bases=False, variants=True)
    subjects = [Subject(graph) for graph in graphs(table)]
    with open_bench(params, file, rows) as bench:
        bench.limit(params.truth.stage_seconds)
        found = measure_shuffled(bench, subjects, params.seed, 0, "whole models")
        table = table[[m is not None for m in found]]
        first = [m for m in found if m is not None]
        known = [s for s, m in zip(subjects, found, strict=True) if m is not None]
        if file.name in params.truth.repeat:
            again = measure_shuffled(bench, known, params.seed, 1, "whole models again")
        else:
            again = _graded(bench, known, first, params.truth.graded)
        captured = bench.identity["environment"] if "environment" in bench.identity else machine_environment()
        measured = time.strftime("%Y-%m-%d %H:%M", time.gmtime(bench.last_measured_at()))
        identity = {k: v for k, v in bench.identity.items() if k != "environment"}
    frame = pd.DataFrame(
        {
            "model_id": table["model_id"],
            "family": table["family"],
            "measured_ms": [m.latency_us / 1e3 for m in first],
            "median_ms": [float(pd.Series(m.median_us).median()) / 1e3 for m in first],
            "noise": [m.noise for m in first],
            "measured_at_s": [m.measured_at[0] for m in first],
            "blocks_span_s": [m.measured_at[-1] - m.measured_at[0] for m in first],
            "repeat_ms": [m.latency_us / 1e3 if m else nan for m in again],
            "repeat_gap_s": [b.measured_at[0] - a.measured_at[0] if b else nan for a, b in zip(first, again, strict=True)],
        }
    )
    write_parquet(frame, truth)
    # Fresh or read from the store, the same facts make the same file.
    told = {**dict(captured), **identity, "measured_at": f"{measured} UTC"}
    write_json(environment, json.loads(json.dumps(told, sort_keys=True)))


def _graded(bench: Bench, subjects: Sequence[Subject], first: Sequence[Measurement], count: int) -> list[Measurement | None]:
    """Measure models a second time, so that the machine can be graded: those measured first, minutes ago by now."""
    now = max((m.measured_at[-1] for m in first), default=0.0)
    by_age = sorted(range(len(first)), key=lambda i: first[i].measured_at[0])
    chosen = [i for i in by_age if now - first[i].measured_at[0] >= APART_SECONDS][:count]
    bench.limit(0.0)
    again = bench.measure_in_time([subjects[i] for i in chosen], 1, "whole models again, to grade the machine")
    found = dict(zip(chosen, again, strict=True))
    return [found.get(i) for i in range(len(first))]
