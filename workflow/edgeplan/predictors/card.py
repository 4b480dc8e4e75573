"""Describes a device's predictors by a card: what they are, what they were trained on, how far to trust them (card.json)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.predictors.bandwidth import Bandwidth
from edgeplan.predictors.familiarity import Checked
from edgeplan.predictors.sizes import TrainedSizes, unpacked

#: Beside the card of an adapted predictor: the list of what it is made of.
ADAPTED = "adapted.json"
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*\.txt")

Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Regressor(_Strict):
    """Describes one latency predictor: a linear work model, corrected by trees.

    Latency (us) = work x exp(trees) for target "log_ratio"; trees alone for target "latency".

    Attributes:
        kind: kernel kind.
        implementation: the implementation it is for; "" for one of the whole kind.
        codes: implementations by the code its trees know them by, if it is one of the whole kind.
        file: its text model.
        target: quantity that the trees predict.
        work: coefficients of `WORK_TERMS`, us per unit.
        rows: training rows.
        parameters: tuned parameters of the trees.
        cv_rmspe: root mean square relative error, out of fold.
        cv_within_5pct, cv_within_10pct: shares of rows within that error, out of fold.
        low, high: quantiles of log(measured / predicted), out of fold.
        spread: standard deviation of the same. These figures, and the `cv_` ones, of an implementation's predictor are of what
            is predicted: its geometric mean with that of the kind.
        samples: distinct sizes of its training rows (see `sizes.packed`); "" for a regressor that does not tell.
        near, far: distances from the nearest sample, octaves: from which intervals grow, and beyond which is warned.
    """

    kind: str
    implementation: str = ""
    codes: tuple[str, ...] = ()
    file: Annotated[str, Field(pattern=rf"^{_FILE.pattern}$")]
    target: Literal["log_ratio", "latency"] = "log_ratio"
    work: tuple[Finite, ...]
    rows: int
    parameters: dict[str, float | int | str] = {}
    cv_rmspe: Finite = 0.0
    cv_within_5pct: Finite = 0.0
    cv_within_10pct: Finite = 0.0
    low: Finite = 0.0
    high: Finite = 0.0
    spread: Finite = 0.0
    samples: str = ""
    near: Annotated[Finite, Field(ge=0)] = 0.0
    far: Annotated[Finite, Field(ge=0)] = 0.0


class ImplementationLayouts(_Strict):
    """Names an implementation with the layouts that it reads and writes."""

    implementation: str
    input_layout: str
    output_layout: str


class KindDispatch(_Strict):
    """Tells which implementation a kind of kernel gets, and in which layouts.

    Attributes:
        kind: kernel kind.
        variants: the classes, in order of the classifier's outputs.
        file: text model of the classifier, "" if the state of the inputs alone decides.
        by_state: the most frequent variant (its position) by state of the inputs; key "" for all states.
        accuracy: share of rows classified right, out of fold.
    """

    kind: str
    variants: Annotated[tuple[ImplementationLayouts, ...], Field(min_length=1)]
    file: Annotated[str, Field(pattern=rf"^({_FILE.pattern})?$")] = ""
    by_state: dict[str, Annotated[int, Field(ge=0)]]
    accuracy: Finite = 1.0


class Interval(_Strict):
    """Bounds a model's latency by latency x exp(+- quantile x sqrt(common ** 2 + single ** 2 / effective kernels)).

    Attributes:
        nominal: coverage aimed at.
        common: part of the relative error that all kernels of a model share.
        single: part that kernels have of their own.
        quantile: conformal quantile of the scaled residuals.
        subjects: held-out models behind the quantile.
        quantile_of: whether these are whole models or carriers.
    """

    nominal: Finite
    common: Annotated[Finite, Field(ge=0)]
    single: Annotated[Finite, Field(ge=0)]
    quantile: Annotated[Finite, Field(ge=0)]
    subjects: int
    quantile_of: Literal["carriers", "models"] = "carriers"

    def half_width(self, effective_kernels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Return the half width of the interval of log latency, from the effective number of kernels of each model (m,)."""
        spread = np.sqrt(self.common**2 + self.single**2 / np.maximum(effective_kernels, 1.0))
        return np.asarray(self.quantile * spread, dtype=np.float64)


class Card(_Strict):
    """Holds everything about the predictors of a device but their trees.

    Attributes:
        format_version: version of this document.
        device, engine, engine_version: the device and engine that were measured.
        measured_at: date of the measurements, as given.
        rows: training rows, all kinds.
        features: names of the features, in order; the trees also see the input state and the implementation.
        work_terms: names of the terms of the work model.
        call_us: constant cost of one inference.
        plain_layouts: layout of graph inputs and outputs by rank.
        states: codes of the states of a kernel's inputs.
        implementations: all implementations seen.
        regressors, dispatch, interval: the parts.
        learnt: by kernel kind, least and largest value of what `familiarity` checks among the training rows.
        growth: by what share of itself the interval of a kernel grows for each octave between `near` and `far`.
        bandwidth: what kernels of bandwidth-bound kinds without a regressor take.
        factors: by kernel kind, what kernels take in whole models over what `regressors` say; 1 for kinds that are not named.
            Of an adapted device those of a kind's short kernels beside (`edgeplan.predictors.adapted`).
        dispatch_numbers: numbers of the device that launches of kernels follow from (`edgeplan.predictors.launches`), whose
            features the trees also see; none for an engine that does not dispatch.
        launch_version: version of these features; 0 without.
        work_version: how the features count work (`edgeplan.predictors.features`).
    """

    format_version: Literal[1] = 1
    device: str
    engine: str
    engine_version: str
    measured_at: str
    rows: int
    features: tuple[str, ...]
    work_terms: tuple[str, ...]
    call_us: Annotated[Finite, Field(ge=0)]
    plain_layouts: dict[str, str]
    states: tuple[str, ...]
    implementations: tuple[str, ...]
    regressors: tuple[Regressor, ...]
    dispatch: tuple[KindDispatch, ...] = ()
    interval: Interval
    learnt: dict[str, dict[Checked, tuple[int, int]]] = {}
    growth: Annotated[Finite, Field(ge=0)] = 0.0
    bandwidth: Bandwidth | None = None
    factors: dict[str, Annotated[Finite, Field(gt=0)]] = {}
    dispatch_numbers: dict[str, int] = {}
    launch_version: int = 0
    work_version: int = 0

    def files(self) -> tuple[str, ...]:
        """Return the names of the text models, in the order in which they are packed."""
        return tuple(r.file for r in self.regressors) + tuple(d.file for d in self.dispatch if d.file)


def known_sizes(regressors: Sequence[Regressor], growth: float) -> TrainedSizes:
    """Collect the sizes that regressors were trained on; intervals grow by `growth` an octave beyond them."""
    return TrainedSizes(
        tuple(unpacked(r.samples) for r in regressors),
        np.array([r.near for r in regressors], dtype=np.float64),
        np.array([r.far for r in regressors], dtype=np.float64),
        growth,
    )
