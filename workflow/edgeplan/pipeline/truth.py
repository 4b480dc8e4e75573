"""Stage `truth`: whole models, plain and unprofiled, normalised by the references that normalise the labels."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pandas as pd

from edgeplan.devices.config import load_device
from edgeplan.devices.machine import environment as machine_environment
from edgeplan.files import write_json
from edgeplan.frames import write_parquet
from edgeplan.measurement.records import Subject
from edgeplan.params import Params
from edgeplan.pipeline.models import graphs, read_models
from edgeplan.pipeline.whole_models import measure_shuffled, open_bench


def measure_models(params: Params, *, device: Path, models: Path, rows: Path, truth: Path, environment: Path) -> None:
    """Measure every evaluated variant, and each a second time where the repeatability ceiling is asked for.

    Of each model truth.parquet also says when its first block began (seconds since the epoch), how long after that the last of
    its blocks began, and how long after it its second measurement did (seconds).
    """
    file = load_device(device)
    table = read_models(models, bases=False, variants=True)
    subjects = [Subject(graph) for graph in graphs(table)]
    with open_bench(params, file, rows) as bench:
        first = measure_shuffled(bench, subjects, params.seed, 0, "whole models")
        repeated = file.name in params.truth.repeat
        again = measure_shuffled(bench, subjects, params.seed, 1, "whole models again") if repeated else None
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
