"""Measures the speed of predictions: the command as a process, the call inside one, and as many models as the paper has."""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Literal

import msgspec
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.chapters.prediction import executed as parts
from edgeplan.chapters.prediction.executed import executed_models
from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.errors import FormatError
from edgeplan.graph.nodes import ExecutedModel, Operand
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.predictors.nodes.predictor import NodePredictor
from edgeplan.support.files import read_json, write_json
from edgeplan.support.machine import environment
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.store import STORED_ROWS_ONLY, stored_rows_only
from edgeplan.support.subprocesses import module_command, run
from edgeplan.zoo import prior_models

_FILE = "speed.json"


class Speed(BaseModel):
    """Records the measured speed of predictions, and its machine (evaluation/speed.json).

    Attributes:
        format_version: version of this document.
        figures: figures that `measure_speed` returned.
        predictors: digest of the predictors that were timed.
        measured_at: when, in UTC.
        cpu, cores, fingerprint: the machine; it need not be the one whose kernels were measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = 1
    figures: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    predictors: str
    measured_at: str
    cpu: str
    cores: int
    fingerprint: str

    def told(self, predictors: Path) -> str:
        """Return when and where the speed was measured, and of which predictors, as a sentence; "" without figures."""
        if not self.figures:
            return ""
        whose = "these predictors" if self.predictors == _digest(predictors) else "earlier predictors of this device"
        place = f"{self.cpu}, {self.cores} cores (fingerprint {self.fingerprint})"
        return f"The speed of predictions (speed.*) was measured at {self.measured_at} UTC on {place}, with {whose}."


def speed_of(params: PredictionParams, device: str, predictor: NodePredictor, nodes: pd.DataFrame, results: Path) -> Speed:
    """Return the figures of speed: measured and written, or read where nothing may be measured.

    Args:
        params: how many runs and models.
        device: name of the device.
        predictor: its predictor.
        nodes: what is executed of every model.
        results: folder of the device.
    """
    file = results / "evaluation" / _FILE
    if stored_rows_only():
        return stored_speed(file)
    figures, about = measure_speed(params, device, predictor, nodes), environment()
    speed = Speed(
        figures={name: float(f"{value:.6g}") for name, value in figures.items()},
        predictors=_digest(results / "predictors"),
        measured_at=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        cpu=f"{about['cpu']} ({about['cpu_family_model']})",
        cores=about["cores"],
        fingerprint=about["fingerprint"],
    )
    write_json(file, speed.model_dump())
    return speed


def _digest(predictors: Path) -> str:
    return hashlib.sha256((predictors / "card.json").read_bytes()).hexdigest()[:16]


def stored_speed(path: Path) -> Speed:
    """Read the speed measured before."""
    try:
        return read_json(path, Speed, "the figures of speed")
    except FormatError as error:
        raise FormatError(
            f"the figures of speed cannot be read, and may not be measured now: {error.what}",
            where=str(path),
            next_step=f"restore the file with git checkout, or unset {STORED_ROWS_ONLY}",
        ) from error


def measure_speed(params: PredictionParams, device: str, predictor: NodePredictor, nodes: pd.DataFrame) -> dict[str, float]:
    """Measure the speed of predictions on this machine.

    Returns:
        Median times `predict_process_s` (a file that was not seen before) and `predict_call_ms` (ResNet-50, told before); if as
        many models are asked for, also `batch_26000_s`, in which models given as executed nodes are predicted.
    """
    found: dict[str, float] = {}
    settings = params.evaluation
    told = executed_models(nodes, (parts.EVALUATED, parts.PRIOR))
    if settings.speed_runs:
        with ScratchFolder("speed") as folder:
            model = save_onnx(prior_models()["resnet50"](), Path(folder) / "resnet50.onnx")
            command = module_command("edgeplan", "predict", str(model), "--device", device)
            variables = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            process, call = [], []
            for _ in range(settings.speed_runs):
                start = time.perf_counter()
                run(command, variables=variables).check_returncode()
                process.append(time.perf_counter() - start)
            for _ in range(settings.speed_runs):
                start = time.perf_counter()
                predictor.predict(told["resnet50"])
                call.append(1e3 * (time.perf_counter() - start))
            found |= {"predict_process_s": statistics.median(process), "predict_call_ms": statistics.median(call)}
    if settings.batch_models:
        models = list(_varied(list(told.values()), settings.batch_models, params.seed))
        start = time.perf_counter()
        predictor.predict_many(models)
        found["batch_26000_s" if settings.batch_models == 26000 else "batch_s"] = time.perf_counter() - start  # the paper's
    return found


def _varied(models: Sequence[ExecutedModel], count: int, seed: int) -> Iterator[ExecutedModel]:
    """Yield so many models, those given in turn with the last axis of all operands scaled: about as many distinct nodes."""
    rng = Random(f"{seed}/speed")  # noqa: S311  not cryptography
    for number in range(count):
        model, factor = models[number % len(models)], 1 + rng.randrange(64) / 64

        def scaled(one: Operand | None, factor: float = factor) -> Operand | None:
            return one and msgspec.structs.replace(one, shape=(*one.shape[:-1], *(round(factor * n) for n in one.shape[-1:])))

        nodes = [
            replace(
                node,
                config=msgspec.structs.replace(
                    node.config,
                    inputs=tuple(map(scaled, node.config.inputs)),
                    outputs=tuple(map(scaled, node.config.outputs)),
                ),
            )
            for node in model.nodes
        ]
        yield replace(model, nodes=tuple(nodes))
