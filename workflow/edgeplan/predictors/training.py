"""Training the predictors of a device from labelled kernels (nn-Meter, sections 5.3 and 6; lipg, section 5.2)."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.errors import FormatError
from edgeplan.predictors.boosting import Clock, Parameters, cross_validate, fit, parameters_for
from edgeplan.predictors.card import Card, Dispatch, Regressor
from edgeplan.predictors.dispatch import learn_dispatch
from edgeplan.predictors.features import FEATURES, WORK_TERMS
from edgeplan.predictors.forest import fit_forest
from edgeplan.predictors.intervals import calibrate, sums_by_subject
from edgeplan.predictors.labels import Floats, Labels, group_folds, read_labels
from edgeplan.predictors.latency import state_names
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.trees import slim_text

log = logging.getLogger(__name__)
#: So many frozen carriers calibrate the intervals on their own.
_CALIBRATING_CARRIERS = 30
_SPLIT_TENTHS = 10  # 7 train, 1 validation, 2 test, as in the paper
_TRAIN_TENTHS, _VALIDATION_TENTHS = 7, 1
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]+")


@dataclass
class _Kind:
    """What training a kind of kernels gives."""

    regressors: list[Regressor]
    texts: dict[str, str]
    dispatch: Dispatch | None
    out_of_fold: Floats
    parameters: dict[str, Parameters]


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
    exclude_samplers: Collection[str] = ("frozen",),
) -> tuple[DevicePredictor, pd.DataFrame]:
    """Train one predictor per kernel kind, and per implementation with enough rows where that one does better.

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
        exclude_samplers: samplers whose rows are never trained on; those of "frozen" are reported on.

    Returns:
        The predictors, and held-out kernels: kind, type, config, measured_us, predicted_us, forest_us, split ("test" of a
        7:1:2 split by subject, "frozen").

    Raises:
        FormatError: the rows do not fit.
    """
    labels = read_labels(rows)
    states = state_names(
        [*labels.frame["input_state"], *labels.frame["input_layout"], *labels.frame["output_layout"], *plain_layouts.values()]
    )
    matrix, reads = _with_states(labels, states), _codes(labels, "input_layout", states)
    kept = np.flatnonzero(~labels.frame["sampler"].isin(list(exclude_samplers)).to_numpy())
    if not len(kept):
        raise FormatError("every labelled kernel is excluded from training", where="training table", next_step="sample kernels")
    frozen = np.flatnonzero((labels.frame["sampler"] == "frozen").to_numpy()) if "frozen" in exclude_samplers else kept[:0]
    clock = Clock.of(settings.max_seconds)
    kind_of = labels.column("kind")
    kinds: dict[str, _Kind] = {}
    quality = []
    out_of_fold = np.full(len(labels), np.nan)
    for kind in sorted(set(kind_of[kept])):
        here = kept[kind_of[kept] == kind]
        share = Clock.of(max(0.0, clock.left()) * _share(kind_of[kept], kind, kinds))
        trained = _train_kind(kind, labels.take(here), matrix[here], reads[here], settings, share)
        kinds[kind] = trained
        out_of_fold[here] = trained.out_of_fold
        quality.append(_quality(trained, labels, (matrix, reads), here, frozen[kind_of[frozen] == kind], settings))
        log.info("trained %s on %d rows", kind, len(here))
    held_out = pd.concat(quality)
    residual, effective = _held_out_sums(labels, held_out[held_out["split"] == "frozen"], kept, out_of_fold)
    names = sorted(set(labels.column("implementation")[kept]) - {""})
    card = Card(
        device=device,
        engine=engine,
        engine_version=engine_version,
        measured_at=measured_at,
        rows=len(kept),
        features=FEATURES,
        work_terms=WORK_TERMS,
        call_us=call_us,
        plain_layouts=dict(plain_layouts),
        states=states,
        implementations=tuple(names),
        regressors=tuple(r for k in kinds.values() for r in k.regressors),
        dispatch=tuple(k.dispatch for k in kinds.values() if k.dispatch),
        interval=calibrate(residual, effective, settings.interval),
    )
    texts = {name: text for k in kinds.values() for name, text in k.texts.items()}
    return DevicePredictor(card, texts), held_out.reset_index(drop=True)


def _held_out_sums(
    labels: Labels, frozen: pd.DataFrame, kept: npt.NDArray[np.int64], out_of_fold: Floats
) -> tuple[Floats, Floats]:
    """Errors of carriers' sums, which calibrate the intervals.

    They are those of the frozen carriers, which look like models and were never trained on; where these are too few, of all
    carriers, out of fold.
    """
    place = labels.frame.index.get_indexer(frozen.index)
    if len(set(labels.group[place])) >= _CALIBRATING_CARRIERS:
        return sums_by_subject(labels.group[place], labels.latency[place], frozen["predicted_us"].to_numpy(float))
    return sums_by_subject(labels.group[kept], labels.latency[kept], out_of_fold[kept])


def train_forest_predictor(
    rows: pd.DataFrame, settings: TrainingSettings, like: DevicePredictor, exclude_samplers: Collection[str] = ("frozen",)
) -> DevicePredictor:
    """The baseline: nn-Meter's random forests in place of the latency predictors of `like`; its layouts are kept."""
    labels = read_labels(rows).where(exclude=exclude_samplers)
    matrix = _with_states(labels, like.card.states)
    kind_of = labels.column("kind")
    regressors, texts = [], {d.file: like.texts[d.file] for d in like.card.dispatch if d.file}
    for kind in sorted(set(kind_of)):
        here = np.flatnonzero(kind_of == kind)
        file = f"{_UNSAFE.sub('_', kind)}.txt"
        texts[file] = slim_text(fit_forest(labels.take(here), matrix[here], settings.seeds[0]).model_to_string())
        regressors.append(Regressor(kind=kind, file=file, target="latency", work=(0.0,) * len(WORK_TERMS), rows=len(here)))
    return DevicePredictor(like.card.model_copy(update={"regressors": tuple(regressors)}), texts)


def _share(kinds: npt.NDArray[np.object_], kind: str, done: Mapping[str, _Kind]) -> float:
    """Share of the tuning time left that a kind may take: its share of the rows not yet trained on."""
    left = ~np.isin(kinds, list(done))
    return float((kinds == kind).sum() / max(1, left.sum()))


def _with_states(labels: Labels, states: tuple[str, ...]) -> Floats:
    """Features of the trees: those of the configuration, the input state's code, no implementation."""
    return np.column_stack([labels.matrix, _codes(labels, "input_state", states), np.full(len(labels), -1.0)])


def _codes(labels: Labels, column: str, states: tuple[str, ...]) -> Floats:
    code = {name: float(i) for i, name in enumerate(states)}
    return np.asarray(labels.frame[column].map(code).fillna(0.0), dtype=np.float64)


def _train_kind(kind: str, labels: Labels, matrix: Floats, reads: Floats, settings: TrainingSettings, clock: Clock) -> _Kind:
    names = labels.column("implementation")
    told = sorted(set(names) - {""})
    # The reorder inserted is known by its two layouts; no state has to be learnt for it.
    learnt = learn_dispatch(kind, labels, matrix, settings) if kind != "reorder" else None
    result = _Kind([], {}, None, np.full(len(labels), np.nan), {})
    if learnt:
        result.dispatch = learnt[0]
        if learnt[0].file:
            result.texts[learnt[0].file] = learnt[1]
    # What a kernel costs depends on the layout it reads, not on the one its inputs were produced in.
    matrix = matrix.copy()
    matrix[:, -2] = reads
    matrix[:, -1] = [told.index(n) if n else -1 for n in names]
    parts = [n for n in told if (names == n).sum() >= settings.min_rows_per_implementation]
    if parts != told or (names == "").any() or not told or len(told) > 1:
        _train_part(result, kind, "", np.arange(len(labels)), labels, matrix, settings, clock)
    for name in parts:
        _train_part(result, kind, name, np.flatnonzero(names == name), labels, matrix, settings, clock)
    return result


def _train_part(
    result: _Kind,
    kind: str,
    implementation: str,
    rows: npt.NDArray[np.int64],
    labels: Labels,
    matrix: Floats,
    settings: TrainingSettings,
    clock: Clock,
) -> None:
    """Train on some rows of a kind; predictors of implementations come after that of the kind and overrule it."""
    part, seen = labels.take(rows), matrix[rows].copy()
    codes: tuple[str, ...] = ()
    if implementation:
        seen[:, -1] = -1.0
    else:
        codes = tuple(sorted(set(part.column("implementation")) - {""}))
    parameters = parameters_for(part, seen, settings, clock)
    held_out = cross_validate(part, seen, parameters, settings)
    shared = result.out_of_fold[rows]
    if implementation and _error(shared, part) < _error(held_out, part):
        return  # the kind's predictor, which has learnt from all implementations, knows this one better
    fitted = fit(part, seen, parameters, settings.seeds)
    file = _file_name(kind, implementation, result.texts)
    result.texts[file] = fitted.text
    result.parameters[implementation] = parameters
    better = np.isfinite(held_out)
    result.out_of_fold[rows[better]] = held_out[better]
    residual = np.log(part.latency / held_out)[better]
    error = (held_out / part.latency - 1)[better]
    tail = (1 - settings.interval) / 2
    known = len(residual) > 0
    result.regressors.append(
        Regressor(
            kind=kind,
            implementation=implementation,
            codes=codes,
            file=file,
            work=tuple(float(w) for w in fitted.work),
            rows=len(part),
            parameters=dict(parameters),
            cv_rmspe=float(np.sqrt(np.mean(error**2))) if known else 0.0,
            cv_within_5pct=float((np.abs(error) <= 0.05).mean()) if known else 0.0,  # noqa: PLR2004
            cv_within_10pct=float((np.abs(error) <= 0.1).mean()) if known else 0.0,  # noqa: PLR2004
            low=float(np.quantile(residual, tail)) if known else 0.0,
            high=float(np.quantile(residual, 1 - tail)) if known else 0.0,
            spread=float(residual.std()) if known else 0.0,
        )
    )


def _error(predicted: Floats, labels: Labels) -> float:
    """Weighted mean error of log latency; infinite where rows have no prediction."""
    if not np.isfinite(predicted).all():
        return float("inf")
    return float(np.average(np.abs(np.log(predicted / labels.latency)), weights=labels.weight))


def _file_name(kind: str, implementation: str, taken: Collection[str]) -> str:
    """`kind[.implementation].txt`, in letters every file system takes."""
    stem = ".".join(_UNSAFE.sub("_", part) for part in (kind, *implementation.split(".")) if part)
    name, number = f"{stem}.txt", 1
    while name in taken:
        number += 1
        name = f"{stem}.{number}.txt"
    return name


def _quality(
    trained: _Kind,
    labels: Labels,
    inputs: tuple[Floats, Floats],
    kept: npt.NDArray[np.int64],
    frozen: npt.NDArray[np.int64],
    settings: TrainingSettings,
) -> pd.DataFrame:
    """Held-out kernels of a kind, predicted by models that saw 7/10 of the subjects (test) or all of them (frozen)."""
    matrix, _ = inputs
    tenth = group_folds(labels.group[kept], _SPLIT_TENTHS, settings.seeds[0])
    train, test = kept[tenth < _TRAIN_TENTHS], kept[tenth >= _TRAIN_TENTHS + _VALIDATION_TENTHS]
    parts = [("test", train, test), ("frozen", kept, frozen)]
    tables = []
    for split, seen, held in parts:
        if len(seen) and len(held):
            forest = fit_forest(labels.take(seen), matrix[seen], settings.seeds[0])
            predicted = _predict_held(trained, labels, inputs, seen, held, settings)
            table = labels.frame.iloc[held][["kind", "config"]].copy()
            table["type"] = (
                [_type_of(text) for text in table["config"]] if "type" not in labels.frame else labels.frame.iloc[held]["type"]
            )
            table["measured_us"], table["predicted_us"] = labels.latency[held], predicted
            table["forest_us"], table["split"] = np.maximum(forest.predict(matrix[held]), 0.0), split
            tables.append(table)
    columns = ["kind", "type", "config", "measured_us", "predicted_us", "forest_us", "split"]
    return pd.concat(tables)[columns] if tables else pd.DataFrame(columns=columns)


def _predict_held(
    trained: _Kind,
    labels: Labels,
    inputs: tuple[Floats, Floats],
    seen: npt.NDArray[np.int64],
    held: npt.NDArray[np.int64],
    settings: TrainingSettings,
) -> Floats:
    """Predictions (us) of held-out rows by predictors of their implementation, trained anew on the rows seen."""
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
        result[asked] = model.predict(sides[1])
    return result


def _type_of(config: str) -> str:
    from edgeplan.graph.kernels import KernelConfig  # noqa: PLC0415

    return KernelConfig.from_json(config).type
