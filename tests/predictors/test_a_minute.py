"""A minute of measuring on another processor makes a shipped device's predictors useful, as the command says of itself.

The rows are a draw of 60 seconds on an AMD EPYC (26/2): 83 carriers and 13 small whole models; every fourth variant judges.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from edgeplan.predictors.adapting import NewDevice, adapt, from_scratch
from edgeplan.predictors.distilled import load_distilled
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels, kernel_table

from edgeplan.chapters.prediction.adapting import Adapted, judged
from edgeplan.graph.fusion_rules import read_rules
from edgeplan.graph.simplify import simplify
from edgeplan.graph.splitting import split
from edgeplan.support.frames import read_parquet
from edgeplan.workspace import RULES, SHIPPED
from edgeplan.zoo import VariantSpec, build_variant

KEPT = Path(__file__).parent / "a_minute_on_zen5"
OLD = SHIPPED / "cpu-onednn"


def kernels_of(models: pd.DataFrame) -> list[ModelKernels]:
    rules = read_rules(OLD / RULES)
    graphs = [simplify(build_variant(VariantSpec.from_json(spec))) for spec in models["spec"]]
    return [kernel_table(graph, split(graph, rules)) for graph in graphs]


@pytest.mark.long
def test_after_a_minute_five_models_of_six_are_within_10_percent() -> None:
    models, kernels = read_parquet(KEPT / "models.parquet"), read_parquet(KEPT / "kernels.parquet")
    old = load_distilled(OLD)
    measured, variants = (models[models["use"] == use] for use in ("calibrating", "variant"))
    ms = measured["measured_ms"].to_numpy(float)
    new = NewDevice("new", "onednn", "3.2.0", "2026-11-24", 3.15, {"4": "nchw"}, kernels, kernels_of(measured), ms)
    judging, truth = KernelTables.of(kernels_of(variants)), variants["measured_ms"].to_numpy(float)

    def within(latency_ms: np.ndarray) -> float:
        return float((np.abs(latency_ms / truth - 1) <= 0.1).mean())

    predictor = adapt(new, [old], from_scratch(new), 7)
    found = predictor.predict_many(judging)
    assert within(old.predict_many(judging).latency_ms) < 0.1
    assert within(found.latency_ms) >= 0.83
    inside = float(((found.low_ms <= truth) & (truth <= found.high_ms)).mean())
    assert 0.86 <= inside <= 0.97
    spread, half_width = judged(predictor, new)
    told = Adapted("new", ("cpu-onednn",), KEPT, 60.0, 83, len(kernels), len(ms), spread, (1.0, 1.0), half_width)
    assert told.expected_within_10pct == pytest.approx(within(found.latency_ms), abs=0.15)
