"""Stage `training`: train the predictors of a device, and those they are compared with."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.chapters.prediction.models import kernels_of
from edgeplan.chapters.prediction.sampling.labels import call_is_fitted
from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.chapters.prediction.training_part import train_in_process
from edgeplan.errors import FormatError
from edgeplan.graph.fusion_rules import read_rules
from edgeplan.measurement.lock import after_measurements
from edgeplan.predictors.card import Card
from edgeplan.predictors.distilled import CARD
from edgeplan.predictors.intervals import with_quantile_of
from edgeplan.predictors.kernel_tables import KernelTables
from edgeplan.predictors.kind_factors import cross_fitted_ms, fit_factors
from edgeplan.predictors.labels import COLUMNS
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.training import train_forest_predictor
from edgeplan.predictors.training_rows import trained_on
from edgeplan.progress import progress
from edgeplan.reporting.metrics import accuracy
from edgeplan.reporting.uncertainty import rmspe_difference
from edgeplan.support import cpus
from edgeplan.support.files import read_json
from edgeplan.support.frames import read_document, read_parquet, write_csv, write_parquet
from edgeplan.support.scratch import ScratchFolder
from edgeplan.workspace import SHIPPED

log = logging.getLogger(__name__)
#: Folder, below that of the device's predictors, of those trained for comparison only.
FOREST = "forest"
#: Samplers that are compared; each has a folder of its name with its Conv predictor among those of the device.
COMPARED = ("adaptive", "random", "prior")
_DEVICE = ""  # the device's own lie in no folder below
_CONV = "conv"
_RESOLVED_US = 1.0  # stock engines count whole microseconds: labels below one tell how they round
#: What is read of the sampler's document.
_ABOUT = (
    "mode",
    "device",
    "engine",
    "engine_version",
    "measured_at",
    "call_us",
    "plain_layouts",
    "sampler_seconds",
)


def train(
    params: PredictionParams,
    *,
    device: Path,  # noqa: ARG001  its own values of params are among them
    kernels: Path,
    summary: Path,
    rules: Path,
    calibration: Path,
    predictors: Path,
    quality: Path,
    samplers: Path,
) -> None:
    """Train the predictors; calibrate them on whole models; hold the samplers against the frozen set; train what is compared.

    The samplers are judged on all labels of the frozen set, and on those of at least a microsecond alone; how far the
    others' errors differ from the adaptive one's by chance is told by resampling the carriers of that set.

    The comparison predictors: Conv from each sampler's samples alone, the other kinds being those of the device; and nn-Meter's
    random forests from the same rows as the device's.
    """
    table, about = read_parquet(kernels, "mode", *COLUMNS), read_document(summary, *_ABOUT)
    about = {**about, "call_us": call_us(str(about["engine"]), float(about["call_us"]))}
    whole = read_parquet(calibration, "model_id", "family", "spec", "measured_ms")
    whole_kernels = kernels_of(whole, read_rules(rules))  # what cannot be read ends the stage before it trains
    parts = _parts(table, about)
    after_measurements()  # trees are grown on all cores, in processes that load libraries as they start
    trained = _train_all(parts, params, about)
    predictor, held_out = trained[_DEVICE]
    forest = train_forest_predictor(parts[_DEVICE], _settings(params), predictor)
    measured_ms = whole["measured_ms"].to_numpy(float)
    calibrated(forest, whole_kernels, measured_ms).save(predictors / FOREST)
    calibrated(predictor, whole_kernels, measured_ms).save(predictors)
    write_parquet(held_out, quality)
    rows: list[dict[str, object]] = []
    adaptive = _frozen(trained[COMPARED[0]][1]) if COMPARED[0] in trained else None
    for name in (n for n in COMPARED if n in trained):
        conv, judged = trained[name]
        judged = _frozen(judged)
        rows.append(
            {
                "sampler": name,
                "rows": int((parts[name]["sampler"] == name).sum()),
                "seconds": about["sampler_seconds"][name],
                **_judged(judged),
                **_differences(judged, None if name == COMPARED[0] else adaptive),
            }
        )
        calibrated(predictor.with_kinds_of(conv, [_CONV]), whole_kernels, measured_ms).save(predictors / name)
    write_csv(pd.DataFrame(rows, columns=list(rows[0]) if rows else ["sampler"]), samplers)


def _parts(table: pd.DataFrame, about: Mapping[str, Any]) -> dict[str, pd.DataFrame]:
    """Return the rows of each training, by the folder of its predictors."""
    mode = str(about["mode"])
    frozen = (table["mode"] == mode) & (table["sampler"] == "frozen")
    main = table[trained_on(table, mode) | frozen].reset_index(drop=True)
    parts = {_DEVICE: main}
    carriers = table[table["mode"] == "in_situ"]
    for name in COMPARED:
        part = carriers[carriers["sampler"].isin([name, "frozen"]) & (carriers["kind"] == _CONV)]
        if (part["sampler"] == name).any() and (part["sampler"] == "frozen").any():
            parts[name] = part
    return parts


def _frozen(held_out: pd.DataFrame) -> pd.DataFrame:
    return held_out[held_out["split"] == "frozen"].reset_index(drop=True)


def _judged(rows: pd.DataFrame) -> dict[str, float]:
    """Return the accuracy on all held-out rows and, NaN without any, on those whose label is at least `_RESOLVED_US`."""
    found: dict[str, float] = {"resolved_us": _RESOLVED_US}
    for suffix, part in (("_all", rows), ("", rows[rows["measured_us"] >= _RESOLVED_US])):
        hit = asdict(accuracy(part["measured_us"] / 1e3, part["predicted_us"] / 1e3)) if len(part) else {}
        values = (hit.get(name, math.nan) for name in ("models", "rmse", "rmspe", "within_10pct"))
        found |= dict(zip((f"{name}{suffix}" for name in ("labels", "rmse_ms", "rmspe", "within_10pct")), values, strict=True))
    return found


def _differences(rows: pd.DataFrame, adaptive: pd.DataFrame | None) -> dict[str, float]:
    """Return a 95 % interval of the RMSPE less that of the adaptive sample (percentage points) on the same sets, or NaN."""
    found: dict[str, float] = {}
    same = ["subject", "config", "measured_us"]
    if adaptive is not None and not rows[same].equals(adaptive[same]):
        raise FormatError("samplers were judged on different labels", where="training", next_step="dvc repro training")
    for suffix, least in (("_all", 0.0), ("", _RESOLVED_US)):
        low = high = math.nan
        if adaptive is not None:
            kept = rows["measured_us"] >= least
            ours, theirs = adaptive[kept], rows[kept]
            if len(ours):
                interval = rmspe_difference(ours["measured_us"], ours["predicted_us"], theirs["predicted_us"], ours["subject"])
                low, high = interval.low, interval.high
        found |= {f"rmspe_more_low{suffix}": low, f"rmspe_more_high{suffix}": high}
    return found


def calibrated(predictor: DevicePredictor, models: KernelTables, measured_ms: npt.NDArray[np.float64]) -> DevicePredictor:
    """Return the predictor with factors of kinds and intervals fitted to the whole models that it can predict wholly.

    The intervals are of errors by factors that were fitted on other models.

    Args:
        predictor: its intervals are those of held-out carriers.
        models: kernels of the whole models (m).
        measured_ms: what they take (m,).
    """
    found = predictor.predict_many(models, allow_partial=True)
    whole = found.coverage == 1
    by_kind, call_ms, measured_ms = found.by_kind_ms[:, whole], predictor.card.call_us / 1e3, measured_ms[whole]
    residual = np.log(measured_ms / cross_fitted_ms(by_kind, call_ms, measured_ms))
    interval = with_quantile_of(predictor.card.interval, residual, found.effective_kernels[whole])
    present = [row for row in range(len(found.kinds)) if by_kind[row].any()]
    fitted = fit_factors(by_kind[present], call_ms, measured_ms).tolist()
    factors = {found.kinds[row]: factor for row, factor in zip(present, fitted, strict=True)}
    return DevicePredictor(predictor.card.model_copy(update={"interval": interval, "factors": factors}), predictor.texts)


def _settings(params: PredictionParams) -> TrainingSettings:
    """Return the settings of training, with seeds that follow from the one of the pipeline."""
    seeds = tuple(int(s) for s in np.random.SeedSequence(params.seed).generate_state(len(params.training.seeds)) % 2**16)
    return params.training.model_copy(update={"seeds": seeds})


def _train_all(
    asked: Mapping[str, pd.DataFrame], params: PredictionParams, about: Mapping[str, Any]
) -> dict[str, tuple[DevicePredictor, pd.DataFrame]]:
    """Train several tables at once by `_train`, a process each: the trees of one are grown one after the other, on one core."""
    with ScratchFolder("training") as folder, ThreadPoolExecutor(cpus.workers()) as pool:
        largest_first = sorted(asked, key=lambda name: -len(asked[name]))
        started = {
            pool.submit(_train, Path(folder) / str(number), asked[name], params, about): name
            for number, name in enumerate(largest_first)
        }
        with progress(f"{about['device']}: kernels trained on", sum(len(rows) for rows in asked.values())) as advance:
            for done in as_completed(started):
                done.result()
                advance(len(asked[started[done]]))
    return {name: future.result() for future, name in started.items()}


def call_us(engine: str, fitted: float) -> float:
    """Return the constant cost of an inference (us): as fitted, or the shipped predictors' where the fit ended at a bound.

    Args:
        engine: name of the engine.
        fitted: what the sampler's fit says (us).
    """
    if call_is_fitted(fitted):
        return fitted
    cards = (read_json(path, Card, "the card of the predictors") for path in sorted(SHIPPED.glob(f"*/{CARD}")))
    known = [card.call_us for card in cards if card.engine == engine]
    if not known:
        log.warning("the constant cost of an inference was not found: %.3g us, predictions of small models are wrong", fitted)
        return fitted
    kept = float(np.median(known))
    log.warning(
        "the constant cost of an inference was not found (%.3g us): %.3g us of the shipped predictors stand", fitted, kept
    )
    return kept


def _train(
    folder: Path, rows: pd.DataFrame, params: PredictionParams, about: Mapping[str, Any]
) -> tuple[DevicePredictor, pd.DataFrame]:
    told = {
        "device": str(about["device"]),
        "engine": str(about["engine"]),
        "engine_version": str(about["engine_version"]),
        "call_us": float(about["call_us"]),
        "plain_layouts": dict(about["plain_layouts"]),
        "measured_at": str(about["measured_at"]),
    }
    return train_in_process(folder, rows, _settings(params), told)
