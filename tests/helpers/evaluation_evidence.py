"""A small, seeded set of every input of the evaluation, for the tests of tables, figures and report."""

import json

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction.evaluation.tables import Evidence
from edgeplan.chapters.prediction.fusion.detection import COLUMNS
from edgeplan.chapters.prediction.paper import printed
from edgeplan.chapters.prediction.stages.fusion import VERIFIED

KINDS = ("convolution", "depthwise", "product", "pool", "elementwise")
CONV = "convolution/Conv"
_EACH = 6  # models of a family


def _models(rng: np.random.Generator) -> pd.DataFrame:
    frames = []
    for family, flops_m in printed("table_02", "family")["paper: FLOPs (M)"].items():
        macs = flops_m * 1e6 * rng.uniform(0.5, 1.5, _EACH)
        measured = macs * 2e-8 * rng.uniform(0.8, 1.2) + 0.5
        predicted = measured * rng.normal(1.0, 0.05, _EACH)
        frames.append(
            pd.DataFrame(
                {
                    "model_id": [f"{family}-{i:04d}" for i in range(_EACH)],
                    "family": family,
                    "macs": macs,
                    "memory_bytes": macs * rng.uniform(0.05, 0.5),
                    "kernels": 20,
                    "measured_ms": measured,
                    "normalised_ms": 1.02 * measured,
                    "noise": 0.01,
                    "measured_at_s": 1.7e9 + 10.0 * np.arange(_EACH),
                    "blocks_span_s": 20.0 + np.arange(_EACH),
                    "repeat_ms": measured * rng.normal(1.0, 0.01, _EACH),
                    "repeat_gap_s": 600.0,
                    "predicted_ms": predicted,
                    "low_ms": predicted * 0.9,
                    "high_ms": predicted * 1.1,
                    "plain_sum_ms": measured * 0.97,
                    "left_out_ms": measured * np.where(np.arange(_EACH) == 0, 1.2, 1.07),
                    "operator_sum_ms": measured * rng.uniform(1.2, 1.6, _EACH),
                    "forest_ms": measured * rng.normal(1.0, 0.1, _EACH),
                    "adaptive_sampling_ms": measured * rng.normal(1.0, 0.06, _EACH),
                    "random_sampling_ms": measured * rng.normal(1.3, 0.2, _EACH),
                    "guessed_share": 0.0,
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def _sweeps() -> pd.DataFrame:
    swept = {"kernel_size": (1, 3, 5, 7, 9), "input_size": range(8, 225, 24), "out_channels": range(16, 129, 2)}
    rows = [(sweep, x, "conv", 10.0 + 4.0 * (-(-x // 8))) for sweep, xs in swept.items() for x in xs]
    frame = pd.DataFrame(rows, columns=["sweep", "x", "kind", "measured_us"])
    return frame.assign(predicted_us=frame["measured_us"] * 1.03)


def full_evidence() -> Evidence:
    rng = np.random.default_rng(11)
    models = _models(rng)
    shares = rng.dirichlet(np.array([20.0, 6.0, 2.0, 1.0, 1.0]), len(models))
    breakdown = pd.DataFrame(
        {
            "model_id": np.repeat(models["model_id"].to_numpy(), len(KINDS)),
            "kind": list(KINDS) * len(models),
            "predicted_ms": (shares * models[["predicted_ms"]].to_numpy()).ravel(),
        }
    )
    zoo = models[["model_id", "family", "macs", "memory_bytes"]].assign(index=list(range(_EACH)) * len(printed("table_02")))
    configs = [
        json.dumps({"kind": "conv", "type": "conv++bn", "in_channels": c, "in_height": 8, "out_channels": 2 * c})
        for c in (4, 8)
    ]
    measured_us = rng.uniform(10, 1000, 60)
    about = {"engine": "onnxruntime", "engine_version": "1.2", "threads": 1}
    fused = {"conv": (10.0, 20.0), "conv++bn++relu": (10.1, 20.6)}
    return Evidence(
        device="cpu-test",
        zoo=zoo,
        prior=pd.DataFrame({"kind": ["conv", "conv", "fc"], "config": [*configs, "{}"], "count": [3, 2, 1]}),
        test_cases=pd.DataFrame(
            [
                ("maxpool_relu", "small", 20.0, 5.0, 24.5, 0.1, 0.2, "undecided", 6, "unclear after 6 measurements"),
                ("maxpool_relu", np.nan, 40.0, 10.0, 49.0, 0.1, 0.01, "separate", 1, np.nan),
                ("conv_relu", "16", 50.0, 5.0, 51.0, 0.8, 0.01, "fused", 1, np.nan),
                ("lrn_relu", "16 small", 50.0, 5.0, 52.5, 0.5, 0.3, "undecided", 1, "noise"),
            ],
            columns=[name for name in COLUMNS if name != "connection"],
        ).assign(connection="single"),
        verification=pd.DataFrame(
            [
                ("conv_relu", "single", 100, 90, 80, 80, 1.0, 80 / 90, False, False),
                ("conv_add", "multi-inbound", 10, 10, 20, 10, 0.5, 1.0, False, False),
                ("fc_relu", "single", 5, 0, 0, 0, np.nan, np.nan, False, False),
                ("conv_bn", "single", 50, 50, 50, 50, 1.0, 1.0, True, False),
                ("reshape_fc", "single", 4, 4, 0, 0, np.nan, 0.0, False, True),
            ],
            columns=list(VERIFIED),
        ),
        resnet18_kernels=("conv++bn++relu",) * 9 + ("conv++bn++add++relu",) * 8 + ("conv++bn",) * 3 + ("maxpool", "gap", "fc"),
        kernels=pd.DataFrame(
            {
                "key": [CONV, CONV, "product/MatMul-weights", CONV, CONV],
                "config": "{}",
                "sampler": ["adaptive", "operators", "adaptive", "frozen", "random"],
                "model": ["a", "a", "b", "c", "d"],
                "latency_us": [10.0, 11.0, 5.0, 30.0, 9.0],
                "seconds": 0.05,
            }
        ),
        sampling={"seconds": {"adaptive": 300.0, "operators": 30.0, "random": 300.0, "frozen": 60.0}},
        quality=pd.DataFrame(
            {
                "split": ["cross-validation"] * 30 + ["frozen"] * 30,
                "kernel": ["conv", "fc"] * 30,
                "key": [CONV, "product/MatMul-weights"] * 30,
                "model": [f"m{i // 2}" for i in range(60)],
                "measured_us": measured_us,
                "predicted_us": measured_us * rng.normal(1, 0.05, 60),
                "forest_us": [*[np.nan] * 30, *measured_us[30:] * rng.normal(1, 0.1, 30)],
            }
        ),
        samplers=pd.DataFrame(
            {
                "sampler": ["adaptive", "random"],
                "rows": [900, 910],
                "seconds": 300.0,
                "labels": 60,
                "rmse_ms": [0.5, 2.0],
                "rmspe": [8.0, 40.0],
                "within_10pct": [0.85, 0.2],
                "rmspe_more_low": [np.nan, 20.0],
                "rmspe_more_high": [np.nan, 50.0],
            }
        ),
        models=models,
        calibration=models.iloc[::_EACH][["model_id", "family", "measured_ms", "noise", "measured_at_s"]].assign(seconds=10.0),
        breakdown=breakdown,
        sweeps=_sweeps(),
        conv_fusion=pd.DataFrame(
            [(f"{n} channels", kind, us) for kind, all_us in fused.items() for n, us in zip((4, 8), all_us, strict=True)],
            columns=["config", "type", "latency_us"],
        ),
        environment={**about, "machine": {"cpu": "Example CPU", "cores": 2, "isa": ["avx2"], "memory_gib": 8}},
        transfer=models[["family", "measured_ms"]].assign(
            transferred_ms=models["measured_ms"] * 1.2, rebuilt_ms=models["predicted_ms"]
        ),
        speed={"predict_process_s": 0.9, "predict_call_ms": 12.0, "batch_26000_s": 4.0},
    )
