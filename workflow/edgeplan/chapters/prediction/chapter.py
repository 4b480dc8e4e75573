"""Declares the chapter on prediction: what it measures, learns and shows."""

from __future__ import annotations

from typing import Any

from edgeplan.chapters.base import DEVICES, Chapter, Compared, Stage, Targets
from edgeplan.chapters.prediction.settings import PredictionParams

_STAGES = "edgeplan.chapters.prediction.stages"
_DEVICE = "config/devices/{device}.yaml"
_MODELS, _PRIOR = "data/zoo/models.parquet", "data/zoo/prior.parquet"
_RESULTS, _ROWS = "results/{device}", "data/rows/{device}"
_RULES = f"{_RESULTS}/fusion/rules.json"
_NODES = f"{_RESULTS}/nodes/models.parquet"
_CALIBRATION = f"{_RESULTS}/calibration/models.parquet"
_EVALUATION, _MEASUREMENTS = f"{_RESULTS}/evaluation", f"{_RESULTS}/measurements"
_PREDICTORS = f"{_RESULTS}/predictors"
_CHAPTERS = "results/chapters/{device}"
_PRINTED = "workflow/edgeplan/chapters/prediction/printed"  # the paper's tables
_UNSEEN = Targets("unseen.devices")
_TRANSFER = Targets("transfer", ("source", "target"))


def _stage(name: str, function: str, targets: Targets = DEVICES, **declared: Any) -> Stage:
    return Stage(name, f"{_STAGES}.{name}:{function}", targets=targets, all_cores=True, **declared)


ZOO = Stage(
    name="zoo",
    function=f"{_STAGES}.zoo:build_zoo",
    params=("zoo",),
    outputs={"models": _MODELS, "prior": _PRIOR, "costs": "data/zoo/costs.csv"},
    reads=(_PRINTED,),
    cached=(_MODELS, _PRIOR),
)
FUSION = _stage(
    "fusion",
    "detect_fusion",
    params=("seed", "measurement", "fusion"),
    inputs={"device": _DEVICE, "models": _MODELS},
    outputs={
        "rules": _RULES,
        "test_cases": f"{_RESULTS}/fusion/test_cases.csv",
        "skipped": f"{_RESULTS}/fusion/skipped_pairs.csv",
        "verification": f"{_RESULTS}/fusion/verification.csv",
    },
    reads=("workflow/edgeplan/shipped",),  # the rules of the prior, where params name one
    writes=(f"{_RESULTS}/fusion",),
    rows=f"{_ROWS}/fusion",
)
NODES = _stage(
    "nodes",
    "tell_nodes",
    params=("seed", "zoo", "sampling", "calibration"),
    inputs={"device": _DEVICE, "models": _MODELS, "rules": _RULES},
    outputs={"nodes": _NODES},
    cached=(_NODES,),
)
SAMPLING = _stage(
    "sampling",
    "sample_kernels",
    params=("seed", "measurement", "sampling"),
    inputs={"device": _DEVICE, "nodes": _NODES},
    outputs={"kernels": f"{_MEASUREMENTS}/kernels.parquet", "summary": f"{_MEASUREMENTS}/sampling.json"},
    writes=(_MEASUREMENTS,),
    rows=f"{_ROWS}/sampling",
)
CALIBRATION = _stage(
    "calibration",
    "measure_calibration",
    params=("seed", "zoo", "measurement", "sampling", "truth", "calibration"),
    inputs={"device": _DEVICE},
    outputs={"models": _CALIBRATION},
    rows=f"{_ROWS}/calibration",
)
TRAINING = _stage(
    "training",
    "train_predictors",
    params=("seed", "training"),
    inputs={"device": _DEVICE, "nodes": _NODES, **SAMPLING.outputs, "calibration": _CALIBRATION},
    outputs={
        "card": f"{_PREDICTORS}/card.json",
        "quality": f"{_PREDICTORS}/quality.parquet",
        "samplers": f"{_PREDICTORS}/samplers.csv",
        "compared": f"{_PREDICTORS}/compared.parquet",
    },
    paths={"predictors": _PREDICTORS},
    reads=(_MEASUREMENTS,),
    writes=(_PREDICTORS,),
    cached=(_PREDICTORS,),
)
TRUTH = _stage(
    "truth",
    "measure_models",
    params=("seed", "measurement", "truth"),
    inputs={"device": _DEVICE, "models": _MODELS},
    outputs={"truth": f"{_EVALUATION}/truth.parquet", "environment": f"{_EVALUATION}/environment.json"},
    rows=f"{_ROWS}/truth",
)
EVALUATION = _stage(
    "evaluation",
    "evaluate",
    params=("seed", "evaluation"),
    inputs={
        "models": _MODELS,
        "prior": _PRIOR,
        "calibration": _CALIBRATION,
        **TRUTH.outputs,
        "nodes": _NODES,
        "rules": _RULES,
        "test_cases": FUSION.outputs["test_cases"],
        "verification": FUSION.outputs["verification"],
        **SAMPLING.outputs,
        **TRAINING.outputs,
    },
    outputs={
        "metrics": f"{_CHAPTERS}/prediction.json",
        "chapter": f"{_CHAPTERS}/prediction.page.json",
        "models": f"{_EVALUATION}/models.parquet",
        "breakdown": f"{_EVALUATION}/breakdown.parquet",
        "sweeps": f"{_EVALUATION}/sweeps.parquet",
        "conv_fusion": f"{_EVALUATION}/conv_fusion.csv",
    },
    paths={"results": _RESULTS, "zoo": "data/zoo"},
    reads=(f"{_RESULTS}/fusion", _MEASUREMENTS, _PREDICTORS, _PRINTED),
    writes=(f"{_EVALUATION}/speed.json", f"{_RESULTS}/tables"),
    plots=(f"{_RESULTS}/figures",),
    metrics=(f"{_CHAPTERS}/prediction.json",),
    shown=(f"{_RESULTS}/tables", f"{_RESULTS}/figures"),
)
UNSEEN = _stage(
    "unseen",
    "evaluate_unseen",
    _UNSEEN,
    params=("seed", "measurement", "truth", "unseen"),
    inputs={"device": _DEVICE, "rules": _RULES, "card": TRAINING.outputs["card"]},
    outputs={"metrics": f"{_CHAPTERS}/unseen.json", "models": f"{_RESULTS}/unseen/models.csv"},
    paths={"predictors": _PREDICTORS},
    reads=(_PREDICTORS,),
    writes=(f"{_RESULTS}/unseen",),
    metrics=(f"{_CHAPTERS}/unseen.json",),
    rows=f"{_ROWS}/unseen",
)
TRANSFER = Stage(
    name="transfer",
    function=f"{_STAGES}.transfer:transfer",
    targets=_TRANSFER,
    params=("transfer",),
    inputs={
        f"{of}_{what}": f"results/{{{of}}}/evaluation/{file}"
        for what, file in (("models", "models.parquet"), ("environment", "environment.json"))
        for of in ("source", "target")
    },
    outputs={"csv": "results/transfer/table_11.csv", "chapter": "results/chapters/transfer/transfer.page.json"},
    paths={"source": "results/{source}/evaluation", "target": "results/{target}/evaluation"},
    reads=(_PRINTED,),
    writes=("results/transfer/table_11.md",),
)

CHAPTER = Chapter(
    name="prediction",
    title="Latency predicted kernel by kernel",
    paper="nn-Meter (MobiSys 2021)",
    settings=PredictionParams,
    targets=DEVICES,
    stages=(ZOO, FUSION, NODES, SAMPLING, CALIBRATION, TRAINING, TRUTH, EVALUATION, UNSEEN, TRANSFER),
    tables="edgeplan.chapters.prediction.evaluation.tables:TABLES",
    figures="edgeplan.chapters.prediction.evaluation.page:FIGURES",
    named_devices=(Targets("truth.repeat"), _UNSEEN, _TRANSFER),
    shipped_devices=(Targets("fusion.prior"),),
    compared=tuple(
        Compared(
            f"results/{device}/tables/table_08.csv",
            f"models of {device} predicted within 10 %, by family",
            "within 10 % (%)",
            "family",
        )
        for device in ("cpu-onednn", "cpu-onnxruntime", "cpu-openvino")
    ),
)
