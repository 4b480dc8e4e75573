"""Stage `unseen`: measure and predict architectures outside the zoo's families (see `edgeplan.zoo.unseen`).

Nothing learns from what this stage measures. Where the engine tells node times, they come from the same measurement: a profiled
subject is timed plain as well. How its counters relate to plain time is fitted on these architectures themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction.sampling.labels import fit_counters, node_labels
from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.chapters.prediction.whole_models import measure_shuffled, open_bench
from edgeplan.devices.config import load_device
from edgeplan.engines.registry import engine_class
from edgeplan.graph.cost import graph_macs, graph_parameters
from edgeplan.graph.fusion_rules import read_rules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import make_kernel
from edgeplan.graph.simplify import simplify
from edgeplan.graph.splitting import split
from edgeplan.measurement.records import Measurement, Subject
from edgeplan.predictors.kernel_tables import kernel_table
from edgeplan.predictors.predictions import ModelPrediction
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.reporting.metrics import accuracy, coverage
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_csv
from edgeplan.zoo.unseen import UNSEEN

#: Kernels are judged where both their time and what is predicted are at least so long: counters tell whole microseconds.
_JUDGED_US = 3.0


def evaluate_unseen(
    params: PredictionParams,
    *,
    device: Path,
    rules: Path,
    predictors: Path,
    rows: Path,
    models: Path,
    kernels: Path,
    metrics: Path,
) -> None:
    """Measure every architecture as evaluated models are, once, and hold the predictions against that.

    Args:
        params: seed, measurement, truth.
        device: file of the device.
        rules: its fusion rules.
        predictors: folder of its predictors.
        rows: folder of the stored rows.
        models: a row for each architecture: measured and predicted ms, the interval, the share of kernels with a predictor,
            how many kernels are warned about.
        kernels: a row for each predicted kernel: predicted us, its interval, the warning; measured us where a node of the
            engine is just that kernel.
        metrics: figures of merit, `unseen.*`.
    """
    file = load_device(device)
    found, graphs = read_rules(rules), [simplify(build(name)) for name, build in UNSEEN.items()]
    predictor = DevicePredictor.load(predictors)
    # Predictions come first: nothing measured can have a say in them.
    predicted = [predictor.predict(kernel_table(graph, split(graph, found)), allow_partial=True) for graph in graphs]
    profiled = engine_class(file.engine).reports_nodes
    with open_bench(params, file, rows) as bench:
        subjects = [Subject(graph, profiled=profiled) for graph in graphs]
        # no limit of time is set: none is left out
        measured = [m for m in measure_shuffled(bench, subjects, params.seed, 0, "unseen architectures") if m is not None]
    table = model_rows(graphs, measured, predicted)
    of_kernels = kernel_rows(graphs, measured, predicted)
    write_csv(table, models)
    write_csv(of_kernels, kernels)
    write_json(metrics, {**model_figures(table), **kernel_figures(of_kernels)})


def model_rows(graphs: Sequence[Graph], measured: Sequence[Measurement], predicted: Sequence[ModelPrediction]) -> pd.DataFrame:
    """Return one row an architecture, in the order given."""
    return pd.DataFrame(
        {
            "model": graph.name,
            "macs": graph_macs(graph),
            "parameters": graph_parameters(graph),
            "measured_ms": m.latency_us / 1e3,
            "noise": m.noise,
            "predicted_ms": p.latency_ms,
            "low_ms": p.low_ms,
            "high_ms": p.high_ms,
            "coverage": p.coverage,
            "warned_kernels": len(p.unfamiliar),
            "lacking": " ".join(sorted({_kind_of(graph, name) for name in p.missing})),
        }
        for graph, m, p in zip(graphs, measured, predicted, strict=True)
    )


def _kind_of(graph: Graph, node: str) -> str:
    return graph.by_name[node].op_type if node in graph.by_name else "conversion"


def kernel_rows(graphs: Sequence[Graph], measured: Sequence[Measurement], predicted: Sequence[ModelPrediction]) -> pd.DataFrame:
    """Return one row a predicted kernel; conversions of layouts are left out."""
    profiled = [m for m in measured if m.nodes]
    counters = fit_counters(profiled) if profiled else None
    rows = []
    for graph, m, p in zip(graphs, measured, predicted, strict=True):
        nodes: dict[tuple[str, str], float] = {}
        if counters is not None:
            for node, us in zip(m.nodes, node_labels(m, counters), strict=True):
                if node.members:
                    kernel = make_kernel(graph, node.members)
                    nodes[kernel.name, kernel.config.type] = float(us)
        warnings = dict(p.unfamiliar)
        rows += [
            {
                "model": graph.name,
                "kernel": k.name,
                "type": k.type,
                "implementation": k.implementation,
                "predicted_us": k.latency_us,
                "low_us": k.low_us,
                "high_us": k.high_us,
                "measured_us": nodes.get((k.name, k.type), np.nan),
                "warning": warnings.get(k.name, ""),
            }
            for k in p.kernels
            if k.name in graph.by_name
        ]
    return pd.DataFrame(rows)


def model_figures(models: pd.DataFrame) -> dict[str, float]:
    """Return figures of merit over the architectures with a predictor for every kernel; `unseen.complete` is their share."""
    whole = models[models["coverage"] == 1]
    figures = {"unseen.models": float(len(models)), "unseen.complete": len(whole) / len(models)}
    if len(whole):
        hit = accuracy(whole["measured_ms"], whole["predicted_ms"])
        figures |= {
            "unseen.within_10pct": hit.within_10pct,
            "unseen.interval_coverage_90": coverage(whole["measured_ms"], whole["low_ms"], whole["high_ms"]),
            "unseen.warned": float((whole["warned_kernels"] > 0).mean()),
        }
    return figures


def kernel_figures(kernels: pd.DataFrame) -> dict[str, float]:
    """Compute which share of gross misses is warned about; {} where there are none, or the engine tells no node times.

    A kernel is a gross miss where it lies outside its interval by more than half the width of that, in logarithms.
    """
    known = kernels[(kernels["measured_us"] >= _JUDGED_US) & (kernels["predicted_us"] >= _JUDGED_US)]
    low, high, at = (np.log(known[name].to_numpy(float)) for name in ("low_us", "high_us", "measured_us"))
    gross = np.maximum(low - at, at - high) > (high - low) / 2
    return {"unseen.gross_warned": float((known["warning"] != "")[gross].mean())} if gross.any() else {}
