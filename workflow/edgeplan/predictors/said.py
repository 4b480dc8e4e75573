"""Holds what an old device's predictor says of models' kernels, in the form that a calibration brings to a new device.

Calibrations of one predictor are many, and what it says of the same models is one: `Recalling` predicts it once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.features import features
from edgeplan.predictors.kernel_tables import KernelTables
from edgeplan.predictors.layouts import Layouts
from edgeplan.predictors.predictor import DevicePredictor, _Costs
from edgeplan.predictors.stand_ins import StandIns

Floats = npt.NDArray[np.float64]
#: Tables whose kernels a predictor recalls: the models that it is judged by, and those that were measured last.
_RECALLED = 2


@dataclass(frozen=True)
class SaidOnce:
    """Holds distinct pairs of a configuration and its latency, and where each is.

    Attributes:
        kind: kind of each pair (d,).
        matrix: features of each (d, features).
        log_us: log latency of each, log us; NaN where the predictor says nothing (d,).
        back: pair of each kernel (n,).
    """

    kind: npt.NDArray[np.object_]
    matrix: Floats
    log_us: Floats
    back: npt.NDArray[np.int64]

    @staticmethod
    def of(table: ConfigTable, row: npt.NDArray[np.int64], us: Floats) -> SaidOnce:
        """Collect the distinct pairs of configurations (positions in `table`) and latencies (us) of kernels (n,)."""
        pairs, back = np.unique(np.column_stack([row, us]), axis=0, return_inverse=True)
        index = pairs[:, 0].astype(np.int64)
        kind = np.array(table.words["kind"], dtype=object)[table.codes["kind"]][index] if len(index) else np.zeros(0, object)
        return SaidOnce(kind, features(table.take(index)), np.log(pairs[:, 1]), back.reshape(-1))


@dataclass(frozen=True)
class Said:
    """Holds layouts and costs of the kernels of some models, as a predictor says.

    Attributes:
        tables: kernels of the models.
        layouts, costs: as `DevicePredictor` predicts them.
    """

    tables: KernelTables
    layouts: Layouts
    costs: _Costs

    @cached_property
    def kernels(self) -> SaidOnce:
        """Return the distinct kernels of all models."""
        return SaidOnce.of(self.tables.configs, self.tables.config, self.costs.kernel_us)

    @cached_property
    def reorders(self) -> SaidOnce:
        """Return the distinct conversions of layouts."""
        shape = self.tables.tensor_shape[self.layouts.reorder_tensor]
        return SaidOnce.of(self.tables.shapes, shape, self.costs.reorder_us)


def say(predictor: DevicePredictor, tables: KernelTables, near: StandIns, *, every_kind: bool) -> Said:
    """Return what a predictor says of kernels; one that recalls is asked once for the same tables."""
    if isinstance(predictor, Recalling) and not every_kind:
        return predictor.say(tables, near)
    return Said(tables, *predictor._kernels(tables, near, every_kind=every_kind))  # noqa: SLF001  a predictor's own kind


@dataclass(frozen=True)
class Recalling(DevicePredictor):
    """Predicts as the predictor that it is of, and recalls what it said of the kernels of the last tables."""

    _said: list[Said] = field(default_factory=list, init=False, repr=False, compare=False)

    @staticmethod
    def of(predictor: DevicePredictor) -> Recalling:
        """Return a predictor that recalls what the given one says."""
        return Recalling(predictor.card, predictor.texts, predictor.packed)

    def say(self, tables: KernelTables, near: StandIns) -> Said:
        """Return what it says of the kernels of whole models; `near` follows from the tables."""
        known = next((said for said in self._said if said.tables is tables), None)
        said = known or Said(tables, *self._kernels(tables, near, every_kind=False))
        self._said[:] = [*(other for other in self._said if other is not said), said][-_RECALLED:]
        return said
