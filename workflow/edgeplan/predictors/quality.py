"""Judges predictors on held-out kernels: LightGBM and the paper's random forest, both trained anew (Table 9)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.graph.kernels import KernelConfig
from edgeplan.predictors.boosting import fit
from edgeplan.predictors.forest import fit_forest
from edgeplan.predictors.kind_training import Kind
from edgeplan.predictors.labels import Floats, Labels, group_folds
from edgeplan.predictors.latency import together
from edgeplan.predictors.settings import TrainingSettings

_SPLIT_TENTHS = 10  # 7 train, 1 validation, 2 test, as in the paper
_TRAIN_TENTHS, _VALIDATION_TENTHS = 7, 1
#: Columns of held-out kernels.
QUALITY = ["subject", "kind", "type", "config", "measured_us", "predicted_us", "forest_us", "split"]


def quality_of(
    trained: Kind,
    labels: Labels,
    inputs: tuple[Floats, Floats],
    kept: npt.NDArray[np.int64],
    frozen: npt.NDArray[np.int64],
    settings: TrainingSettings,
) -> pd.DataFrame:
    """Return a kind's held-out kernels, predicted by models that saw 7/10 of the subjects (test) or all of them (frozen)."""
    matrix, _ = inputs
    tenth = group_folds(labels.group[kept], _SPLIT_TENTHS, settings.seeds[0])
    train, test = kept[tenth < _TRAIN_TENTHS], kept[tenth >= _TRAIN_TENTHS + _VALIDATION_TENTHS]
    parts = [("test", train, test), ("frozen", kept, frozen)]
    tables = []
    for split, seen, held in parts:
        if len(seen) and len(held):
            forest = fit_forest(labels.take(seen), matrix[seen], settings.seeds[0])
            predicted = _predict_held(trained, labels, inputs, seen, held, settings)
            table = labels.frame.iloc[held][["subject", "kind", "config"]].copy()
            table["type"] = (
                [_type_of(text) for text in table["config"]] if "type" not in labels.frame else labels.frame.iloc[held]["type"]
            )
            table["measured_us"], table["predicted_us"] = labels.latency[held], predicted
            table["forest_us"], table["split"] = np.maximum(forest.predict(matrix[held]), 0.0), split
            tables.append(table)
    return pd.concat(tables)[QUALITY] if tables else pd.DataFrame(columns=QUALITY)


def _predict_held(
    trained: Kind,
    labels: Labels,
    inputs: tuple[Floats, Floats],
    seen: npt.NDArray[np.int64],
    held: npt.NDArray[np.int64],
    settings: TrainingSettings,
) -> Floats:
    """Predict held-out rows (us) by predictors of their kind and implementation, trained anew on the rows seen."""
    matrix, reads = inputs
    result = np.full(len(held), np.nan)
    names = labels.column("implementation")
    for regressor in trained.regressors:  # that of the whole kind first
        specific = regressor.implementation
        mine = names[seen] == specific if specific else np.ones(len(seen), dtype=bool)
        asked = names[held] == specific if specific else np.ones(len(held), dtype=bool)
        if not mine.any() or not asked.any():
            continue
        codes = {name: float(i) for i, name in enumerate(regressor.codes)}
        sides = []
        for rows in (seen[mine], held[asked]):
            side = matrix[rows].copy()
            side[:, -2:] = np.column_stack([reads[rows], np.full(len(rows), -1.0)])
            if not specific:
                side[:, -1] = [codes.get(n, -1.0) for n in names[rows]]
            sides.append(side)
        model = fit(labels.take(seen[mine]), sides[0], trained.parameters[specific], settings.seeds[:1])
        result[asked] = together(result[asked], model.predict(sides[1]), launched=bool(settings.dispatch_numbers))
    return result


def _type_of(config: str) -> str:
    return KernelConfig.from_json(config).type
