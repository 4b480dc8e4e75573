"""Rows of a pair that are stored: by what was measured, found again by their keys.

No key holds a plan. Rows of splits and of models say themselves what was planned when they were
measured, so that tables are rebuilt from them whatever predictors would choose now. Where it may be
measured, rows of another plan than the present one are measured anew.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pandas as pd

from edgeplan.measurement.lock import WAIT_SECONDS, machine_lock
from edgeplan.measurement.others import DISTURBED, Others, worth_again
from edgeplan.support.frames import table_store
from edgeplan.support.store import Protocol, key_of, stored_rows_only

log = logging.getLogger(__name__)
#: Since 2 anchors in chains say how fast the machine was, and plans of EOP's models run in turn, one inference of each.
PARTITION = Protocol("partition/3", ("partition/2",))
#: When a row was measured, seconds since 1970.
WHEN = "measured_at"
#: The share of the processors' time that other work had meanwhile; no part of what a stage hands on.
_OTHERS = "others"
_PART_US = ("channels", "us", "low_us", "high_us", "cpu_implementation", "gpu_implementation")
#: Columns of each kind of rows. Rows of models had `peak_mib` and `cpu_ms` once, which nothing shows.
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "samples": ("place", "cpu_us", "gpu_us", "cpu_implementation", "gpu_implementation"),
    "beside": _PART_US,
    "grids": (*_PART_US, "again"),
    "fresh": ("layer", "way", *_PART_US),
    "curves": ("place", "way", *_PART_US),
    "handshakes": ("synchronisation", "least_us", "median_us", "note"),
    "models": (
        *("way", "median_ms", "repeat", "predicted_ms", "slowdown", "peak_mib", "cpu_ms"),
        *("error", "tolerance", "splits", "steps"),
        *("plan_seconds", "plan_gap", "reason"),
    ),
}
#: Columns that came later, with their values in rows of before: the ways that chose a split (`join_ways`); what a way took when
#: the plan was chosen, and the sum of its operators' times by the model's own sweep.
LATER: Mapping[str, Mapping[str, float | str]] = {
    "fresh": {"chosen_by": ""},
    "checked": {"check_ms": math.nan, "ops_ms": math.nan},
}
_BETWEEN = ", "
#: Of plans that check themselves: the time of each way on fresh runs; its slowdown over the best other one, with its interval.
#: And what the returned plan says that it takes (with the factor from running it, and without) and takes, minutes later, in
#: each of some new processes.
CHECKED: Mapping[str, tuple[str, ...]] = {
    "checked": (
        *("way", "median_ms", "chosen", "stock", "over_best", "over_low", "over_high"),
        *("seconds", "planned_ms", "splits", "steps", "reason"),
    ),
    "later": ("process", "written_ms", "unscaled_ms", "median_ms", "waited_s", "reason"),
}


def join_ways(ways: Iterable[str]) -> str:
    """Return the names of ways as the column `chosen_by` holds them."""
    return _BETWEEN.join(ways)


def split_ways(chosen_by: str) -> list[str]:
    """Return the names that `join_ways` joined."""
    return chosen_by.split(_BETWEEN) if chosen_by else []


class NotThereError(Exception):
    """Rows that are not stored, where nothing may be measured."""


class PartitionRows:
    """The stored rows of a pair by kind, for one `Opened.identity`; `protocols` are those that found rows were measured by."""

    def __init__(
        self,
        folder: Path,
        identity: object,
        columns: Mapping[str, tuple[str, ...]] = COLUMNS,
        protocol: Protocol = PARTITION,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self.stores = {
            kind: table_store(folder / kind, *names, WHEN, later={_OTHERS: 0.0, **LATER.get(kind, {})})
            for kind, names in columns.items()
        }
        self.identity, self.protocol, self.wait_seconds = identity, protocol, wait_seconds
        self.protocols: dict[str, set[str]] = {kind: set() for kind in columns}

    def found(
        self,
        kind: str,
        what: object,
        measure: Callable[[], pd.DataFrame],
        as_planned: Callable[[pd.DataFrame], bool] = lambda _: True,
    ) -> pd.DataFrame:
        """The rows of something, measured where they are not stored, or were measured beside other work that has left.

        `what` decides them, besides the pair and the protocol; it holds no plan. Stored rows are of the present one if
        `as_planned` says so; those of another one count where nothing may be measured.
        """
        if stored_rows_only():
            if (kept := self.stored(kind, what)) is None:
                raise NotThereError
            return kept
        store, ((name, key), *_) = self.stores[kind], self._keys(kind, what).items()
        self.protocols[kind].add(name)
        stored = store.get(key)
        share = 0.0 if stored is None else float(stored[_OTHERS].max())
        if stored is not None and not as_planned(stored):
            stored = None
        if stored is not None and not worth_again(share):
            return stored.drop(columns=_OTHERS)
        with machine_lock(self.wait_seconds):
            watch = Others()
            made = measure().assign(**{WHEN: time.time()})
            own = round(watch.share(), 2)
        if own > DISTURBED:
            log.warning("%s: other work had %.0f %% of the processors' time; measured again once it has left", kind, 100 * own)
        if stored is not None and own >= share:
            return stored.drop(columns=_OTHERS)
        store.commit({key: made.assign(**{_OTHERS: own})})
        return made

    def stored(self, kind: str, what: object) -> pd.DataFrame | None:
        """The rows of something by the first protocol that tables may be built from and that has them; None without any."""
        for name, key in self._keys(kind, what).items():
            if (rows := self.stores[kind].get(key)) is not None:
                self.protocols[kind].add(name)
                return rows.drop(columns=_OTHERS)
        return None

    def has(self, kind: str, what: object) -> bool:
        """Tell whether rows are stored, by any protocol where nothing may be measured."""
        keys = [*self._keys(kind, what).values()]
        return any(self.stores[kind].has(key) for key in (keys if stored_rows_only() else keys[:1]))

    def _keys(self, kind: str, what: object) -> dict[str, str]:
        """Key by protocol what is measured now, then what tables may be built from besides."""
        return {name: key_of([name, kind, self.identity, what], 16) for name in self.protocol.readable}

    def merge(self, kind: str) -> None:
        """Bring rows that were added together in one file."""
        self.stores[kind].merge()
