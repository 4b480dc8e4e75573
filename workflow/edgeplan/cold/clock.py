"""How slow the machine is now: references timed beside profiles and beside cold starts.

Other guests of a host slow a machine for minutes or hours, and profiles and cold starts lie that far apart. So that costs are
held against starts at one speed, both are timed beside the same references, by the same statistic.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.measurement.settings import ReferenceExponents

#: Runs of each reference in a look. The least of two scatters by 9 % where the least of eight does by 4 %, and cold starts
#: scatter less: dividing by the former adds noise.
LOOK_RUNS = 8
#: How strongly costs follow the references: as fitted on carriers (`measurement.reference_exponents` of params.yaml). Of cold
#: starts with the page cache warm the exponents were .8 to 1 and about 0.
EXPONENTS = ReferenceExponents(compute=0.8, bandwidth=0.05)
_NOMINAL_SECONDS = 3.0
#: Runs, some 20 s, whose looks tell together how slow the machine was: one look scatters more than that drifts.
NEIGHBOURS = 25


@dataclass(frozen=True)
class Clock:
    """The references with their nominal times.

    Attributes:
        references: the loads.
        nominal: what slowness is relative to.
        runs: of each load, each time.
        exponents: how strongly times follow the references.
    """

    references: References
    nominal: ReferenceTimes
    runs: int = LOOK_RUNS
    exponents: ReferenceExponents = EXPONENTS

    def now(self) -> ReferenceTimes:
        """Time the references."""
        return self.references.time(self.runs)

    def slowness(self, *looks: ReferenceTimes) -> float:
        """How many times the nominal time work takes that was done between looks at the references."""
        return slowness(least(looks), self.nominal, self.exponents)


def least(looks: Iterable[ReferenceTimes]) -> ReferenceTimes:
    """Of several looks the least time of each reference."""
    found = tuple(looks)
    return ReferenceTimes(min(look.compute_us for look in found), min(look.bandwidth_us for look in found))


def slowness(now: ReferenceTimes, nominal: ReferenceTimes, exponents: ReferenceExponents = EXPONENTS) -> float:
    """How many times the nominal time work takes now."""
    compute = (now.compute_us / nominal.compute_us) ** exponents.compute
    return float(compute * (now.bandwidth_us / nominal.bandwidth_us) ** exponents.bandwidth)


def slowness_of(runs: pd.DataFrame, nominal: ReferenceTimes) -> pd.Series[float]:
    """How slow the machine was around each run, from the references timed beside it and beside its neighbours in time.

    Args:
        runs: `measured_at`, `compute_us`, `bandwidth_us`.
        nominal: what slowness is relative to.

    Returns:
        Running medians over `NEIGHBOURS` runs, in the order and with the index of the runs; not a number where none was timed.
    """
    compute = (runs["compute_us"] / nominal.compute_us) ** EXPONENTS.compute
    single = compute * (runs["bandwidth_us"] / nominal.bandwidth_us) ** EXPONENTS.bandwidth
    ordered = single[runs["measured_at"].sort_values(kind="stable").index]
    return ordered.rolling(NEIGHBOURS, center=True, min_periods=1).median().reindex(runs.index)


def calibrate(references: References, runs: int) -> ReferenceTimes:
    """The usual times of the references: medians of pairs of looks, as they are taken around what is measured.

    The least time ever seen would be another statistic than a pair of looks gives, and make all that is measured seem slow.
    """
    pairs: list[ReferenceTimes] = []
    end = time.monotonic() + _NOMINAL_SECONDS
    while not pairs or time.monotonic() < end:
        pairs.append(least((references.time(runs), references.time(runs))))
    return ReferenceTimes(statistics.median(p.compute_us for p in pairs), statistics.median(p.bandwidth_us for p in pairs))
