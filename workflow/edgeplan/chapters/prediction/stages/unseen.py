"""Stage `unseen`: measure and predict architectures outside the zoo's families (see `edgeplan.zoo.unseen`).

Nothing learns from what this stage measures.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.chapters.prediction.whole_models import measure_shuffled, open_bench
from edgeplan.devices.config import load_device
from edgeplan.graph.fusion_rules import read_rules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kinds import graph_macs, graph_parameters
from edgeplan.graph.simplify import simplify
from edgeplan.measurement.records import Measurement, Subject
from edgeplan.predictors.nodes.predictor import NodePrediction
from edgeplan.predictors.nodes.storing import load_predictor, read_measured
from edgeplan.predictors.teller import Teller
from edgeplan.reporting.metrics import accuracy, coverage
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_csv
from edgeplan.zoo.unseen import UNSEEN


def evaluate_unseen(
    params: PredictionParams, *, device: Path, rules: Path, predictors: Path, rows: Path, models: Path, metrics: Path
) -> None:
    """Measure every architecture as evaluated models are, once, and hold the predictions against that, a row for each."""
    file, predictor, known = load_device(device), load_predictor(predictors), read_measured(predictors)
    graphs = [simplify(build(name)) for name, build in UNSEEN.items()]
    teller = Teller(file, read_rules(rules))
    # Predictions come first: nothing measured can have a say in them.
    predicted = [predictor.predict(teller.of_graph(graph), known) for graph in graphs]
    with open_bench(params, file, rows) as bench:
        # no limit of time is set: none is left out
        found = measure_shuffled(bench, [Subject(graph) for graph in graphs], params.seed, 0, "unseen architectures")
    table = model_rows(graphs, [m for m in found if m is not None], predicted)
    write_csv(table, models)
    write_json(metrics, model_figures(table))


def model_rows(graphs: Sequence[Graph], measured: Sequence[Measurement], predicted: Sequence[NodePrediction]) -> pd.DataFrame:
    """Return one row an architecture, in the order given."""
    return pd.DataFrame(
        {
            "model": graph.name,
            "macs": graph_macs(graph),
            "parameters": graph_parameters(graph),
            "measured_ms": float(np.median(m.median_us)) / 1e3,
            "noise": m.noise,
            "predicted_ms": p.latency_us / 1e3,
            "low_ms": p.interval_us[0] / 1e3 if p.interval_us else np.nan,
            "high_ms": p.interval_us[1] / 1e3 if p.interval_us else np.nan,
            "guessed_share": p.share("guessed"),
        }
        for graph, m, p in zip(graphs, measured, predicted, strict=True)
    )


def model_figures(models: pd.DataFrame) -> dict[str, float]:
    """Return figures of merit over the architectures, those of intervals over the ones that have some."""
    known, hit = models.dropna(subset=["low_ms"]), accuracy(models["measured_ms"], models["predicted_ms"])
    figures = {"unseen.models": float(len(models)), "unseen.within_10pct": hit.within_10pct}
    if len(known):
        figures["unseen.interval_coverage_90"] = coverage(known["measured_ms"], known["low_ms"], known["high_ms"])
    return figures
