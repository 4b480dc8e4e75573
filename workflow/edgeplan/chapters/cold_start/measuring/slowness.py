"""Estimates how slow the machine was around each cold start of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeplan.measurement.process.clock import EXPONENTS

if TYPE_CHECKING:
    import pandas as pd

    from edgeplan.measurement.references import ReferenceTimes

#: Runs, about half a minute, whose looks tell together how slow the machine was: one look scatters more than that drifts.
NEIGHBOURS = 25


def slowness_of(runs: pd.DataFrame, nominal: ReferenceTimes) -> pd.Series[float]:
    """Estimate the slowness around each run, from references beside it and beside its neighbours in time.

    Args:
        runs: `measured_at`, `compute_us`, `bandwidth_us`.
        nominal: what slowness is relative to.

    Returns:
        Running medians over `NEIGHBOURS` runs, in the order and with the index of the runs; not a number where none was timed.
    """
    single = EXPONENTS.scaled(runs["compute_us"] / nominal.compute_us, runs["bandwidth_us"] / nominal.bandwidth_us)
    ordered = single[runs["measured_at"].sort_values(kind="stable").index]
    return ordered.rolling(NEIGHBOURS, center=True, min_periods=1).median().reindex(runs.index)
