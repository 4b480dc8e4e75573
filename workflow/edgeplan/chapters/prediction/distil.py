"""Writes what the package ships of a device: file, fusion rules, distilled predictors, costs of preparation."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np

from edgeplan.chapters.prediction.models import kernels_of
from edgeplan.errors import FormatError
from edgeplan.graph.fusion_rules import read_rules
from edgeplan.predictors.distilled import TREES, load_distilled, save_distilled
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.profiling.preparation_costs import FILE_NAME as PREPARATION
from edgeplan.profiling.preparation_costs import PreparationCosts
from edgeplan.profiling.settings import Cores
from edgeplan.profiling.store import Constants, Row, profile_rows
from edgeplan.support.files import write_atomically
from edgeplan.support.frames import read_parquet

MAX_BYTES = 4_900_000
#: Greatest median change of the latency of a model.
MAX_CHANGE = 0.005
#: Of the leaves of a branch that is cut, in the logarithm of latency; the first that makes the file small enough is taken.
_TOLERANCES = (0.0, 1e-4, 2e-4, 3e-4)


@dataclass(frozen=True)
class Distilled:
    """Reports the change of predictions that distilling caused.

    Attributes:
        size_bytes: size of the trees.
        median_change, largest_change: changes of the models' latencies, relative.
        models: number of models.
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


def distil_preparation(profiles: Path, environment: Path, folder: Path) -> int:
    """Write the costs of preparing kernels, fitted over all profiled rows, where the device has such rows.

    Args:
        profiles: folder of profiled rows, of one machine.
        environment: what is known of the machine that measured the device.
        folder: folder to write to.

    Returns:
        Candidates behind the fits; 0 where nothing is profiled, and nothing written.
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
        folder: folder to write to.
    """
    predictor = DevicePredictor.load(results / "predictors")
    for tolerance in _TOLERANCES:
        save_distilled(predictor, folder, tolerance)
        if (folder / TREES).stat().st_size <= MAX_BYTES:
            break
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
