"""References are timed beside profiles and beside cold starts, to tell how slow the machine is now.

Other guests of a host slow a machine for minutes or hours, and profiles and cold starts lie that far apart. So that costs are
held against starts at one speed, both are timed beside the same references, by the same statistic. What slows some of the
processors for seconds is another matter (`interference.py`): it is waited for, and what falls into it is made again.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass

from edgeplan.measurement.process.interference import Interference
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.measurement.settings import ReferenceExponents

#: Runs of each reference in a look. The least of two scatters by 9 % where the least of eight does by 4 %, and cold starts
#: scatter less: dividing by the former adds noise.
LOOK_RUNS = 8
#: How strongly costs follow the references: as fitted on carriers (`measurement.reference_exponents` of params.yaml). Of cold
#: starts with the page cache warm the exponents were .8 to 1 and about 0.
EXPONENTS = ReferenceExponents(compute=0.8, bandwidth=0.05)
NOMINAL_SECONDS = 3.0


@dataclass(frozen=True)
class Clock:
    """Times the references beside their nominal times.

    Attributes:
        references: the loads.
        nominal: times that slowness is relative to.
        watch: watch over the processors that measure; None waits for nobody.
        runs: runs of each load, each time.
    """

    references: References
    nominal: ReferenceTimes
    watch: Interference | None
    runs: int = LOOK_RUNS

    def now(self) -> ReferenceTimes:
        """Time both references once, now."""
        return self.references.time(self.runs)

    def slowness(self, *looks: ReferenceTimes) -> float:
        """Return the factor over the nominal time for work done between looks at the references."""
        now = least(looks)
        compute, bandwidth = now.compute_us / self.nominal.compute_us, now.bandwidth_us / self.nominal.bandwidth_us
        return float(EXPONENTS.scaled(compute, bandwidth))


def least(looks: Iterable[ReferenceTimes]) -> ReferenceTimes:
    """Return the least time of each reference over several looks."""
    found = tuple(looks)
    return ReferenceTimes(min(look.compute_us for look in found), min(look.bandwidth_us for look in found))


def calibrate(references: References, runs: int, seconds: float = NOMINAL_SECONDS) -> ReferenceTimes:
    """Return the usual times of the references: medians of pairs of looks, as they are taken around what is measured.

    The least time ever seen would be another statistic than a pair of looks gives, and make all that is measured seem slow.
    """
    pairs: list[ReferenceTimes] = []
    end = time.monotonic() + seconds
    while not pairs or time.monotonic() < end:
        pairs.append(least((references.time(runs), references.time(runs))))
    return ReferenceTimes(statistics.median(p.compute_us for p in pairs), statistics.median(p.bandwidth_us for p in pairs))
