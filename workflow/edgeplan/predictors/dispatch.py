"""Learns which implementation an engine picks, and the layouts it reads and writes: both depend on the configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from edgeplan.predictors.card import ImplementationLayouts, KindDispatch
from edgeplan.predictors.labels import Floats, Labels, group_folds
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.trees import slim_text
from edgeplan.support.lazy import lazily

lightgbm = lazily("lightgbm")  # training alone needs it

_PARAMETERS: Mapping[str, Any] = {
    "learning_rate": 0.3,
    "num_leaves": 31,
    "min_data_in_leaf": 2,
    "min_sum_hessian_in_leaf": 1e-4,
    # Without it steps grow without bound where a leaf is of one class, and held-out accuracy fell to 0.89 for one of 0.995.
    "lambda_l2": 1.0,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbosity": -1,
    "use_missing": False,
}
_ROUNDS = 25


def learn_dispatch(kind: str, labels: Labels, matrix: Floats, settings: TrainingSettings) -> tuple[KindDispatch, str] | None:
    """Return the implementations of a kind, and a classifier as text where the inputs' state does not decide alone.

    Args:
        kind: kernel kind.
        labels: its rows.
        matrix: features of the trees, the input state's code among them (n, features).
        settings: folds and seed.

    Returns:
        None if the engine does not tell implementations.
    """
    names = labels.column("implementation")
    told = np.flatnonzero(names != "")
    if not len(told):
        return None
    labels, matrix = labels.take(told), matrix[told]
    pairs = list(zip(*(labels.column(c) for c in ("implementation", "input_layout", "output_layout")), strict=True))
    states = labels.column("input_state")
    classes = tuple(name for name, _ in sorted(Counter(pairs).items(), key=lambda item: (-item[1], item[0])))
    code = {name: i for i, name in enumerate(classes)}
    target = np.array([code[pair] for pair in pairs])
    by_state = {"": 0}
    for state in sorted(set(states) - {""}):
        by_state[state] = int(np.bincount(target[states == state]).argmax())
    usual = np.array([by_state.get(state, 0) for state in states])
    variants = tuple(ImplementationLayouts(implementation=i, input_layout=r, output_layout=w) for i, r, w in classes)
    if (usual == target).all():
        return KindDispatch(kind=kind, variants=variants, by_state=by_state), ""
    folds = group_folds(labels.group, settings.folds, settings.seeds[0])
    guess = np.zeros(len(target), dtype=np.int64)
    for fold in np.unique(folds):
        train, held = folds != fold, folds == fold
        if train.any():
            guess[held] = _classify(_train(matrix[train], target[train], len(classes), settings), matrix[held])
    accuracy, plain = float((guess == target).mean()), float((usual == target).mean())
    if accuracy <= plain:  # the classifier sees no more than the state of the inputs does
        return KindDispatch(kind=kind, variants=variants, by_state=by_state, accuracy=plain), ""
    text = _train(matrix, target, len(classes), settings).model_to_string()
    return KindDispatch(
        kind=kind, variants=variants, file=f"dispatch.{kind}.txt", by_state=by_state, accuracy=accuracy
    ), slim_text(text)


def _train(matrix: Floats, target: Any, classes: int, settings: TrainingSettings) -> Any:
    data = lightgbm.Dataset(matrix, target, params={"verbosity": -1})
    # Two classes are trained as two trees a round too: one rule for reading the scores.
    objective = {"objective": "multiclass", "num_class": max(2, classes), "seed": settings.seeds[0]}
    return lightgbm.train({**_PARAMETERS, **objective}, data, _ROUNDS)


def _classify(booster: Any, matrix: Floats) -> Any:
    return np.argmax(booster.predict(matrix), axis=1)
