"""Trains the predictors of a device from labelled kernels (nn-Meter, sections 5.3 and 6; LiPG, section 5.2)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from edgeplan.errors import FormatError
from edgeplan.graph.kernels import KernelConfig
from edgeplan.graph.operators.registry import BANDWIDTH_BOUND
from edgeplan.predictors.bandwidth import Bandwidth, fit_bandwidth
from edgeplan.predictors.card import Card, Regressor
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.familiarity import learnt_ranges
from edgeplan.predictors.features import known_features
from edgeplan.predictors.forest import fit_forest
from edgeplan.predictors.intervals import calibrate, held_out_sums
from edgeplan.predictors.kind_training import Kind, file_name, train_kind
from edgeplan.predictors.labels import Floats, Labels, read_labels
from edgeplan.predictors.latency import state_names
from edgeplan.predictors.launches import LAUNCH_VERSION
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.quality import QUALITY, quality_of
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.sizes import growth
from edgeplan.predictors.training_rows import SINGLE
from edgeplan.predictors.trees import slim_text
from edgeplan.support.rounding import nine_digits

log = logging.getLogger(__name__)


def train_predictor(
    rows: pd.DataFrame,
    settings: TrainingSettings,
    *,
    device: str,
    engine: str,
    engine_version: str,
    call_us: float,
    plain_layouts: Mapping[str, str],
    measured_at: str,
    judged: bool = True,
) -> tuple[DevicePredictor, pd.DataFrame]:
    """Train one predictor per kernel kind, and one per implementation with enough rows.

    Args:
        rows: labelled kernels: subject, sampler, kind, config (JSON), latency_us; where the engine tells them also
            implementation, input_state, input_layout, output_layout; noise.
        settings: how to train.
        device: name of the device.
        engine: name of its engine.
        engine_version: version of the engine.
        call_us: constant cost of one inference.
        plain_layouts: layout of graph inputs and outputs by rank.
        measured_at: date of the measurements.
        judged: whether held-out kernels are predicted by further trainings, which takes as long again.

    Returns:
        The predictors, and held-out kernels: subject, kind, type, config, measured_us, predicted_us, forest_us, split ("test"
        of a 7:1:2 split by subject, "frozen"); no kernels where they are not judged.
    """
    labels, launched = read_labels(rows, settings.dispatch_numbers, settings.work_on(device)), bool(settings.dispatch_numbers)
    features, terms = known_features(launched=launched)
    states = state_names(
        [*labels.frame["input_state"], *labels.frame["input_layout"], *labels.frame["output_layout"], *plain_layouts.values()]
    )
    matrix, reads = _with_states(labels, states), _codes(labels, "input_layout", states)
    held = labels.column("sampler") == "frozen"  # never trained on: they are reported on
    kept, frozen = np.flatnonzero(~held), np.flatnonzero(held)
    if not len(kept):
        raise FormatError("every labelled kernel is excluded from training", where="training table", next_step="sample kernels")
    kind_of = labels.column("kind")
    kinds: dict[str, Kind] = {}
    quality = []
    out_of_fold = np.full(len(labels), np.nan)
    for kind in kinds_with_trees(labels.take(kept)):
        here = kept[kind_of[kept] == kind]
        trained = train_kind(kind, labels.take(here), matrix[here], reads[here], settings)
        kinds[kind] = trained
        out_of_fold[here] = trained.out_of_fold
        if judged:
            quality.append(quality_of(trained, labels, (matrix, reads), here, frozen[kind_of[frozen] == kind], settings))
        log.info("trained %s on %d rows", kind, len(here))
    held_out = pd.concat(quality) if quality else pd.DataFrame(columns=QUALITY)
    residual, effective = held_out_sums(labels, held_out[held_out["split"] == "frozen"], kept, out_of_fold)
    names = sorted(set(labels.column("implementation")[kept]) - {""})
    card = Card(
        device=device,
        engine=engine,
        engine_version=engine_version,
        measured_at=measured_at,
        rows=len(kept),
        features=features,
        work_terms=terms,
        call_us=call_us,
        plain_layouts=dict(plain_layouts),
        states=states,
        implementations=tuple(names),
        regressors=tuple(r for k in kinds.values() for r in k.regressors),
        bandwidth=bandwidth_of(labels.take(kept), settings.interval),
        growth=_growth(tuple(kinds.values()), settings.interval),
        learnt=learnt_ranges(kind_of[kept], matrix[kept]),
        dispatch=tuple(k.dispatch for k in kinds.values() if k.dispatch),
        interval=calibrate(residual, effective, settings.interval),
        dispatch_numbers=settings.dispatch_numbers,
        launch_version=LAUNCH_VERSION * launched,
        work_version=labels.work_version,
    )
    texts = {name: text for k in kinds.values() for name, text in k.texts.items()}
    return DevicePredictor(card, texts), held_out.reset_index(drop=True)


def kinds_with_trees(labels: Labels) -> tuple[str, ...]:
    """Return the kinds that get regressors of their own: all but bandwidth-bound ones seen in single-operator models alone.

    These are few rows of each, of kernels that differ in the bytes that they move: one fit of all is better.
    """
    kind, carried = labels.column("kind"), labels.column("sampler") != SINGLE
    return tuple(sorted(set(kind[carried]) | (set(kind) - BANDWIDTH_BOUND)))


def bandwidth_of(labels: Labels, nominal: float) -> Bandwidth | None:
    """Fit the bandwidth-bound family to labelled kernels; see `fit_bandwidth`."""
    table = ConfigTable.of([KernelConfig.from_json(text) for text in labels.column("config")])
    return fit_bandwidth(table, labels.latency, labels.weight, nominal)


def _growth(kinds: Sequence[Kind], nominal: float) -> float:
    """Return the growth of intervals with the distance from samples, fitted to the rows of all kinds together."""
    beyond, error = (np.concatenate(parts) for parts in ([k.beyond for k in kinds], [k.error for k in kinds]))
    return nine_digits(growth(beyond, error, nominal))


def train_forest_predictor(rows: pd.DataFrame, settings: TrainingSettings, like: DevicePredictor) -> DevicePredictor:
    """Train the baseline: nn-Meter's random forests replace the latency predictors of `like`, whose layouts are kept."""
    labels = read_labels(rows, like.card.dispatch_numbers, like.card.work_version)
    labels = labels.take(np.flatnonzero(labels.column("sampler") != "frozen"))
    matrix = _with_states(labels, like.card.states)
    kind_of, none = labels.column("kind"), (0.0,) * len(like.card.work_terms)
    regressors, texts = [], {d.file: like.texts[d.file] for d in like.card.dispatch if d.file}
    for kind in kinds_with_trees(labels):
        here = np.flatnonzero(kind_of == kind)
        file = file_name(kind, "", texts)
        texts[file] = slim_text(fit_forest(labels.take(here), matrix[here], settings.seeds[0]).model_to_string())
        regressors.append(Regressor(kind=kind, file=file, target="latency", work=none, rows=len(here)))
    return DevicePredictor(like.card.model_copy(update={"regressors": tuple(regressors)}), texts)


def _with_states(labels: Labels, states: tuple[str, ...]) -> Floats:
    """Return the features of the trees: those of the configuration, the input state's code, no implementation."""
    return np.column_stack([labels.matrix, _codes(labels, "input_state", states), np.full(len(labels), -1.0)])


def _codes(labels: Labels, column: str, states: tuple[str, ...]) -> Floats:
    code = {name: float(i) for i, name in enumerate(states)}
    return np.asarray(labels.frame[column].map(code).fillna(0.0), dtype=np.float64)
