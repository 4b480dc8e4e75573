"""Stage `truth`: whole models, plain and unprofiled, normalised by the references that normalise the labels."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pandas as pd

from edgeplan.devices.config import load_device
from edgeplan.devices.machine import environment as machine_environment
from edgeplan.files import write_json
from edgeplan.frames import write_parquet
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Measurement, Subject
from edgeplan.params import Params
from edgeplan.pipeline.models import graphs, read_models


def _measure_shuffled(bench: Bench, subjects: Sequence[Subject], seed: int, repeat: int, description: str) -> list[Measurement]:
    """Measurements in the order of the subjects, made in a seeded order of its own.

    A batch is gone through block by block. Family by family, one of small models would be through within seconds, and the
    blocks of a model would meet the same moment of the machine; large models among them keep its blocks apart.
    """
    order = list(range(len(subjects)))
    Random(f"{seed}/truth").shuffle(order)  # noqa: S311  not cryptography
    measured = bench.measure([subjects[i] for i in order], repeat=repeat, description=description)
    return [m for _, m in sorted(zip(order, measured, strict=True), key=lambda pair: pair[0])]


def measure_models(params: Params, *, device: Path, models: Path, rows: Path, truth: Path, environment: Path) -> None:
    """Measure every evaluated variant, and each a second time where the repeatability ceiling is asked for.

    Of each model truth.parquet also says when its first block began (seconds since the epoch), how long after that the last of
    its blocks began, and how long after it its second measurement did (seconds).
    """
    file = load_device(device)
    table = read_models(models, bases=False, variants=True)
    subjects = [Subject(graph) for graph in graphs(table)]
    settings = params.measurement.model_copy(update={"min_gap_seconds": params.truth.min_gap_seconds})
    with Bench(file, settings, rows) as bench:
        first = _measure_shuffled(bench, subjects, params.seed, 0, "whole models")
        repeated = file.name in params.truth.repeat
        again = _measure_shuffled(bench, subjects, params.seed, 1, "whole models again") if repeated else None
        captured = bench.store.identity["environment"] if "environment" in bench.store.identity else machine_environment()
        measured = time.strftime("%Y-%m-%d %H:%M", time.gmtime(bench.last_measured_at()))
        identity = {k: v for k, v in bench.store.identity.items() if k != "environment"}
    frame = pd.DataFrame(
        {
            "model_id": table["model_id"],
            "family": table["family"],
            "measured_ms": [m.latency_us / 1e3 for m in first],
            "median_ms": [float(pd.Series(m.median_us).median()) / 1e3 for m in first],
            "noise": [m.noise for m in first],
            "measured_at_s": [m.measured_at[0] for m in first],
            "blocks_span_s": [m.measured_at[-1] - m.measured_at[0] for m in first],
            "repeat_ms": [m.latency_us / 1e3 for m in again] if again else float("nan"),
            "repeat_gap_s": [b.measured_at[0] - a.measured_at[0] for a, b in zip(first, again, strict=True)]
            if again
            else float("nan"),
        }
    )
    write_parquet(frame, truth)
    # Fresh or read from the store, the same facts make the same file.
    told = {**dict(captured), **identity, "measured_at": f"{measured} UTC"}
    write_json(environment, json.loads(json.dumps(told, sort_keys=True)))
