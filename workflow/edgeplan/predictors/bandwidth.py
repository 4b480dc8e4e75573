"""Predicts the bandwidth-bound family: element-wise operators, copies and plain reductions, whose time their bytes decide.

One line serves them all: a launch, and so much for each byte moved, more or less by the level of the kind. It is fitted on
whatever kinds of the family were measured on a device. Of kinds that were not, the level is that of the nearest measured one;
how far that may be off is what it would have been off for each measured kind, had that kind been left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.ir import BYTES_PER_ELEMENT
from edgeplan.graph.operators.base import COPY, HEAVY, WINDOW
from edgeplan.graph.operators.registry import BANDWIDTH_BOUND, NEAR, RANKS
from edgeplan.predictors.configs import ConfigTable
from edgeplan.support.rounding import nine_digits

Floats = npt.NDArray[np.float64]

#: Element types whose bytes tell the time; others (half precision, quantised) are computed by other instructions, or converted.
MOVED_TYPES = frozenset({"float32", "int32", "int64", "bool"})
#: Images come as bytes, and are moved and converted before anything is computed from them.
_BYTE_TYPES = frozenset({"int8", "uint8"})
_NOT_MOVED = frozenset(kind for kind, rank in RANKS.items() if rank in (HEAVY, WINDOW))
#: A conversion is from any type.
_CONVERSION = "cast"
#: Rows of a kind that count for its level as much as what is expected before: 1.
_FEW_ROWS = 4
#: Residuals of log latency beyond this count less (Huber): layouts and broadcasts make single rows far slower.
_HUBER = 0.5
_ROUNDS, _LONGEST_STEP, _SETTLING, _STILL = 100, 1.0, 10, 1e-12
#: Half width of log latency where a single kind tells nothing of others.
_UNKNOWN = float(np.log(3.0))

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Bandwidth(BaseModel):
    """This model predicts bandwidth-bound kernels of a device: launch_us + level of the kind x us_per_byte x bytes moved.

    Attributes:
        launch_us: time of a kernel that moves nothing.
        us_per_byte: time for each byte read or written, in the mean of the measured kinds.
        levels: time of a byte over that mean, by measured kind.
        rows: number of rows that it was fitted on.
        low, high: quantiles of log(measured / predicted) of the measured kinds, each left out in its turn.
        own_low, own_high: the same of measured kinds with their own levels.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    launch_us: Positive
    us_per_byte: Positive
    levels: dict[str, Positive]
    rows: int
    low: Annotated[Finite, Field(le=0)]
    high: Annotated[Finite, Field(ge=0)]
    own_low: Annotated[Finite, Field(le=0)]
    own_high: Annotated[Finite, Field(ge=0)]

    def latency_us(self, table: ConfigTable, *, integers: bool = False) -> Floats:
        """Return the latency of kernels, us (n,); NaN for kinds outside the family and for other element types.

        Args:
            table: n configurations.
            integers: of integers and truth values instead, whatever their kinds: they are copied, compared and counted; bytes
                of an image are copied and converted alone.
        """
        levels = {kind: _level(kind, self.levels) for kind in table.words["kind"] if integers or kind in BANDWIDTH_BOUND}
        types = MOVED_TYPES - {FLOAT32} if integers else MOVED_TYPES
        typed = table.mapped("dtype", dict.fromkeys(types, 1.0), np.nan)
        in_bytes = table.mapped("dtype", dict.fromkeys(_BYTE_TYPES, 1.0), 0.0) > 0
        computed = table.mapped("kind", dict.fromkeys(_NOT_MOVED, 1.0), 0.0) > 0
        converted = table.mapped("kind", {_CONVERSION: 1.0}, 0.0) > 0
        typed = np.where(in_bytes & ~computed | converted, 1.0, typed)
        moving = self.us_per_byte * bytes_moved(table) * table.mapped("kind", levels, np.nan)
        return np.asarray((self.launch_us + moving) * typed, dtype=np.float64)


def bytes_moved(table: ConfigTable) -> Floats:
    """Return the bytes that bandwidth-bound kernels read and write (n,): copies read what they write, no more.

    Args:
        table: n configurations.
    """
    batch = table.column("batch")
    into = batch * table.column("in_channels") * table.column("in_height") * table.column("in_width")
    out = batch * table.column("out_channels") * table.column("out_height") * table.column("out_width")
    # the batch of a configuration is the input's: a transpose may have another, but writes what it reads
    out = np.where(table.mapped("kind", {"transpose": 1.0}, 0.0) > 0, into, out)
    copies = table.mapped("kind", {kind: 1.0 for kind, rank in RANKS.items() if rank == COPY}, 0.0) > 0
    added = np.where(table.numbers["residual"] > 0, out, 0.0)
    read = np.where(copies, np.minimum(into, out), into + table.column("other_elements")) + added
    size = table.mapped("dtype", {name: float(size) for name, size in BYTES_PER_ELEMENT.items()}, 4.0)
    return np.asarray(size * (read + out), dtype=np.float64)


def fit_bandwidth(table: ConfigTable, latency_us: Floats, weight: Floats, nominal: float) -> Bandwidth | None:
    """Fit the bandwidth-bound family to measured kernels of a device.

    Args:
        table: measured kernels of any kinds (n); those outside the family are left out.
        latency_us: latency of each kernel (n,).
        weight: how far each is trusted; each kind counts the same as a whole (n,).
        nominal: share of rows that the intervals hold.

    Returns:
        The fit, to nine digits; None without a row of the family.
    """
    words = np.array(table.words["kind"], dtype=object)
    kind = words[table.codes["kind"]] if len(table) else np.zeros(0, dtype=object)
    mine = np.flatnonzero(np.isin(kind, sorted(BANDWIDTH_BOUND)))
    if not len(mine):
        return None
    rows = _Rows(kind[mine], bytes_moved(table.take(mine)), np.log(latency_us[mine]), weight[mine])
    line = rows.fitted()
    left_out, trusted = [], []
    for name in line.levels if len(line.levels) > 1 else ():
        held = rows.kind == name
        left_out.append(rows.where(held).beyond(rows.where(~held).fitted()))
        trusted.append(rows.share[held])
    own = rows.beyond(line)
    tail = (1 - nominal) / 2
    low, high = _quantiles(np.concatenate(left_out), np.concatenate(trusted), tail) if left_out else (-_UNKNOWN, _UNKNOWN)
    own_low, own_high = _quantiles(own, rows.share, tail)
    return Bandwidth(
        launch_us=nine_digits(line.launch_us),
        us_per_byte=nine_digits(line.us_per_byte),
        levels={name: nine_digits(level) for name, level in line.levels.items()},
        rows=len(mine),
        low=nine_digits(low),
        high=nine_digits(high),
        own_low=nine_digits(own_low),
        own_high=nine_digits(own_high),
    )


def _level(kind: str, levels: Mapping[str, float]) -> float:
    """Return the level of a kind: its own, else that of the nearest measured kind, else 1."""
    return next((levels[name] for name in (kind, *NEAR.get(kind, ())) if name in levels), 1.0)


@dataclass(frozen=True)
class _Line:
    """Holds the fitted line: launch (us), us a byte, and the level of each kind."""

    launch_us: float
    us_per_byte: float
    levels: Mapping[str, float]


class _Rows:
    """Holds measured kernels: kind, bytes, logarithm of latency (us), and their weight in the fit (n,)."""

    def __init__(self, kind: npt.NDArray[Any], moved: Floats, log_us: Floats, weight: Floats) -> None:
        self.kind, self.moved, self.log_us, self.weight = kind, moved, log_us, weight
        _, place = np.unique(kind.astype(str), return_inverse=True)
        self.share: Floats = weight / np.bincount(place, weight)[place]

    def where(self, mask: npt.NDArray[np.bool_]) -> _Rows:
        return _Rows(self.kind[mask], self.moved[mask], self.log_us[mask], self.weight[mask])

    def beyond(self, line: _Line) -> Floats:
        """Return the logarithm of measured latency over that of a fitted line (n,)."""
        levels = np.array([_level(kind, line.levels) for kind in self.kind], dtype=np.float64)
        return np.asarray(self.log_us - np.log(line.launch_us + line.us_per_byte * levels * self.moved), dtype=np.float64)

    def fitted(self) -> _Line:
        """Fit the line of least relative errors; levels of few rows stay near 1."""
        names, place, count = np.unique(self.kind.astype(str), return_inverse=True, return_counts=True)
        of_kind = np.eye(len(names))[place]
        prior = np.array([1e-9, 1e-9, *(_FEW_ROWS / count)])
        rate = self.log_us.max() - np.log(max(float(self.moved.max()), 1.0))
        at = np.array([self.log_us.min(), rate, *np.zeros(len(names))])
        for number in range(_ROUNDS):  # Gauss-Newton steps on logarithms, so that all stays above zero
            launch, moving = np.exp(at[0]), np.exp(at[1] + at[2:][place]) * self.moved
            line = launch + moving
            rest = self.log_us - np.log(line)
            trust = self.share * np.minimum(1.0, _HUBER / np.maximum(np.abs(rest), _HUBER))
            slope = np.column_stack([launch / line, moving / line, of_kind * (moving / line)[:, None]])
            weighted = slope.T * trust
            pull = np.concatenate([np.zeros(2), prior[2:] * at[2:]])
            step = np.linalg.solve(weighted @ slope + np.diag(prior), weighted @ rest - pull)
            longest = _LONGEST_STEP / (1 + number / _SETTLING)
            at = at + np.clip(step, -longest, longest)
            if np.abs(step).max() < _STILL:
                break
        levels = {str(name): float(np.exp(level)) for name, level in zip(names, at[2:], strict=True)}
        return _Line(float(np.exp(at[0])), float(np.exp(at[1])), levels)


def _quantiles(rest: Floats, share: Floats, tail: float) -> tuple[float, float]:
    """Return the quantiles that a share of the rows lies below and above; never the wrong side of 0."""
    order = np.argsort(rest, kind="stable")
    below = np.cumsum(share[order]) / share.sum()
    low, high = (float(rest[order][min(int(np.searchsorted(below, q)), len(rest) - 1)]) for q in (tail, 1 - tail))
    return min(low, 0.0), max(high, 0.0)
