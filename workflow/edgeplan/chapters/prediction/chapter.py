"""Declares the chapter on prediction: what it measures, learns and shows."""

from __future__ import annotations

from edgeplan.chapters.base import DEVICES, Chapter, Compared, Stage, Targets
from edgeplan.chapters.prediction.settings import PredictionParams

_STAGES = "edgeplan.chapters.prediction.stages"
_DEVICE = "config/devices/{device}.yaml"
_MODELS, _PRIOR = "data/zoo/models.parquet", "data/zoo/prior.parquet"
_RESULTS, _ROWS = "results/{device}", "data/rows/{device}"
_RULES = f"{_RESULTS}/fusion/rules.json"
_NODES = f"{_RESULTS}/nodes/models.parquet"
_CALIBRATION = f"{_RESULTS}/calibration/models.parquet"
_EVALUATION = f"{_RESULTS}/evaluation"
_PREDICTORS = f"{_RESULTS}/predictors"
_CHAPTERS = "results/chapters/{device}"
_PRINTED = "workflow/edgeplan/chapters/prediction/printed"  # the paper's tables
_UNSEEN = Targets("unseen.devices")
_TRANSFER = Targets("transfer", ("source", "target"))


def _measuring(name: str) -> str:
    return f"{_ROWS}/{name}"


ZOO = Stage(
    name="zoo",
    function=f"{_STAGES}.zoo:build_zoo",
    params=("zoo",),
    outputs={"models": _MODELS, "prior": _PRIOR, "costs": "data/zoo/costs.csv"},
    reads=(_PRINTED,),
    cached=(_MODELS, _PRIOR),
)
FUSION = Stage(
    name="fusion",
    function=f"{_STAGES}.fusion:detect_fusion",
    targets=DEVICES,
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
    rows=_measuring("fusion"),
    all_cores=True,
)
NODES = Stage(
    name="nodes",
    function=f"{_STAGES}.nodes:tell_nodes",
    targets=DEVICES,
    params=("seed", "zoo", "sampling", "calibration"),
    inputs={"device": _DEVICE, "models": _MODELS, "rules": _RULES},
    outputs={"nodes": _NODES},
    cached=(_NODES,),
    all_cores=True,
)
SAMPLING = Stage(
    name="sampling",
    function=f"{_STAGES}.sampling:sample_kernels",
    targets=DEVICES,
    params=("seed", "measurement", "sampling"),
    inputs={"device": _DEVICE, "nodes": _NODES},
    outputs={
        "kernels": f"{_RESULTS}/measurements/kernels.parquet",
        "summary": f"{_RESULTS}/measurements/sampling.json",
    },
    writes=(f"{_RESULTS}/measurements",),
    rows=_measuring("sampling"),
    all_cores=True,
)
CALIBRATION = Stage(
    name="calibration",
    function=f"{_STAGES}.calibration:measure_calibration",
    targets=DEVICES,
    params=("seed", "zoo", "measurement", "sampling", "truth", "calibration"),
    inputs={"device": _DEVICE},
    outputs={"models": _CALIBRATION},
    rows=_measuring("calibration"),
    all_cores=True,
)
TRAINING = Stage(
    name="training",
    function=f"{_STAGES}.training:train_predictors",
    targets=DEVICES,
    params=("seed", "training"),
    inputs={
        "device": _DEVICE,
        "nodes": _NODES,
        "kernels": SAMPLING.outputs["kernels"],
        "summary": SAMPLING.outputs["summary"],
        "calibration": _CALIBRATION,
    },
    outputs={
        "card": f"{_PREDICTORS}/card.json",
        "quality": f"{_PREDICTORS}/quality.parquet",
        "samplers": f"{_PREDICTORS}/samplers.csv",
        "compared": f"{_PREDICTORS}/compared.parquet",
    },
    paths={"predictors": _PREDICTORS},
    reads=(f"{_RESULTS}/measurements",),
    writes=(_PREDICTORS,),
    cached=(_PREDICTORS,),
    all_cores=True,
)
TRUTH = Stage(
    name="truth",
    function=f"{_STAGES}.truth:measure_models",
    targets=DEVICES,
    params=("seed", "measurement", "truth"),
    inputs={"device": _DEVICE, "models": _MODELS},
    outputs={"truth": f"{_EVALUATION}/truth.parquet", "environment": f"{_EVALUATION}/environment.json"},
    rows=_measuring("truth"),
    all_cores=True,
)
EVALUATION = Stage(
    name="evaluation",
    function=f"{_STAGES}.evaluation:evaluate",
    targets=DEVICES,
    params=("seed", "evaluation"),
    inputs={
        "models": _MODELS,
        "prior": _PRIOR,
        "calibration": _CALIBRATION,
        "truth": TRUTH.outputs["truth"],
        "environment": TRUTH.outputs["environment"],
        "nodes": _NODES,
        "rules": _RULES,
        "test_cases": FUSION.outputs["test_cases"],
        "verification": FUSION.outputs["verification"],
        "kernels": SAMPLING.outputs["kernels"],
        "summary": SAMPLING.outputs["summary"],
        "card": TRAINING.outputs["card"],
        "quality": TRAINING.outputs["quality"],
        "samplers": TRAINING.outputs["samplers"],
        "compared": TRAINING.outputs["compared"],
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
    reads=(f"{_RESULTS}/fusion", f"{_RESULTS}/measurements", _PREDICTORS, _PRINTED),
    writes=(f"{_EVALUATION}/speed.json", f"{_RESULTS}/tables"),
    plots=(f"{_RESULTS}/figures",),
    metrics=(f"{_CHAPTERS}/prediction.json",),
    shown=(f"{_RESULTS}/tables", f"{_RESULTS}/figures"),
    all_cores=True,
)
UNSEEN = Stage(
    name="unseen",
    function=f"{_STAGES}.unseen:evaluate_unseen",
    targets=_UNSEEN,
    params=("seed", "measurement", "truth", "unseen"),
    inputs={"device": _DEVICE, "rules": _RULES, "card": TRAINING.outputs["card"]},
    outputs={
        "metrics": f"{_CHAPTERS}/unseen.json",
        "models": f"{_RESULTS}/unseen/models.csv",
    },
    paths={"predictors": _PREDICTORS},
    reads=(_PREDICTORS,),
    writes=(f"{_RESULTS}/unseen",),
    metrics=(f"{_CHAPTERS}/unseen.json",),
    rows=_measuring("unseen"),
    all_cores=True,
)
TRANSFER = Stage(
    name="transfer",
    function=f"{_STAGES}.transfer:transfer",
    targets=_TRANSFER,
    params=("transfer",),
    inputs={
        "source_models": "results/{source}/evaluation/models.parquet",
        "target_models": "results/{target}/evaluation/models.parquet",
        "source_environment": "results/{source}/evaluation/environment.json",
        "target_environment": "results/{target}/evaluation/environment.json",
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
    figures="edgeplan.chapters.prediction.evaluation.figures:FIGURES",
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
