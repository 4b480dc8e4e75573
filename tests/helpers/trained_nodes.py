"""Predictors of nodes that are trained on a known law, and the folders of results that they are found in or trained from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pandas as pd
from evaluation_evidence import full_evidence
from executed_nodes import CACHE, drawn, law, model, node, samples

from edgeplan.chapters.prediction import whole_models
from edgeplan.chapters.prediction.stages.sampling import node_key
from edgeplan.chapters.prediction.whole_models import COLUMNS, node_rows
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.nodes import ExecutedModel, NodeConfig
from edgeplan.predictors.nodes.learner import learn
from edgeplan.predictors.nodes.predictor import NodePredictor, Relation, Trust
from edgeplan.predictors.nodes.storing import Kernel, save_predictor, write_kernels, write_measured
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_csv, write_parquet

SETTINGS = TrainingSettings(trials=0, folds=2)
RULES = FusionRules(pairs={"conv_bn": True, "conv_relu": True})
CALL_US, FAMILIES = 2.0, ("alexnet", "vgg", "resnet")


@cache
def trained() -> NodePredictor:
    """A device of ONNX Runtime that is bound by the law: it knows products, transposes and `Relu`."""
    kernels = learn(samples(drawn(np.random.default_rng(1), 120)), CACHE, SETTINGS)
    return NodePredictor(kernels, Relation(call_us=CALL_US), Trust(), "dev", "onnxruntime", onnxruntime.__version__)


def write_device(
    results: Path,
    predictor: NodePredictor | None = None,
    *,
    name: str = "dev",
    environment: Mapping[str, Any] | None = None,
    kernels: Sequence[Kernel] = (),
    known: Mapping[str, float] | None = None,
) -> Path:
    """The results of a device: its predictor, the nodes behind it, rules, and the machine if one is told."""
    folder = results / name
    save_predictor(replace(predictor or trained(), device=name), folder / "predictors")
    write_measured(folder / "predictors", known or {})
    write_kernels(folder / "predictors", kernels)
    RULES.write(folder / "fusion/rules.json")
    if environment is not None:
        write_json(folder / "evaluation/environment.json", dict(environment))
    return folder


def device_file(folder: Path) -> Path:
    path = folder / "dev.yaml"
    path.write_text("format_version: 1\nname: dev\nengine: onnxruntime\n")
    return path


def conv(channels: int, size: int, groups: int = 1) -> NodeConfig:
    image = (1, channels, size, size)
    made = {"group": groups, "kernel_shape": (3, 3), "pads": (1,) * 4}
    return node("Conv", [image, (channels, channels // groups, 3, 3)], image, weights=1, **made)


def convolutions(rng: np.random.Generator, count: int) -> list[NodeConfig]:
    return [conv(8 * int(rng.integers(1, 9)), int(rng.integers(4, 40)), 8 if i % 3 else 1) for i in range(count)]


def whole_us(one: ExecutedModel) -> float:
    """What a model takes by the law."""
    return CALL_US + sum(law(each.config) for each in one.nodes)


def write_measurements(folder: Path, slowness: float) -> Path:
    """What the stages before training leave of a machine so many times as slow as its quiet self; the zoo lies beside it."""
    rng, results = np.random.default_rng(4), folder / "results/dev"
    told: list[dict[str, object]] = []
    labelled: list[tuple[str, str, NodeConfig]] = []
    models: dict[str, list[tuple[ExecutedModel, str]]] = {}
    counts = {whole_models.PRIOR: 2, whole_models.CALIBRATING: 5, whole_models.EVALUATED: 3, whole_models.FROZEN: 2}
    for part, count in counts.items():
        for number in range(count * len(FAMILIES)):
            family = FAMILIES[number % len(FAMILIES)]
            one = model(f"{family}-{part}-{number:05d}", [*drawn(rng, 6), *convolutions(rng, 6)])
            models.setdefault(part, []).append((one, family))
            told += node_rows(one, family, part)
            sampler = "frozen" if part == whole_models.FROZEN else "adaptive"
            labelled += [(sampler, one.name, each.config) for each in one.nodes if part != whole_models.EVALUATED]
            if part == whole_models.EVALUATED:
                told += node_rows(replace(one, name=f"{one.name}-operators"), family, whole_models.OPERATORS)
    labelled += [("random", f"random-{number}", config) for number, config in enumerate(convolutions(rng, 20))]
    labelled += [("sweep", f"kernel_size-16-12-16-{k}-bn-relu", conv(16, 12)) for k in (3,)]
    labelled += [("conv_check", f"check-16-12-16-3-{tail}", conv(16, 12)) for tail in ("plain", "bn")]
    write_parquet(pd.DataFrame(told, columns=list(COLUMNS)), results / "nodes/models.parquet")
    kernels = {
        "model": [name for _, name, _ in labelled],
        "sampler": [sampler for sampler, _, _ in labelled],
        "key": [node_key(config) for *_, config in labelled],
        "config": [config.to_json() for *_, config in labelled],
        "context_bytes": 1_000_000,
        "latency_us": [law(config) for *_, config in labelled],
        "slowness": slowness,
        "seconds": 0.05,
    }
    write_parquet(pd.DataFrame(kernels), results / "measurements/kernels.parquet")
    about = {"device": "dev", "engine": "onnxruntime", "engine_version": "1", "measured_at": "2026-01-01"}
    seconds = {"adaptive": 30.0, "frozen": 3.0}
    write_json(results / "measurements/sampling.json", {**about, "call_us": CALL_US, "cache_bytes": CACHE, "seconds": seconds})

    def measured(part: str) -> dict[str, Any]:
        us = [whole_us(one) for one, _ in models[part]]
        names = {"model_id": [one.name for one, _ in models[part]], "family": [family for _, family in models[part]]}
        return {**names, "measured_ms": np.array(us) / 1e3, "noise": 0.01, "measured_at_s": 1.7e9}

    write_parquet(
        pd.DataFrame({**measured(whole_models.CALIBRATING), "slowness": slowness, "seconds": 1.0}),
        results / "calibration/models.parquet",
    )
    truth = pd.DataFrame({**measured(whole_models.EVALUATED), "blocks_span_s": 20.0, "repeat_gap_s": 600.0})
    truth = truth.assign(median_ms=slowness * truth["measured_ms"], repeat_ms=1.01 * truth["measured_ms"])
    write_parquet(truth, results / "evaluation/truth.parquet")
    write_json(results / "evaluation/environment.json", {"cpu": "Example CPU", "fingerprint": "f", "measured_at": "now"})
    RULES.write(results / "fusion/rules.json")
    names = {"index": range(len(truth)), "spec": "", "macs": 10**9, "memory_bytes": 10**6, "parameters": 1, "operators": 12}
    write_parquet(truth[["model_id", "family"]].assign(**names), folder / "zoo/models.parquet")
    others = full_evidence()  # of what does not hang on nodes
    write_parquet(others.prior, folder / "zoo/prior.parquet")
    write_csv(others.test_cases, results / "fusion/test_cases.csv")
    write_csv(others.verification, results / "fusion/verification.csv")
    return results
