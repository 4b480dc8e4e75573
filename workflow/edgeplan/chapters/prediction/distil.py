"""The package ships of a device: file, fusion rules, distilled predictors, the kernels behind them, costs of preparation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction.model_tables import kernels_of
from edgeplan.errors import FormatError
from edgeplan.graph.fusion_rules import read_rules
from edgeplan.graph.kernels import KernelConfig
from edgeplan.predictors.card import Regressor, known_sizes
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.distilled import CARD, TREES, load_distilled, save_distilled
from edgeplan.predictors.kind_training import LEAST_HALF_WIDTH, places_of, reach_of
from edgeplan.predictors.labels import Labels, read_labels
from edgeplan.predictors.latency import Evaluator
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.prior import COLUMNS
from edgeplan.predictors.sizes import growth, packed
from edgeplan.predictors.training_rows import trained_on
from edgeplan.profiling.preparation_costs import FILE_NAME as PREPARATION
from edgeplan.profiling.preparation_costs import PreparationCosts
from edgeplan.profiling.settings import Cores
from edgeplan.profiling.store import Constants, Row, profile_rows
from edgeplan.support.files import write_atomically, write_text
from edgeplan.support.frames import read_document, read_parquet, write_parquet
from edgeplan.support.rounding import nine_digits
from edgeplan.workspace import KERNELS

MAX_BYTES = 4_900_000
#: Greatest median change of the latency of a model.
MAX_CHANGE = 0.005
#: Of the leaves of a branch that is cut, in the logarithm of latency; the first that makes the file small enough is taken.
_TOLERANCES = (0.0, 1e-4, 2e-4, 3e-4)


@dataclass(frozen=True)
class Distilled:
    """The change of predictions that distilling caused.

    Attributes:
        size_bytes: of the trees.
        median_change, largest_change: of the latencies of the models, relative.
        models: how many.
    """

    size_bytes: int
    median_change: float
    largest_change: float
    models: int

    def __str__(self) -> str:
        return (
            f"{self.size_bytes / 1e6:.2f} MB; latencies of {self.models} models change by {100 * self.median_change:.3f} % "
            f"in the median, {100 * self.largest_change:.2f} % at most"
        )


def _sampled(measurements: Path) -> pd.DataFrame:
    """The distinct kernels that the predictors were trained on: never a frozen one, nor one of a whole model."""
    mode = str(read_document(measurements / "sampling.json", "mode")["mode"])
    table = read_parquet(measurements / "kernels.parquet", "mode", "sampler", "subject", *COLUMNS)
    return table.loc[trained_on(table, mode), list(COLUMNS)].drop_duplicates("config", ignore_index=True)


def add_sizes(measurements: Path, folder: Path) -> tuple[float, int]:
    """Add to the card of distilled predictors how far sizes lie from those measured, from the rows that they were trained on.

    This is for predictors that were distilled before cards told distances; their trees stay. The growth of intervals comes from
    the frozen rows, which no training saw.

    Args:
        measurements: the device's folder of labelled kernels.
        folder: of the distilled predictors.

    Returns:
        The growth, and how many frozen rows lie beyond what is near.

    Raises:
        FormatError: the rows are not those of the training.
    """
    predictor = load_distilled(folder)
    card, labels = predictor.card, read_labels(_main_rows(measurements))
    frozen = (labels.frame["sampler"] == "frozen").to_numpy()
    trained, held = labels.take(~frozen), labels.take(frozen)
    regressors = [_with_samples(regressor, trained) for regressor in card.regressors]
    if len(trained) != card.rows or any(new.rows != old.rows for new, old in zip(regressors, card.regressors, strict=True)):
        raise FormatError(
            f"the predictors were trained on {card.rows} other rows than these {len(trained)}",
            where=str(measurements),
            next_step="distil them from predictors that are trained on these rows: make distil",
        )
    implementation = held.frame["implementation"].map({name: code for code, name in enumerate(card.implementations)}).fillna(-1)
    state = held.frame["input_layout"].map({name: code for code, name in enumerate(card.states)}).fillna(0)
    codes = np.array([implementation, state], np.int64)
    table = ConfigTable.of([KernelConfig.from_json(text) for text in held.column("config")])
    predicted, number = Evaluator(card, predictor.forest).latency(table, codes[0], codes[1])
    distance = known_sizes(regressors, 0.0).distance(places_of(held), number)
    near, far, low, high = (np.array([getattr(r, name) for r in regressors])[number] for name in ("near", "far", "low", "high"))
    residual = np.log(held.latency / predicted)
    error = np.abs(residual) / np.maximum(np.where(residual > 0, high, -low), LEAST_HALF_WIDTH)
    error[number < 0] = np.nan
    beyond = np.minimum(distance, far) - near
    grown = nine_digits(growth(beyond, error, card.interval.nominal))
    write_text(
        folder / CARD,
        card.model_copy(update={"regressors": tuple(regressors), "growth": grown}).model_dump_json(indent=1) + "\n",
    )
    return grown, int((beyond > 0).sum())


def _main_rows(measurements: Path) -> pd.DataFrame:
    """The rows that the predictors of a device were trained on, and the frozen ones."""
    mode = str(read_document(measurements / "sampling.json", "mode")["mode"])
    table = read_parquet(measurements / "kernels.parquet", "mode", "sampler", "subject", *COLUMNS)
    frozen = (table["mode"] == mode) & (table["sampler"] == "frozen")
    return table[trained_on(table, mode) | frozen].reset_index(drop=True)


def _with_samples(regressor: Regressor, trained: Labels) -> Regressor:
    own = trained.column("kind") == regressor.kind
    if regressor.implementation:
        own &= trained.column("implementation") == regressor.implementation
    part = trained.take(own)
    at = places_of(part)
    near, far, _ = reach_of(at, part)
    return regressor.model_copy(update={"samples": packed(at), "near": near, "far": far, "rows": len(part)})


def distil_preparation(profiles: Path, environment: Path, folder: Path) -> int:
    """Write the costs of preparing kernels, fitted over all profiled rows, where the device has such rows.

    Args:
        profiles: folder of profiled rows, of one machine.
        environment: what is known of the machine that measured the device.
        folder: where to.

    Returns:
        Candidates behind the fits; 0 where nothing is profiled, and nothing written.

    Raises:
        FormatError: a file does not fit.
    """
    rows, identity = max(
        ((_rows_of(path), path) for path in sorted(profiles.glob(f"{'[0-9a-f]' * 12}.json"))),
        key=lambda found: len(found[0]),
        default=([], None),
    )
    if identity is None or not rows:
        return 0
    what = json.loads(identity.read_bytes())
    machine = json.loads(environment.read_bytes())
    found = PreparationCosts.fitted(
        rows, Constants.model_validate(what["constants"]), Cores(tuple(what["big_cores"]), _little(what["measured_classes"]))
    )
    found = found.model_copy(
        update={
            "cpu": machine["cpu"] if machine["fingerprint"] == what["fingerprint"] else "",
            "fingerprint": what["fingerprint"],
            "measured_at": datetime.fromtimestamp(max(row.measured_at for row in rows), UTC).date().isoformat(),
        }
    )
    found.write(folder / PREPARATION)
    return found.candidates


def _rows_of(identity: Path) -> list[Row]:
    return [row for rows in profile_rows(identity.parent, identity.stem).values() for row in rows]


def _little(classes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(core for name, core in classes.items() if name == "little")


def distil(device: Path, results: Path, models: Path, folder: Path) -> Distilled:
    """Write what the package ships of a device.

    Args:
        device: its file.
        results: its folder of results.
        models: table of the zoo's models, on which the change is looked at.
        folder: where to.

    Raises:
        FormatError: a file is missing or does not fit, or the distilled predictors are too large or too far off.
    """
    predictor = DevicePredictor.load(results / "predictors")
    for tolerance in _TOLERANCES:
        save_distilled(predictor, folder, tolerance)
        if (folder / TREES).stat().st_size <= MAX_BYTES:
            break
    write_parquet(_sampled(results / "measurements"), folder / KERNELS)
    copies = {
        folder / device.name: device,
        folder / "rules.json": results / "fusion" / "rules.json",
        folder / "environment.json": results / "evaluation" / "environment.json",
    }
    for target, source in copies.items():
        write_atomically(target, partial(shutil.copyfile, source))
    tables = kernels_of(read_parquet(models, "model_id", "family", "spec"), read_rules(folder / "rules.json"))
    before, after = (p.predict_many(tables).latency_ms for p in (predictor, load_distilled(folder)))
    change = np.abs(after / before - 1)
    found = Distilled((folder / TREES).stat().st_size, float(np.median(change)), float(change.max()), len(change))
    if found.size_bytes > MAX_BYTES or found.median_change > MAX_CHANGE:
        raise FormatError(
            f"the distilled predictors do not keep the limits of {MAX_BYTES / 1e6} MB and {100 * MAX_CHANGE} %: {found}",
            where=str(folder),
            next_step="train with fewer trees or leaves (training.trials in params.yaml), then make distil again",
        )
    return found
