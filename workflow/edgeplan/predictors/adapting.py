"""Makes a predictor of a new device from old devices' predictors and what was measured on the new one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.graph.kernels import KernelConfig
from edgeplan.predictors.adapted import AdaptedPredictor, fitted_to_models, old_member, scratch_member
from edgeplan.predictors.calibration_line import KernelRows
from edgeplan.predictors.card import Card
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels
from edgeplan.predictors.labels import Labels, read_labels
from edgeplan.predictors.layouts import UNKNOWN
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.strata import Strata
from edgeplan.predictors.training import train_predictor

Floats = npt.NDArray[np.float64]
#: From scratch nothing is learnt below so many labels that would help: the old device's calibration stands alone.
LEAST_SCRATCH_LABELS = 200
#: Training within a minute: no search for parameters.
QUICK = TrainingSettings(trials=0, seeds=(0,), folds=3)


@dataclass(frozen=True)
class NewDevice:
    """Holds a new device's identity and what was measured on it.

    Attributes:
        device, engine, engine_version, measured_at: entries of the card.
        call_us: constant cost of an inference.
        plain_layouts: layout of graph inputs and outputs by rank.
        kernels: labelled kernels (columns: see docs/prediction.md, training table).
        models: kernels of measured whole models (m).
        measured_ms: latencies of these models (m,).
    """

    device: str
    engine: str
    engine_version: str
    measured_at: str
    call_us: float
    plain_layouts: dict[str, str]
    kernels: pd.DataFrame
    models: Sequence[ModelKernels]
    measured_ms: Floats


def adapt(new: NewDevice, olds: Sequence[DevicePredictor], scratch: DevicePredictor | None, seed: int) -> AdaptedPredictor:
    """Adapt the predictors of old devices to a new one.

    Args:
        new: the device.
        olds: one of the same engine, or those of all devices that are known.
        scratch: a predictor of the new device's rows alone, where there are enough.
        seed: seed of the folds.
    """
    labels = read_labels(new.kernels) if len(new.kernels) else None
    members = [old_member(old, rows_of(old, labels), seed) for old in olds]
    if scratch is not None:
        members.append(scratch_member(scratch))
    plain = AdaptedPredictor.of(members, _card(new, olds[0].card))
    return fitted_to_models(plain, KernelTables.of(new.models), new.measured_ms)


def from_scratch(new: NewDevice) -> DevicePredictor | None:
    """Train a predictor on the new device's rows alone; None where they are too few."""
    if len(new.kernels) < LEAST_SCRATCH_LABELS:
        return None
    return train_predictor(
        new.kernels,
        QUICK,
        device=new.device,
        engine=new.engine,
        engine_version=new.engine_version,
        call_us=new.call_us,
        plain_layouts=new.plain_layouts,
        measured_at=new.measured_at,
        judged=False,
    )[0]


def rows_of(old: DevicePredictor, labels: Labels | None) -> KernelRows:
    """Return measured kernels with their latency on an old device; those that it predicts nothing of are left out."""
    if labels is None:
        none = np.zeros(0)
        return KernelRows(np.zeros(0, object), np.zeros((0, 0)), none, none, none, np.zeros(0, np.int64))
    factor = labels.frame["kind"].map(old.card.factors).fillna(1.0).to_numpy(float)
    said = _said_us(old, labels.frame) * factor
    rows = KernelRows(
        labels.frame["kind"].to_numpy(object), labels.matrix, np.log(said), labels.latency, labels.weight, labels.group
    )
    return rows.take(np.isfinite(said))


def _said_us(old: DevicePredictor, rows: pd.DataFrame) -> Floats:
    """Return the latency (us) of kernels by an old device, without factors (n,); NaN where it has no predictor of the kind.

    It is asked about the implementation of the row if it knows it, else about the one it mostly takes for the kind.
    """
    configs = ConfigTable.of([KernelConfig.from_json(text) for text in rows["config"]])
    code = {name: number for number, name in enumerate(old.card.implementations)}
    state = {name: number for number, name in enumerate(old.card.states)}
    usual = {d.kind: d.variants[d.by_state[""]] for d in old.card.dispatch}
    implementation, reads = [], []
    for kind, name, layout in zip(rows["kind"], rows["implementation"], rows["input_layout"], strict=True):
        told = usual.get(kind) if name not in code else None
        implementation.append(code.get(told.implementation if told else name, -1))
        reads.append(state.get(told.input_layout if told else layout, UNKNOWN))
    return old.latency_us(configs, np.array(implementation, np.int64), np.array(reads, np.int64))


def strata_of(old: DevicePredictor, models: Sequence[ModelKernels]) -> Strata:
    """Return the strata of the models' kernels, by the time that an old device's predictor gives each."""
    return Strata.of(*old.kernels_us(KernelTables.of(models)))


def _card(new: NewDevice, like: Card) -> Card:
    told = {name: getattr(new, name) for name in ("device", "engine", "engine_version", "measured_at", "call_us")}
    return like.model_copy(update={**told, "rows": len(new.kernels)})
