"""Adapts predictors to a new device: old devices' predictions, brought there, are averaged by kind with what was learnt anew.

Each member predicts a model whole, with its own implementations and layouts; of each kernel the mean of the members' logarithms
counts, weighted by kind: the smaller a member's errors in cross-validation, the more (inverse variance). Factors of kinds and
the interval come from whole models of the new device, as those of other predictors do; where these are few, the quantile of the
interval is that of a small sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.predictors.calibration_line import (
    Calibration,
    KernelRows,
    Lines,
    calibrate_kernels,
    held_out_us,
)
from edgeplan.predictors.card import ADAPTED, Card, Interval
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.distilled import TREES, load_distilled, save_distilled
from edgeplan.predictors.features import features
from edgeplan.predictors.intervals import with_quantile_of
from edgeplan.predictors.kernel_tables import KernelTables
from edgeplan.predictors.kind_factors import Expected, cross_fitted_ms, fit_factors
from edgeplan.predictors.layouts import Layouts
from edgeplan.predictors.predictions import BatchPrediction
from edgeplan.predictors.predictor import DevicePredictor, _Costs
from edgeplan.predictors.stand_ins import StandIns, stand_ins
from edgeplan.support.files import read_json, write_text
from edgeplan.support.rounding import nine_digits

Floats = npt.NDArray[np.float64]
_TEXT, _CARD = "calibration.txt", "card.json"
_REORDER = "reorder"
#: A member's spread (log) of a kind of few rows is that of all its rows: so many rows count for half.
_FEW_ROWS = 10.0
_LEAST_SPREAD = 0.01
#: How far factors of all kinds are expected to lie from 1 together, those of a kind from these, and those of its short and long
#: kernels from each other: few whole models move all kinds, where a factor each would explain every one of them.
_COMMON, _OF_KIND, _OF_LENGTH = 0.03, 0.1, 0.1
#: Error (log) of a whole model, as many models as it is expected of count, and more than which no error counts as.
_MODEL_ERROR, _ERROR_MODELS, _MOST_ERROR = 0.08, 4.0, 0.5
#: From scratch the expected error is twice that at so many labelled kernels, and grows with their inverse.
_SCRATCH_KERNELS = 700.0
#: Spread of kinds that a member says nothing of, while it is judged alone.
_ALONE_SPREAD = 0.3
#: Kernels of less (us) have a factor of their own: those of small models find in caches what longer ones read from memory. Of
#: models that no draw held, 85 % were within 10 % after 60 s instead of 80 (ONNX Runtime), 88 instead of 86 (oneDNN).
_SHORT_US = 200.0
#: Name of the factor of a kind's short kernels, behind the kind.
_SHORT = ", short"
#: Share of the squared errors of models that factors were not fitted on; the rest is of those that they were (Efron's .632).
#: Factors of five sixths of a dozen models are worse than those of all.
_LEFT_OUT = 0.632
#: Square of one more error of a whole model, over what errors of kernels suggest.
_EXPECTED_SQUARE = 0.5
#: A scratch predictor says nothing of a kind below so many rows.
_SCRATCH_ROWS = 30
#: Half width (log) of what no whole model was measured of, over the spread that kernels suggest.
_MOST_HALF_WIDTH = float(np.log(3.0))


@dataclass(frozen=True)
class Member:
    """A member is a predictor of an old device with the calibration that brings it to the new one, or one from scratch.

    Attributes:
        predictor: predictor of the old device, or of the new one.
        calibration: None for one from scratch.
        spread: standard deviation of log errors by kind, out of fold; "" stands for kinds without rows.
    """

    predictor: DevicePredictor
    calibration: Calibration | None
    spread: Mapping[str, float]

    def of(self, kind: str) -> float:
        """Return the spread of a kind; infinite where the member predicts nothing of it."""
        return self.spread.get(kind, self.spread.get("", np.inf))

    def kernels(self, tables: KernelTables, near: StandIns, *, every_kind: bool) -> tuple[Layouts, _Costs]:
        """Return layouts and costs as `DevicePredictor` predicts them, with latencies calibrated to the new device."""
        layouts, costs = self.predictor._kernels(tables, near, every_kind=every_kind)  # noqa: SLF001  a predictor's own kind
        if self.calibration is None:
            return layouts, costs
        kernel_us = _brought(self.calibration, tables.configs, tables.config, costs.kernel_us)
        shape = tables.tensor_shape[layouts.reorder_tensor]
        reorder_us = _brought(self.calibration, tables.shapes, shape, costs.reorder_us)
        return layouts, replace(costs, kernel_us=kernel_us, reorder_us=reorder_us)


def _brought(calibration: Calibration, table: ConfigTable, row: npt.NDArray[np.int64], us: Floats) -> Floats:
    """Bring latencies (us) of configurations (positions in `table`) to the new device; equal pairs are calibrated once."""
    pairs, back = np.unique(np.column_stack([row, us]), axis=0, return_inverse=True)
    index = pairs[:, 0].astype(np.int64)
    kind = np.array(table.words["kind"], dtype=object)[table.codes["kind"]][index] if len(index) else np.zeros(0, object)
    return calibration.latency_us(kind, features(table.take(index)), np.log(pairs[:, 1]))[back.reshape(-1)]


@dataclass(frozen=True)
class AdaptedPredictor(DevicePredictor):
    """Predicts as the mean of its members; its own card, texts and trees are the first member's, but for names and factors."""

    members: tuple[Member, ...] = ()

    @staticmethod
    def of(members: Sequence[Member], card: Card) -> AdaptedPredictor:
        """Make a predictor of some members; the one with the least spread comes first.

        Args:
            members: at least one.
            card: names the device, engine, dates, the number of rows, and the cost of the call.
        """
        ordered = sorted(members, key=lambda m: m.of(""))
        first = ordered[0].predictor
        told = {name: getattr(card, name) for name in ("device", "engine", "engine_version", "measured_at", "rows", "call_us")}
        return AdaptedPredictor(
            first.card.model_copy(update={**told, "factors": {}}), first.texts, first.packed, members=tuple(ordered)
        )

    def _kernels(self, tables: KernelTables, near: StandIns, *, every_kind: bool) -> tuple[Layouts, _Costs]:
        found = [member.kernels(tables, near, every_kind=every_kind) for member in self.members]
        layouts, costs = found[0]
        kinds = tables.configs.words["kind"]
        place = tables.configs.codes["kind"][tables.config]
        weight = np.array([[1 / m.of(kind) ** 2 for kind in kinds] for m in self.members]).reshape(len(self.members), -1)
        said = np.array([np.log(c.kernel_us) for _, c in found])
        trusted = np.where(np.isnan(said), 0.0, weight[:, place])
        with np.errstate(invalid="ignore", divide="ignore"):
            mixed = np.exp((np.nan_to_num(said) * trusted).sum(axis=0) / trusted.sum(axis=0))
        factors = self.card.factors
        long = np.array([factors.get(kind, 1.0) for kind in kinds])
        short = np.array([factors.get(f"{kind}{_SHORT}", factors.get(kind, 1.0)) for kind in kinds])
        return layouts, replace(
            costs,
            kernel_us=mixed * np.where(mixed < _SHORT_US, short[place], long[place]) if len(place) else mixed,
            reorder_us=costs.reorder_us * self.card.factors.get(_REORDER, 1.0),
        )

    def without_factors_of(self, models: KernelTables) -> tuple[BatchPrediction, tuple[str, ...], Floats]:
        """Predict models as plain sums; the names of factors and the time under each, ms (factors, m), come beside."""
        if self.card.factors:
            return replace(self, card=self.card.model_copy(update={"factors": {}})).without_factors_of(models)
        words, count = models.configs.words["kind"], len(models.models)
        layouts, costs = self._kernels(models, stand_ins(models.configs, words), every_kind=False)
        factor = models.configs.codes["kind"][models.config] + len(words) * (costs.kernel_us < _SHORT_US)
        of_kernel = np.repeat(np.arange(count), np.diff(models.kernel_start))
        place = np.concatenate(
            [factor * count + of_kernel, 2 * len(words) * count + models.tensor_model[layouts.reorder_tensor]]
        )
        us = np.nan_to_num(np.concatenate([costs.kernel_us, costs.reorder_us]))
        names = (*words, *(f"{kind}{_SHORT}" for kind in words), _REORDER)
        by_factor = np.bincount(place, weights=us, minlength=len(names) * count).reshape(len(names), count)
        return self._total(models, layouts, costs), names, by_factor / 1e3

    def save(self, folder: Path) -> None:
        """Write the members' predictors, their calibrations, and the card."""
        told = []
        for number, member in enumerate(self.members):
            name = f"member-{number}"
            if member.predictor.texts:
                member.predictor.save(folder / name)
            else:
                save_distilled(member.predictor, folder / name, 0.0)
            calibration = member.calibration
            if calibration is not None and calibration.text:
                write_text(folder / name / _TEXT, calibration.text)
            told.append(
                _Told(
                    folder=name,
                    lines=calibration.lines if calibration is not None else None,
                    kinds=calibration.kinds if calibration is not None else (),
                    spread=dict(member.spread),
                )
            )
        write_text(folder / ADAPTED, _Document(format_version=1, members=tuple(told)).model_dump_json(indent=1) + "\n")
        write_text(folder / _CARD, self.card.model_dump_json(indent=1) + "\n")

    @staticmethod
    def load(folder: Path) -> AdaptedPredictor:
        """Read an adapted predictor from its folder."""
        document = read_json(folder / ADAPTED, _Document, "the list of an adapted predictor's members")
        card = read_json(folder / _CARD, Card, "the card of the predictors")
        members = []
        for told in document.members:
            place = folder / told.folder
            predictor = load_distilled(place) if (place / TREES).is_file() else DevicePredictor.load(place)
            text = (place / _TEXT).read_text() if told.kinds and (place / _TEXT).is_file() else ""
            calibration = Calibration(told.lines, text, told.kinds) if told.lines is not None else None
            members.append(Member(predictor, calibration, told.spread))
        first = members[0].predictor
        return AdaptedPredictor(card, first.texts, first.packed, members=tuple(members))


class _Told(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    folder: Annotated[str, Field(pattern=r"^member-\d{1,2}$")]
    lines: Lines | None
    kinds: tuple[str, ...]
    spread: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]


class _Document(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1]
    members: Annotated[tuple[_Told, ...], Field(min_length=1, max_length=20)]


def spreads(kind: npt.NDArray[np.object_], error: Floats) -> dict[str, float]:
    """Return the root mean square of log errors by kind; kinds of few rows are drawn to that of all rows, under the key "".

    Args:
        kind: kind of each row (n,).
        error: log(measured / predicted), NaN where not known (n,).
    """
    known = np.isfinite(error)
    kind, square = kind[known], np.minimum(error[known] ** 2, 1.0)
    if not len(square):
        return {"": 1.0}
    whole = float(square.mean())
    found = {"": max(float(np.sqrt(whole)), _LEAST_SPREAD)}
    for name in sorted({str(k) for k in kind}):
        own = square[kind == name]
        found[name] = max(float(np.sqrt((own.sum() + _FEW_ROWS * whole) / (len(own) + _FEW_ROWS))), _LEAST_SPREAD)
    return {name: nine_digits(value) for name, value in found.items()}


def old_member(predictor: DevicePredictor, rows: KernelRows, seed: int) -> Member:
    """Return an old device's predictor as a member, calibrated on all rows and judged by its held-out errors."""
    held = held_out_us(rows, seed) if len(rows) else np.zeros(0)
    error = np.log(rows.latency) - np.log(held) if len(rows) else held
    return Member(predictor, calibrate_kernels(rows), spreads(rows.kind, error))


def scratch_member(predictor: DevicePredictor) -> Member:
    """Return a predictor that was trained on the new device alone as a member, judged by its card; no kind of few rows."""
    rows: dict[str, int] = {}
    squares: dict[str, float] = {}
    specific = {r.kind for r in predictor.card.regressors if r.implementation}
    for r in predictor.card.regressors:
        if r.implementation or r.kind not in specific:
            rows[r.kind] = rows.get(r.kind, 0) + r.rows
            squares[r.kind] = squares.get(r.kind, 0.0) + r.rows * r.spread**2
    enough = [kind for kind, count in rows.items() if count >= _SCRATCH_ROWS and squares[kind] > 0]
    found = {kind: max(float(np.sqrt(squares[kind] / rows[kind])), _LEAST_SPREAD) for kind in enough}
    return Member(predictor, None, {kind: nine_digits(value) for kind, value in found.items()})


def expected_factors(names: Sequence[str]) -> Expected:
    """Return what factors of whole models are expected to be: they are tied together, those of a kind most.

    Args:
        names: names of the factors, as `AdaptedPredictor.without_factors_of` gives them (k,).
    """
    kind = np.array([name.removesuffix(_SHORT) for name in names])
    same = kind[:, None] == kind[None]
    return Expected(_COMMON**2 + _OF_KIND**2 * same + _OF_LENGTH**2 * np.eye(len(names)), _MODEL_ERROR, _ERROR_MODELS)


def weighed_by_models(predictor: AdaptedPredictor, models: KernelTables, measured_ms: Floats) -> AdaptedPredictor:
    """Return the predictor with members weighed by errors of whole models that factors were not fitted on, too.

    Errors of kernels that were left out are those of carriers; members err otherwise in models, the one from scratch most.

    Args:
        predictor: without factors.
        models: kernels of the models (m).
        measured_ms: latencies of the models (m,).
    """
    if len(predictor.members) == 1:
        return predictor
    rows, errors = max(predictor.card.rows, 1), []
    for member in predictor.members:
        expected = _MODEL_ERROR * (1.0 if member.calibration else 1.0 + _SCRATCH_KERNELS / rows)
        alone = replace(member, spread={"": _ALONE_SPREAD, **member.spread})
        left_out = errors_left_out(AdaptedPredictor.of([alone], predictor.card), models, measured_ms)
        squares = float((np.clip(left_out, -_MOST_ERROR, _MOST_ERROR) ** 2).sum()) + _ERROR_MODELS * expected**2
        errors.append(float(np.sqrt(squares / (len(left_out) + _ERROR_MODELS))))
    return AdaptedPredictor.of(
        [
            replace(member, spread={kind: nine_digits(spread * error / errors[0]) for kind, spread in member.spread.items()})
            for member, error in zip(predictor.members, errors, strict=True)
        ],
        predictor.card,
    )


def errors_left_out(predictor: AdaptedPredictor, models: KernelTables, measured_ms: Floats) -> Floats:
    """Return log errors of whole models by factors fitted on the others; models are left out that are not predicted whole."""
    if not len(measured_ms):
        return np.zeros(0)
    found, names, by_factor = predictor.without_factors_of(models)
    whole, present = found.coverage == 1, np.asarray(by_factor.any(axis=1))
    expected = expected_factors([name for name, here in zip(names, present, strict=True) if here])
    shares, measured_ms = by_factor[np.ix_(present, whole)], measured_ms[whole]
    return np.asarray(np.log(measured_ms / cross_fitted_ms(shares, predictor.card.call_us / 1e3, measured_ms, expected)))


def fitted_to_models(predictor: AdaptedPredictor, models: KernelTables, measured_ms: Floats) -> AdaptedPredictor:
    """Return the predictor with weights of members, factors of kinds and an interval by whole models of the new device.

    Args:
        predictor: without factors.
        models: kernels of the models (m).
        measured_ms: latencies of the models (m,).
    """
    predictor = weighed_by_models(predictor, models, measured_ms)
    if not len(measured_ms):
        return replace(predictor, card=predictor.card.model_copy(update={"interval": _unmeasured(predictor)}))
    left_out = errors_left_out(predictor, models, measured_ms)
    found, names, by_factor = predictor.without_factors_of(models)
    whole = found.coverage == 1
    by_factor, call_ms, measured_ms = by_factor[:, whole], predictor.card.call_us / 1e3, measured_ms[whole]
    kinds = {name.removesuffix(_SHORT) for name, shares in zip(names, by_factor, strict=True) if shares.any()}
    present = [row for row, name in enumerate(names) if name.removesuffix(_SHORT) in kinds]
    fitted = fit_factors(by_factor[present], call_ms, measured_ms, expected_factors([names[row] for row in present]))
    residual = np.log(measured_ms / found.latency_ms[whole])
    if len(measured_ms) > 1:
        own = np.log(measured_ms / (fitted @ by_factor[present] + call_ms))
        residual = np.sqrt(_LEFT_OUT * left_out**2 + (1 - _LEFT_OUT) * own**2)
    interval = small_sample(_unmeasured(predictor), residual, found.effective_kernels[whole])
    known = {r.kind for r in predictor.card.regressors}
    factors = {
        names[row]: f for row, f in zip(present, fitted.tolist(), strict=True) if names[row].removesuffix(_SHORT) in known
    }
    return replace(predictor, card=predictor.card.model_copy(update={"interval": interval, "factors": factors}))


def small_sample(interval: Interval, residual: Floats, effective: Floats) -> Interval:
    """Return the interval with a quantile that few held-out models support.

    From nine models on (for nine tenths) that is the conformal one; below, the quantile of Student's distribution of a next
    error, given the errors and one more of the size that the interval expects.
    """
    count = len(residual)
    if int(np.ceil((count + 1) * interval.nominal)) <= count:
        return with_quantile_of(interval, residual, effective)
    score = np.abs(residual) / interval.model_copy(update={"quantile": 1.0}).half_width(effective)
    spread = float(np.sqrt(((score**2).sum() + _EXPECTED_SQUARE) / (count + 1)))
    from scipy import stats  # noqa: PLC0415  predicting does without

    wide = float(stats.t.ppf((1 + interval.nominal) / 2, count + 1)) * spread
    return interval.model_copy(update={"quantile": nine_digits(wide), "subjects": count})


def _unmeasured(predictor: AdaptedPredictor) -> Interval:
    """Return the interval that errors of kernels alone suggest, where no whole model was measured."""
    first = predictor.members[0]
    own = first.predictor.card.interval
    spread = min(first.of(""), _MOST_HALF_WIDTH)
    common = max(own.common, spread / 2)
    return own.model_copy(
        update={"common": nine_digits(common), "single": nine_digits(max(own.single, spread)), "quantile": 1.645, "subjects": 0}
    )
