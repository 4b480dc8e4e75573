"""Measures the speed of predictions: the command as a process, the call inside one, and the paper's 26,000 models at once."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import statistics
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.errors import FormatError
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.graph.splitting import split
from edgeplan.predictors.kernel_tables import KernelTables, kernel_table
from edgeplan.predictors.packing import digest_of
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.progress import progress
from edgeplan.support import cpus, lifeline
from edgeplan.support.files import read_json, write_json
from edgeplan.support.machine import environment
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.store import STORED_ROWS_ONLY, stored_rows_only
from edgeplan.support.subprocesses import module_command, run
from edgeplan.zoo import FAMILIES, build_variant, prior_models, variants

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

    def told(self, predictor: DevicePredictor) -> str:
        """Return when and where the speed was measured, as a sentence; "" without figures."""
        if not self.figures:
            return ""
        whose = "these predictors" if self.predictors == _digest(predictor) else "earlier predictors of this device"
        place = f"{self.cpu}, {self.cores} cores (fingerprint {self.fingerprint})"
        return f"The speed of predictions (speed.*) was measured at {self.measured_at} UTC on {place}, with {whose}."


def speed_of(params: PredictionParams, device: str, rules: FusionRules, predictor: DevicePredictor, evaluation: Path) -> Speed:
    """Return the figures of speed: measured and written, or read where nothing may be measured.

    Args:
        params: how many runs and models.
        device: name of the device.
        rules: its fusion rules.
        predictor: its predictors.
        evaluation: folder of the document.
    """
    if stored_rows_only():
        return stored_speed(evaluation / _FILE)
    figures, about = measure_speed(params, device, rules, predictor), environment()
    speed = Speed(
        figures={name: float(f"{value:.6g}") for name, value in figures.items()},
        predictors=_digest(predictor),
        measured_at=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        cpu=f"{about['cpu']} ({about['cpu_family_model']})",
        cores=about["cores"],
        fingerprint=about["fingerprint"],
    )
    write_json(evaluation / _FILE, speed.model_dump())
    return speed


def _digest(predictor: DevicePredictor) -> str:
    return digest_of(predictor.card, predictor.texts)[:16]


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


def measure_speed(params: PredictionParams, device: str, rules: FusionRules, predictor: DevicePredictor) -> dict[str, float]:
    """Measure the speed of predictions on this machine.

    Returns:
        Median times `predict_process_s` and `predict_call_ms` (ResNet-50); if as many models are asked for, also
        `tables_26000_s`, in which their specs and kernel tables are made on all cores, and `batch_26000_s`, in which they are
        predicted from these tables.
    """
    found: dict[str, float] = {}
    settings = params.evaluation
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
            graph = load_onnx(model)
            for _ in range(settings.speed_runs):
                start = time.perf_counter()
                plain = simplify(graph)
                predictor.predict(kernel_table(plain, split(plain, rules)))
                call.append(1e3 * (time.perf_counter() - start))
            found |= {"predict_process_s": statistics.median(process), "predict_call_ms": statistics.median(call)}
    if settings.batch_models:
        start, seconds = time.perf_counter(), 0.0
        families = batch_tables(params.seed, settings.batch_models, rules, f"{device}: models built for their speed")
        found["tables_26000_s" if settings.batch_models == 26000 else "tables_s"] = time.perf_counter() - start
        with progress(f"{device}: models predicted for their speed", settings.batch_models) as advance:
            for tables in families:
                start = time.perf_counter()
                predictor.predict_many(tables, allow_partial=True)
                seconds += time.perf_counter() - start
                advance(len(tables.models))
        found["batch_26000_s" if settings.batch_models == 26000 else "batch_s"] = seconds  # the paper's
    return found


def batch_tables(seed: int, count: int, rules: FusionRules, description: str = "models") -> list[KernelTables]:
    """Build kernel tables of so many variants, an equal share of each family, on all cores; the bar shows `description`."""
    shares = [len(range(i, count, len(FAMILIES))) for i in range(len(FAMILIES))]
    # forked: the scripts of the stages are no importable modules; the children build tables and touch no engine or OpenMP
    forked = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(cpus.workers(), forked, initializer=lifeline.end_with, initargs=(lifeline.address(),)) as pool:
        built = pool.map(_family_tables, FAMILIES, shares, itertools.repeat(seed), itertools.repeat(rules))
        found = []
        # After the fork: the bar has a thread of its own, whose locks the children would inherit as they are.
        with progress(description, count) as advance:
            for tables in built:
                found.append(tables)
                advance(len(tables.models))
    return found


def _family_tables(family: str, count: int, seed: int, rules: FusionRules) -> KernelTables:
    graphs = (simplify(build_variant(spec)) for spec in variants(FAMILIES[family], count, seed))
    return KernelTables.of(kernel_table(graph, split(graph, rules)) for graph in graphs)
