"""Predicts whole models: the sum over kernels, layout conversions and the call (nn-Meter, section 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgeplan.errors import FormatError, PredictionError
from edgeplan.graph.element_types import NEXT_STEP, of_type, whole_type
from edgeplan.predictors.card import Card, known_sizes
from edgeplan.predictors.configs import ConfigTable, Integers
from edgeplan.predictors.familiarity import unfamiliar
from edgeplan.predictors.features import LABELLED_TYPES
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels
from edgeplan.predictors.latency import NO_PREDICTOR, Evaluator
from edgeplan.predictors.layouts import Layouts, propagate
from edgeplan.predictors.packing import check_features, digest_of, pack, read_pack, width_of, write_pack
from edgeplan.predictors.predictions import BatchPrediction, KernelPrediction, ModelPrediction
from edgeplan.predictors.sizes import TrainedSizes, places
from edgeplan.predictors.stand_ins import FACTOR, StandIns, stand_ins
from edgeplan.predictors.trees import Forest
from edgeplan.support.files import read_json, write_text

Floats = npt.NDArray[np.float64]
_CARD, _PACK = "card.json", "packed.npz"
_REORDER = "reorder"
#: What is named as predicting kernels by the bytes that they move.
BYTES = "bytes"
#: Of a model: what takes less may be off by its own size several times, and nobody needs to be warned.
_NEGLIGIBLE = 1e-3


@dataclass(frozen=True)
class DevicePredictor:
    """Predicts the latency of kernels and models on one device.

    Attributes:
        card: description of the predictors.
        texts: LightGBM text models by file name.
        packed: trees of the text models in the order of `card.files()`, if already packed.
    """

    card: Card
    texts: Mapping[str, str]
    packed: Forest | None = None

    @cached_property
    def forest(self) -> Forest:
        """Return the trees of all models, in the order of `card.files()`."""
        return self.packed or pack(self.card, self.texts, "memory")

    @cached_property
    def _evaluator(self) -> Evaluator:
        return Evaluator(self.card, self.forest)

    @cached_property
    def _sizes(self) -> TrainedSizes:
        return known_sizes(self.card.regressors, self.card.growth)

    @staticmethod
    def load(folder: Path) -> DevicePredictor:
        """Read predictors from a folder."""
        card = read_json(folder / _CARD, Card, "the card of the predictors")
        retrain = "train the predictors again with this version of edgeplan"
        check_features(card, str(folder / _CARD), retrain)
        texts = {}
        for name in card.files():
            try:
                texts[name] = (folder / name).read_text()
            except (OSError, UnicodeDecodeError) as error:
                raise FormatError(f"cannot read a text model: {error}", where=str(folder / name), next_step=retrain) from error
        forest = read_pack(folder / _PACK, digest_of(card, texts), width_of(card))
        return DevicePredictor(card, texts, forest or pack(card, texts, str(folder)))

    def save(self, folder: Path) -> None:
        """Write card.json, the text models and packed.npz; models of an earlier training are removed."""
        for name, text in self.texts.items():
            write_text(folder / name, text)
        write_pack(folder / _PACK, self.forest, digest_of(self.card, self.texts))
        write_text(folder / _CARD, self.card.model_dump_json(indent=1) + "\n")
        for stale in set(folder.glob("*.txt")) - {folder / name for name in self.texts}:
            stale.unlink()

    def predict(self, model: ModelKernels, *, allow_partial: bool = False, near_kinds: bool = True) -> ModelPrediction:
        """Predict the latency of one model, kernel by kernel.

        Args:
            model: its kernels.
            allow_partial: leave out kernels that cannot be predicted.
            near_kinds: predict kernels of kinds that were not measured, too: bandwidth-bound ones by the bytes that they move,
                others as those of a near kind, if there is one with a predictor.
        """
        tables = KernelTables.of([model])
        near = stand_ins(tables.configs, self._evaluator.kinds if near_kinds else tables.configs.words["kind"])
        layouts, costs = self._kernels(tables, near, every_kind=near_kinds)
        substitutes = self._substitutes(model, near, costs)
        missing = tuple(model.names[i] for i in np.flatnonzero(np.isnan(costs.kernel_us)))
        missing += tuple(f"layout conversion of tensor {t}" for t in layouts.reorder_tensor[np.isnan(costs.reorder_us)])
        if missing and not allow_partial:
            i = int(np.flatnonzero(np.isnan(costs.kernel_us))[0]) if np.isnan(costs.kernel_us).any() else -1
            if types := whole_type(config.dtype for config in model.configs):
                raise PredictionError(of_type(types), where=f"model {model.name}", next_step=NEXT_STEP)
            what = (model.configs[i].kind, model.configs[i].dtype) if i >= 0 else (_REORDER, "")
            raise _no_predictor(what, model.name, missing[0], self.card.device)
        batch = self._total(tables, layouts, costs)
        total_ms = float(batch.latency_ms[0])
        guessed = [(s, us / 1e3 / total_ms) for s, us in zip(substitutes, costs.kernel_us.tolist(), strict=True) if s]
        return ModelPrediction(
            total_ms,
            float(batch.low_ms[0]) * (1 + sum(share * math.expm1(s.low) for s, share in guessed)),
            float(batch.high_ms[0]) * (1 + sum(share * math.expm1(s.high) for s, share in guessed)),
            self.card.call_us,
            float(batch.coverage[0]),
            missing,
            self._unfamiliar(model, costs),
            tuple(
                (name, config.kind, substitute.name)
                for name, config, substitute in zip(model.names, model.configs, substitutes, strict=True)
                if substitute
            ),
            sum(share for _, share in guessed),
            self._breakdown(model, layouts, costs, total_ms, substitutes),
        )

    def predict_many(self, tables: KernelTables, *, allow_partial: bool = False) -> BatchPrediction:
        """Predict the latencies of many models."""
        near = stand_ins(tables.configs, tables.configs.words["kind"])
        layouts, costs = self._kernels(tables, near, every_kind=False)
        bad = np.flatnonzero(np.isnan(costs.kernel_us))
        if len(bad) and not allow_partial:
            model = int(np.searchsorted(tables.kernel_start, bad[0], side="right")) - 1
            row = int(tables.config[bad[0]])
            what = tables.configs.word("kind", row), tables.configs.word("dtype", row)
            raise _no_predictor(what, tables.models[model], f"kernel {bad[0] - tables.kernel_start[model]}", self.card.device)
        if np.isnan(costs.reorder_us).any() and not allow_partial:
            tensor = int(layouts.reorder_tensor[np.isnan(costs.reorder_us)][0])
            name = tables.models[tables.tensor_model[tensor]]
            raise _no_predictor((_REORDER, ""), name, f"tensor {tensor}", self.card.device)
        return self._total(tables, layouts, costs)

    def kernels_us(self, tables: KernelTables) -> tuple[npt.NDArray[np.object_], Floats]:
        """Return kind and latency (us) of all kernels and layout conversions of models, NaN for those without a predictor (n,).

        Kernels of kinds that were not measured are predicted, too, as `predict` does.
        """
        layouts, costs = self._kernels(tables, stand_ins(tables.configs, self._evaluator.kinds), every_kind=True)
        kind = np.array(tables.configs.words["kind"], dtype=object)[tables.configs.codes["kind"][tables.config]]
        reorders = np.full(len(layouts.reorder_tensor), _REORDER, dtype=object)
        return np.concatenate([kind, reorders]), np.concatenate([costs.kernel_us, costs.reorder_us])

    def latency_us(self, configs: ConfigTable, implementation: Integers, reads: Integers) -> Floats:
        """Predict kernels on their own, without factors of whole models, us (n,): see `Evaluator.latency`."""
        return self._evaluator.latency(configs, implementation, reads)[0]

    def without_factors(self) -> DevicePredictor:
        """Return these predictors with plain sums over kernels, without factors of kinds."""
        return DevicePredictor(self.card.model_copy(update={"factors": {}}), self.texts, self.packed)

    def with_kinds_of(self, other: DevicePredictor, kinds: Sequence[str]) -> DevicePredictor:
        """Return these predictors with the latency predictors of some kinds taken from another training of the same device."""
        mine = tuple(r for r in self.card.regressors if r.kind not in kinds)
        theirs = tuple(r for r in other.card.regressors if r.kind in kinds)
        implementations = (*self.card.implementations, *other.card.implementations)
        card = self.card.model_copy(
            update={"regressors": mine + theirs, "implementations": tuple(dict.fromkeys(implementations))},
        )
        texts = {name: (other.texts if name in {r.file for r in theirs} else self.texts)[name] for name in card.files()}
        return DevicePredictor(card, texts)

    def _substitutes(self, model: ModelKernels, near: StandIns, costs: _Costs) -> list[_Substitute | None]:
        """Find a substitute for each kernel whose kind has no predictor; None for the others, or where there is none."""
        fit, found = self.card.bandwidth, list[_Substitute | None]()
        for config, us, regressor in zip(model.configs, costs.kernel_us, costs.kernel_regressor, strict=True):
            if np.isnan(us):
                found.append(None)
            elif regressor == NO_PREDICTOR and fit is not None:
                measured = config.kind in fit.levels and config.dtype in LABELLED_TYPES
                found.append(None if measured else _Substitute(BYTES, fit.low, fit.high))
            else:
                other = near.kinds.get(config.kind)
                found.append(_Substitute(other, -float(np.log(FACTOR)), float(np.log(FACTOR))) if other else None)
        return found

    def _kernels(self, tables: KernelTables, near: StandIns, *, every_kind: bool) -> tuple[Layouts, _Costs]:
        """Return layouts and costs of all kernels; `every_kind`: of bandwidth-bound kinds that were not measured, too."""
        evaluator, states = self._evaluator, self.card.states
        asked, tables = tables, replace(tables, configs=near.table)
        layouts = propagate(tables, evaluator.layouts(tables.configs))
        code = {name: i for i, name in enumerate(self.card.implementations)}
        # Choice -1 (no predictor) reads the appended last entry.
        told = np.array([*(code.get(v.implementation, -1) for _, v in evaluator.choices), -1])
        pairs, inverse = np.unique(tables.config * len(told) + layouts.choice + 1, return_inverse=True)
        picked = pairs % len(told) - 1
        reads = evaluator.layout_codes[0][picked]
        kernel_us, kernel_regressor = evaluator.latency(tables.configs.take(pairs // len(told)), told[picked], reads)
        way = layouts.reorder_from * len(states) + layouts.reorder_to
        shape = tables.tensor_shape[layouts.reorder_tensor]
        _, first, back = np.unique(shape * len(states) ** 2 + way, return_index=True, return_inverse=True)
        how = np.array([code.get(f"{a}>{b}", -1) for a in states for b in states])
        reorder_us, reorder_regressor = evaluator.latency(
            tables.shapes.take(shape[first]), how[way[first]], layouts.reorder_from[first]
        )
        distance = self._sizes.distance(places(tables.configs.take(pairs // len(told)).column), kernel_regressor)
        factor = np.array([self.card.factors.get(kind, 1.0) for kind in tables.configs.words["kind"]])
        of_kernel = kernel_us[inverse] * factor[tables.configs.codes["kind"][tables.config]]
        moved_us = self._by_bytes(asked.configs, every_kind=every_kind)[asked.config]
        moves = ~np.isnan(moved_us)
        return layouts, _Costs(
            np.where(moves, moved_us, of_kernel),
            np.where(moves, NO_PREDICTOR, kernel_regressor[inverse]),
            np.where(moves, 0.0, distance[inverse]),
            reorder_us[back] * self.card.factors.get(_REORDER, 1.0),
            reorder_regressor[back],
        )

    def _by_bytes(self, configs: ConfigTable, *, every_kind: bool) -> Floats:
        """Predict the latency (us) of bandwidth-bound kinds without a regressor, and of integers; NaN for others (n,)."""
        fit = self.card.bandwidth
        if fit is None:
            return np.full(len(configs), np.nan)
        without = [k for k in configs.words["kind"] if k not in self._evaluator.kinds and (every_kind or k in fit.levels)]
        found = fit.latency_us(configs) * configs.mapped("kind", dict.fromkeys(without, 1.0), np.nan)
        return np.where(np.isnan(found), fit.latency_us(configs, integers=True), found) if every_kind else found

    def _total(self, tables: KernelTables, layouts: Layouts, costs: _Costs) -> BatchPrediction:
        count = len(tables.models)
        of_kernel = np.repeat(np.arange(count), np.diff(tables.kernel_start))
        model = np.concatenate([of_kernel, tables.tensor_model[layouts.reorder_tensor]])
        us = np.concatenate([costs.kernel_us, costs.reorder_us])
        covered = np.nan_to_num(us)
        total = np.bincount(model, weights=covered, minlength=count)
        squares = np.bincount(model, weights=covered**2, minlength=count)
        effective: Floats = total**2 / np.maximum(squares, 1e-12)
        kinds = tuple(dict.fromkeys((*tables.configs.words["kind"], _REORDER)))
        kind = np.concatenate(
            [tables.configs.codes["kind"][tables.config], np.full(len(layouts.reorder_tensor), kinds.index(_REORDER))]
        )
        by_kind = np.bincount(kind * count + model, weights=covered, minlength=len(kinds) * count).reshape(len(kinds), count)
        items = np.maximum(np.bincount(model, minlength=count), 1)
        latency: Floats = np.asarray((total + self.card.call_us) / 1e3, dtype=np.float64)
        # Errors of kernels far from all samples need not average out: what their intervals grow by is summed.
        grown = (self._widening(costs) - 1.0) * self._half_widths[costs.kernel_regressor]
        further_us = np.bincount(of_kernel, weights=np.nan_to_num(costs.kernel_us) * grown, minlength=count)
        further: Floats = further_us / np.maximum(total, 1e-12)
        apart = self._apart(tables, costs, of_kernel) / np.maximum(total, 1e-12)
        width: Floats = np.exp(np.sqrt(self.card.interval.half_width(effective) ** 2 + further**2 + (apart**2).sum(axis=0)))
        coverage: Floats = np.bincount(model, weights=~np.isnan(us), minlength=count) / items
        return BatchPrediction(
            tables.models, latency, latency / width, latency * width, coverage, effective, by_kind / 1e3, kinds
        )

    def _widening(self, costs: _Costs) -> Floats:
        """Return the factors by which the intervals of kernels grow with the distance from samples, 1 and more (kernels,).

        No interval grows beyond that of a kind that was never measured: nearer kinds and sizes cannot be known worse.
        """
        half = self._half_widths[costs.kernel_regressor]
        most = np.maximum(1.0, np.log(FACTOR) / np.maximum(half, 1e-12))
        return np.asarray(np.minimum(self._sizes.widening(costs.distance, costs.kernel_regressor), most))

    def _apart(self, tables: KernelTables, costs: _Costs, model: Integers) -> Floats:
        """Return what kernels of a kind that no calibrating model holds may be off by together, us (kinds, models).

        The interval's size is that of whole models of other kinds, which says nothing of these: theirs is that of their own
        held-out kernels, which err together, and, where a few rows say more, that of a kind that was never measured.
        """
        kinds, count = tables.configs.words["kind"], len(tables.models)
        if self.card.interval.quantile_of != "models":  # carriers, which hold all kinds, have calibrated it
            return np.zeros((len(kinds), count))
        apart = np.array([kind not in self.card.factors for kind in kinds], dtype=np.float64)
        kind = tables.configs.codes["kind"][tables.config]
        half = np.minimum(self._half_widths[costs.kernel_regressor], np.log(FACTOR))
        off = np.nan_to_num(costs.kernel_us) * half * apart[kind]
        summed = np.bincount(kind * count + model, weights=off, minlength=len(kinds) * count)
        return np.asarray(summed.reshape(len(kinds), count))

    @cached_property
    def _half_widths(self) -> Floats:
        """Return the half width of each regressor's interval, as a logarithm; the last entry serves regressor -1: none."""
        return np.array([*((r.high - r.low) / 2 for r in self.card.regressors), 0.0])

    def _unfamiliar(self, model: ModelKernels, costs: _Costs) -> tuple[tuple[str, str], ...]:
        us = np.nan_to_num(costs.kernel_us)
        matters = us >= _NEGLIGIBLE * us.sum()
        forms = [form if of else "" for form, of in zip(unfamiliar(model.configs, self.card.learnt), matters, strict=True)]
        sizes = self._sizes.far_off(costs.distance, np.where(matters, costs.kernel_regressor, NO_PREDICTOR))
        told = (", ".join(filter(None, both)) for both in zip(forms, sizes, strict=True))
        return tuple((name, why) for name, why in zip(model.names, told, strict=True) if why)

    def _breakdown(
        self, model: ModelKernels, layouts: Layouts, costs: _Costs, total_ms: float, substitutes: Sequence[_Substitute | None]
    ) -> tuple[KernelPrediction, ...]:
        writer = dict(enumerate(model.producers))
        states, choices = self.card.states, self._evaluator.choices
        spreads = self._spreads(costs, substitutes)
        lines = [
            (name, config.kind, config.type, choices[choice][1].implementation if regressor >= 0 else "", us, spread)
            for name, config, choice, regressor, us, spread in zip(
                model.names, model.configs, layouts.choice, costs.kernel_regressor, costs.kernel_us, spreads, strict=True
            )
        ] + [
            (
                f"{model.names[writer[tensor]]} (output)" if writer[tensor] >= 0 else "graph input",
                _REORDER,
                _REORDER,
                f"{states[source]}>{states[target]}",
                us,
                (self.card.regressors[regressor].low, self.card.regressors[regressor].high) if regressor >= 0 else (0.0, 0.0),
            )
            for tensor, source, target, us, regressor in zip(
                layouts.reorder_tensor.tolist(),
                layouts.reorder_from,
                layouts.reorder_to,
                costs.reorder_us,
                costs.reorder_regressor,
                strict=True,
            )
        ]
        return tuple(
            KernelPrediction(
                name,
                kind,
                kernel_type,
                implementation,
                float(us),
                float(us / (1e3 * total_ms)),
                float(us * np.exp(low)),
                float(us * np.exp(high)),
            )
            for name, kind, kernel_type, implementation, us, (low, high) in lines
            if not np.isnan(us)
        )

    def _spreads(self, costs: _Costs, substitutes: Sequence[_Substitute | None]) -> list[tuple[float, float]]:
        """Return the relative errors of each kernel, below and above, as logarithms."""
        fit, found = self.card.bandwidth, []
        wider = self._widening(costs)
        for regressor, grown, substitute in zip(costs.kernel_regressor, wider.tolist(), substitutes, strict=True):
            low, high = (substitute.low, substitute.high) if substitute else (0.0, 0.0)
            if regressor >= 0:
                own = self.card.regressors[regressor]
                low, high = low + grown * own.low, high + grown * own.high
            elif fit is not None and substitute is None:
                low, high = fit.own_low, fit.own_high
            found.append((low, high))
        return found


@dataclass(frozen=True)
class _Substitute:
    """Names what answers for a kernel whose kind was not measured, and its error as logarithms."""

    name: str
    low: float
    high: float


@dataclass(frozen=True)
class _Costs:
    """Holds latencies in us (NaN: no predictor), the regressor behind each, and the distance to its samples (octaves)."""

    kernel_us: Floats
    kernel_regressor: Integers
    distance: Floats
    reorder_us: Floats
    reorder_regressor: Integers


def _no_predictor(what: tuple[str, str], model: str, node: str, device: str) -> PredictionError:
    """Return the error for a kernel whose kind and element type have no predictor; type "" stands for any type."""
    kind, dtype = what
    if dtype and dtype not in LABELLED_TYPES:
        known = ", ".join(sorted(LABELLED_TYPES))
        return PredictionError(
            f"device {device} has no predictor for kernels of element type {dtype}, only of {known}",
            where=f"model {model}, node {node}",
            next_step=f"export the model in {known}, or allow a partial prediction",
        )
    return PredictionError(
        f"device {device} has no predictor for kernels of kind {kind}",
        where=f"model {model}, node {node}",
        next_step="measure kernels of this kind and train again, or allow a partial prediction",
    )
