"""Takes the predictors of shipped devices as a prior for a device of which few kernels were measured.

The shipped predictors say what a kernel takes on their machines. A correction, learnt from the device's
own rows, brings this to the device (`edgeplan.predictors.correction`). Kernels that were sampled on the prior
devices, with what the corrected prior says of them, then are further rows to learn from, of low weight.

Only own rows that a model may see correct the prior. So held-out own rows tell honestly what it is good for,
and each predictor takes as much of it as helps there: nothing, where it does not (`edgeplan.predictors.support`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.graph.kernels import KernelConfig
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.distilled import load_distilled
from edgeplan.predictors.features import FEATURES, features
from edgeplan.predictors.labels import Floats, Labels
from edgeplan.predictors.launches import launch_features
from edgeplan.predictors.layouts import UNKNOWN
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.sizes import Places, nearest_row, places
from edgeplan.predictors.support import Support
from edgeplan.support.frames import read_parquet
from edgeplan.workspace import KERNELS, SHIPPED, shipped_folder

#: What is told of a kernel that was sampled on a prior device.
COLUMNS = ("kind", "config", "implementation", "input_layout")
_HOW = ["implementation", "input_layout"]
#: Further rows of a kind at most: training takes time, and a shape is known from less.
_MOST_ROWS = 2000


@dataclass(frozen=True)
class Prior:
    """A prior holds the knowledge of other devices: their predictors and sampled kernels.

    Attributes:
        predictors: latency predictors of the prior devices.
        kernels: kernels that were sampled on them (`COLUMNS`).
    """

    predictors: tuple[DevicePredictor, ...]
    kernels: pd.DataFrame

    def says(self, rows: pd.DataFrame) -> Floats:
        """Return the log latency (us) of kernels by each prior device (n, devices); NaN where it has no predictor of the kind.

        A device is asked about the implementation of the row if it knows it, else about the one it mostly takes for the kind.

        Args:
            rows: `COLUMNS` (n).
        """
        configs = ConfigTable.of([KernelConfig.from_json(text) for text in rows["config"]])
        return np.column_stack([_said(predictor, configs, rows) for predictor in self.predictors])

    def support(
        self, kind: str, labels: Labels, codes: Mapping[str, Mapping[str, float]], numbers: Mapping[str, int]
    ) -> Support | None:
        """Return the prior's support for the rows of a kind; None if it knows nothing of the kind.

        Args:
            kind: kind of the kernels.
            labels: own rows of the kind (n).
            codes: by column (`input_layout`, `implementation`), what its values are in the matrix of the trees.
            numbers: numbers of the device that launches follow from; none where kernels are not dispatched.
        """
        own = labels.frame
        kernels = _chosen(self.kernels[self.kernels["kind"] == kind], own)
        if kernels.empty:
            return None
        table = ConfigTable.of([KernelConfig.from_json(text) for text in kernels["config"]])
        matrix = features(table, labels.work_version)
        kernels = _as_on(own, labels.matrix, kernels, matrix)
        if numbers:
            layouts, implementations = kernels["input_layout"].tolist(), kernels["implementation"].tolist()
            matrix = np.column_stack([matrix, launch_features(table, layouts, implementations, numbers)])
        said, further = self.says(own), self.says(kernels)
        known = np.asarray(np.isfinite(np.vstack([said, further])).all(axis=0))
        if not known.any():
            return None
        none = {"input_layout": float(UNKNOWN), "implementation": -1.0}
        extra = [kernels[name].map(codes[name]).fillna(code).to_numpy(float) for name, code in none.items()]
        return Support(
            said[:, known],
            np.column_stack([matrix, *extra]),
            further[:, known],
            kernels["implementation"].to_numpy(dtype=object),
            self._expected(own["implementation"], known),
        )

    def _expected(self, implementation: pd.Series, among: npt.NDArray[np.bool_]) -> Floats:
        """Weigh each prior device by its knowledge of the own rows' implementations; equally if none has any."""
        known = np.array([implementation.isin([*p.card.implementations]).mean() for p in self.predictors])[among]
        return np.asarray(known / known.sum() if known.any() else np.full(len(known), 1 / len(known)), dtype=np.float64)


def shipped_prior(names: Sequence[str], folder: Path = SHIPPED) -> Prior | None:
    """Load the prior of shipped devices; None for no names."""
    predictors, kernels = [], []
    for name in names:
        path = shipped_folder(name, folder) / KERNELS
        predictors.append(load_distilled(path.parent).without_factors())
        kernels.append(read_parquet(path, *COLUMNS)[list(COLUMNS)])
    return Prior(tuple(predictors), pd.concat(kernels, ignore_index=True)) if names else None


def _said(predictor: DevicePredictor, configs: ConfigTable, rows: pd.DataFrame) -> Floats:
    card = predictor.card
    code = {name: number for number, name in enumerate(card.implementations)}
    state = {name: number for number, name in enumerate(card.states)}
    usual = {d.kind: d.variants[d.by_state[""]] for d in card.dispatch}
    implementation, reads = [], []
    for kind, name, layout in zip(rows["kind"], rows["implementation"], rows["input_layout"], strict=True):
        told = usual.get(kind) if name not in code else None
        implementation.append(code.get(told.implementation if told else name, -1))
        reads.append(state.get(told.input_layout if told else layout, UNKNOWN))
    return np.log(predictor.latency_us(configs, np.array(implementation, np.int64), np.array(reads, np.int64)))


def _known(kernels: pd.DataFrame, own: pd.DataFrame) -> pd.Series:
    """Return a mask of the kernels with an implementation and layouts that the device has, as kernels of its engine do (m,)."""
    pairs = set(own[_HOW].itertuples(index=False, name=None))
    return pd.Series([pair in pairs for pair in kernels[_HOW].itertuples(index=False, name=None)], kernels.index, dtype=bool)


def _chosen(kernels: pd.DataFrame, own: pd.DataFrame) -> pd.DataFrame:
    """Return distinct kernels, not too many; those of the device's engine come before others."""
    known = _known(kernels, own)
    kernels = pd.concat([kernels[known], kernels[~known]]).drop_duplicates("config")
    of_engine = int(known[kernels.index].sum())
    if len(kernels) <= _MOST_ROWS:
        return kernels
    return (kernels[:of_engine] if of_engine >= _MOST_ROWS else kernels).sample(_MOST_ROWS, random_state=0)


def _as_on(own: pd.DataFrame, own_matrix: Floats, kernels: pd.DataFrame, matrix: Floats) -> pd.DataFrame:
    """Return kernels as the device would run them: as they are, or as it runs its kernel nearest in size."""

    def at(of: Floats) -> Places:
        return places(lambda name: of[:, FEATURES.index(name)])

    like = own[_HOW].iloc[nearest_row(at(matrix), at(own_matrix))].set_axis(kernels.index)
    return kernels.assign(**kernels[_HOW].where(_known(kernels, own), like))
