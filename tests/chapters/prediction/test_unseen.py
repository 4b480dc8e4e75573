"""Figures of merit of the held-out architectures, and the stage on a real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from edgeplan.chapters.prediction.sampling.labels import fit_counters, label_rows, plain_layouts
from edgeplan.predictors.training import train_predictor
from law_of_latency import SETTINGS as TRAINING
from quick_bench import DEVICE, SETTINGS, measuring_alone  # noqa: F401  a fixture
from shipped_params import PARAMS_FILE

from edgeplan.chapters.params import load_params
from edgeplan.chapters.prediction.stages import unseen
from edgeplan.graph.simplify import simplify
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Subject
from edgeplan.workspace import SHIPPED
from edgeplan.zoo.unseen import UNSEEN

ROOT = Path(__file__).parents[3]


def _models(**more: object) -> pd.DataFrame:
    values = {
        "measured_ms": [1.0, 1.0, 1.0, 1.0],
        "predicted_ms": [1.04, 1.08, 1.3, 9.0],
        "low_ms": [0.9, 1.05, 0.9, 8.0],
        "high_ms": [1.1, 1.2, 1.4, 10.0],
        "coverage": [1.0, 1.0, 1.0, 0.5],
        "warned_kernels": [0, 0, 3, 0],
    }
    return pd.DataFrame(values | more)


def test_figures_are_of_what_is_predicted_as_a_whole() -> None:
    assert unseen.model_figures(_models()) == pytest.approx(
        {
            "unseen.models": 4,
            "unseen.complete": 0.75,
            "unseen.within_10pct": 2 / 3,
            "unseen.interval_coverage_90": 2 / 3,
            "unseen.warned": 1 / 3,
        }
    )
    assert unseen.model_figures(_models(coverage=[0.5] * 4)) == {"unseen.models": 4, "unseen.complete": 0.0}


def test_gross_misses_are_counted_by_their_warnings() -> None:
    kernels = pd.DataFrame(
        {
            "predicted_us": [10.0, 10.0, 10.0, 10.0, 1.0, 10.0],
            "low_us": [5.0] * 6,
            "high_us": [20.0] * 6,  # half a width beyond it: 40
            "measured_us": [12.0, 30.0, 50.0, 2.4, 900.0, float("nan")],
            "warning": ["", "far", "far", "", "", "far"],
        }
    )
    assert unseen.kernel_figures(kernels) == {"unseen.gross_warned": 1.0}
    assert unseen.kernel_figures(kernels.assign(warning="")) == {"unseen.gross_warned": 0.0}
    assert unseen.kernel_figures(kernels.assign(measured_us=float("nan"))) == {}


def test_stage_measures_and_predicts_on_a_real_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: UNSEEN[name] for name in ("lenet5", "keyword_cnn", "all_cnn_c")}
    monkeypatch.setattr(unseen, "UNSEEN", few)
    graphs = [simplify(build(name)) for name, build in few.items()]
    with Bench(DEVICE, SETTINGS, tmp_path / "train") as bench:
        measured = bench.measure([Subject(graph, profiled=True) for graph in graphs])
    counters, plain = fit_counters(measured), plain_layouts(graphs, measured)
    table = pd.DataFrame([row for g, m in zip(graphs, measured, strict=True) for row in label_rows(g, m, counters, plain)])
    about = {"device": "dev", "engine": "onnxruntime", "engine_version": "1", "call_us": 1.0, "measured_at": "2026-01-01"}
    # Not held out here: only that the stage runs and writes is tested.
    predictor, _ = train_predictor(table.assign(sampler="adaptive"), TRAINING, **about, plain_layouts=plain)
    predictor.save(tmp_path / "predictors")
    rules = SHIPPED / "cpu-onnxruntime/rules.json"
    (tmp_path / "dev.yaml").write_text("format_version: 1\nname: dev\nengine: onnxruntime\n")
    params = load_params(PARAMS_FILE).model_copy(update={"measurement": SETTINGS})
    params = params.model_copy(update={"truth": params.truth.model_copy(update={"min_gap_seconds": 0.0})})
    unseen.evaluate_unseen(
        params,
        device=tmp_path / "dev.yaml",
        rules=rules,
        predictors=tmp_path / "predictors",
        rows=tmp_path / "rows",
        models=tmp_path / "models.csv",
        kernels=tmp_path / "kernels.csv",
        metrics=tmp_path / "unseen.json",
    )
    models, kernels = pd.read_csv(tmp_path / "models.csv"), pd.read_csv(tmp_path / "kernels.csv")
    assert list(models["model"]) == list(few)
    assert (models["measured_ms"] > 0).all()
    assert set(kernels["model"]) == set(few)
    convolutions = kernels[kernels["type"].str.startswith("conv")]
    assert convolutions["measured_us"].notna().mean() > 0.5
    assert json.loads((tmp_path / "unseen.json").read_text())["unseen.models"] == 3
