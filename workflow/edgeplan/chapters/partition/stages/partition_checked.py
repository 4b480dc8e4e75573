"""Stage `partition_checked`: models planned by their own sweeps on a pair, and all ways to run them on fresh runs."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.partition.checked.planning import CheckedPlanning, CheckLimits, OpenedPlan
from edgeplan.chapters.partition.eop.sweeps import subject_of
from edgeplan.chapters.partition.eop.ways import recurrent_variants
from edgeplan.chapters.partition.measuring.opened import LACKING, about_pair, identities
from edgeplan.chapters.partition.measuring.rows import CHECKED, LATER, WHEN, PartitionRows
from edgeplan.chapters.partition.settings import PLANNED, SIDES, SLOWER, PartitionParams
from edgeplan.devices.pairs import PairFile, load_pair
from edgeplan.engines.registry import SETTINGS
from edgeplan.errors import EdgeplanError
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import others_share, watched
from edgeplan.measurement.settings import TimeBudget
from edgeplan.planning.partition.planner import PartitionPlan
from edgeplan.progress import in_line
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_parquet
from edgeplan.support.store import Protocol, nothing_stored, stored_rows_only
from edgeplan.workloads.registry import WORKLOADS, Workload, save_workload

#: Of plans by a model's own sweep, and of all ways to run it on fresh runs. Since 2 what is moved is part of the costs, since 3
#: ways near to each other are opened twice before one is chosen, since 4 no GPU notes when its kernels run, since 5 the
#: host's threads stay awake until its next step, and since 6 stock engines are ways like others, in the same turns.
PROTOCOL = Protocol(
    "partition-checked/6", ("partition-checked/5", "partition-checked/4", "partition-checked/3", "partition-checked/2")
)
#: New processes that run a plan later, and turns of each.
_PROCESSES, _TURNS = 3, 5


@dataclass(frozen=True, slots=True)
class WrittenPlan:
    """A plan that waits to be run again: when it was written, and what it says that it takes, also without its factor."""

    folder: Path
    since: float
    written_ms: float
    unscaled_ms: float

    def age(self) -> float:
        """Return the seconds since it was written."""
        return time.monotonic() - self.since

    def rows(self) -> pd.DataFrame:
        """Run the plan in new processes, one after the other."""
        found = []
        for process in range(_PROCESSES):
            row = {"process": float(process), "written_ms": self.written_ms, "unscaled_ms": self.unscaled_ms, "reason": ""}
            row["waited_s"] = round(self.age(), 1)
            try:
                with OpenedPlan(self.folder) as plan:
                    plan.wait()
                    row["median_ms"] = float(np.median([ms for _ in range(_TURNS) for ms in plan.turn()]))
            except EdgeplanError as error:
                row["reason"] = error.headline
            found.append(row)
        return pd.DataFrame(found).reindex(columns=list(CHECKED["later"]))


def checked_rows(
    pair: PairFile, name: str, model: Path, settings: tuple[str, ...], turns: int, output: Path
) -> tuple[pd.DataFrame, WrittenPlan | None]:
    """Plan a model by its own sweep, then run all ways once more: rows as in `rows.CHECKED`, and the plan, None without one."""
    written = None
    rows: list[dict[str, Any]] = []
    limits = CheckLimits(turns=turns, fewest=turns, stock=settings)
    try:
        planning = CheckedPlanning(pair, subject_of(name, model, 0), limits)
        chosen = planning.go(output)
        check = chosen.check
        assert check is not None  # noqa: S101  it was executed
        says_ms = check.median_ms[check.way]
        written = WrittenPlan(output, time.monotonic(), says_ms, says_ms if chosen.engine else chosen.plan.makespan_ms)
        again = planning.fresh(check.way)
        told: dict[str, dict[str, Any]] = {name: {"median_ms": ms} for name, ms in again.median_ms.items()}
        told |= {name: {"reason": why} for name, why in again.left_out.items()}
        rows += [{"way": way, **row, "stock": float(way in SETTINGS)} for way, row in told.items()]
        made = planning.made
        about = {
            "seconds": check.seconds,
            "over_best": 1 / again.margin,
            "over_low": 1 / again.high,
            "over_high": 1 / again.low,
        }
        about |= {"planned_ms": made.plan.makespan_ms, "splits": made.plan.splits, "steps": len(made.plan.steps)}
        each = {way: {"check_ms": ms} for way, ms in check.median_ms.items()}
        for way in (*SIDES, PLANNED):
            if way in planning.known:
                each[way] = each.get(way, {}) | {"ops_ms": _operators_ms(planning.known[way].plan)}
        rows = [row | {"chosen": float(row["way"] == check.way)} | about | each.get(row["way"], {}) for row in rows]
    except EdgeplanError as error:
        rows = [{"way": "", "chosen": 1.0, "stock": 0.0, "reason": error.headline}]
    frame = pd.DataFrame(rows).reindex(columns=[*CHECKED["checked"], *LATER["checked"]])
    frame["reason"] = frame["reason"].astype(object).fillna("").astype(str)
    return frame, written


def _operators_ms(plan: PartitionPlan) -> float:
    """Sum up what each operator takes by itself, by the model's own sweep: no hand-over, and nothing beside another one."""
    return sum(max(step.cpu_end_ms, step.gpu_end_ms) - step.start_ms for step in plan.steps)


log = logging.getLogger(__name__)


def measure_checked(params: PartitionParams, *, pair_path: Path, rows: Path, work: Path, measured: Path) -> None:
    """Plan and run the models that the rows lack, one after the other; one that is stored is not run again."""
    pair = load_pair(pair_path)
    folder = (work / pair.name).resolve()
    with watched(rows, pair.cores):
        about = about_pair(pair, rows)
        known = identities(pair, about)
        stores = {name: PartitionRows(rows, own, CHECKED, PROTOCOL) for name, (own, _) in known.items()}
        run = _Run(pair, params, stores, folder)
        if not stored_rows_only():
            run.go()
    shutil.rmtree(folder, ignore_errors=True)
    frames = {kind: run.stored(kind) for kind in CHECKED}
    if frames["checked"].empty:
        raise nothing_stored(LACKING, rows)
    for kind, frame in frames.items():
        write_parquet(frame, measured / f"{kind}.parquet")
    told = {name: about[name] for name in ("names", "versions")}
    machine = {**about["environment"], **others_share(rows), "processors": told["names"], "versions": told["versions"]}
    waits = {"synchronisation": f"{about['synchronisation']}: {about['why']}", "measured_at": days(frames["checked"][WHEN])}
    machines = {name: {key: one["environment"][key] for key in ("cpu", "cores")} for name, (_, one) in known.items()}
    asked = {"asked": params.partition.checked_models, "second_on_cores": bool(pair.processors[1].cores)}
    write_json(measured / "environment.json", {**machine, **waits, **asked, "machines": machines})


def days(seconds: pd.Series) -> str:
    """Return the first and the last day of rows as text, since they may be days apart; one where they are the same."""
    ends = (time.strftime("%Y-%m-%d", time.gmtime(float(end))) for end in (seconds.min(), seconds.max()))
    return " to ".join(dict.fromkeys(ends))


class _Run:
    """One run of the stage."""

    def __init__(self, pair: PairFile, params: PartitionParams, stores: Mapping[str, PartitionRows], folder: Path) -> None:
        self.pair, self.settings, self.seed, self.folder = pair, params.partition, params.seed, folder
        self.stores, self.rows = stores, next(iter(stores.values()))
        self.rows.wait_seconds, self.budget = self.settings.lock_timeout_seconds, TimeBudget.of(self.settings.checked_seconds)
        self.models: dict[str, Callable[[], Workload]] = {name: WORKLOADS[name] for name in self.settings.checked_models}
        self._fully = pair.name in self.settings.checked_fully
        self._recurrent = recurrent_variants() if self._fully else {}
        self.models |= self._recurrent
        self._written: dict[str, WrittenPlan] = {}

    def go(self) -> None:
        """Plan one model after the other, those worth most first, and run each plan again once its time has come."""
        after = self.settings.checked_later_seconds
        for name in sorted(self.models, key=self._rank):
            if self.budget.over:
                log.warning("partition.checked_seconds was over before %s; the next run goes on", name)
                break
            found = self.rows.found("checked", self._what(name), partial(self._planned, name))
            if self._is_due(name) and name not in self._written and (found["way"] != "").any():
                with machine_lock(self.settings.lock_timeout_seconds):
                    self._planned(name)  # its ways are stored, and no plan
            for old in [one for one, plan in self._written.items() if plan.age() >= after]:
                self._again(old)
        for name, plan in [*self._written.items()]:
            if after - plan.age() <= self.budget.left_s:
                self._again(name)
        for kind in CHECKED:
            self.rows.merge(kind)

    def stored(self, kind: str) -> pd.DataFrame:
        """Return the rows of a kind by model; their column `machine` tells the machine and the drivers that they are of."""
        found, names = list[pd.DataFrame](), ["model", "machine", *CHECKED[kind], *LATER.get(kind, ()), WHEN]
        for name in self.models:
            what = self._what(name) if kind == "checked" else self._what_later(name)
            of_each = {machine: rows.stored(kind, what) for machine, rows in self.stores.items()}
            found += [rows.assign(model=name, machine=machine) for machine, rows in of_each.items() if rows is not None]
            if kind == "checked" and all(rows is None for rows in of_each.values()):
                log.warning("no rows of %s: it is left out", name)
        return pd.concat(found, ignore_index=True)[names] if found else pd.DataFrame(columns=names, dtype="float64")

    def _what(self, name: str) -> list[object]:
        return [name, self.seed, self.settings.checked_turns, self.settings.settings]

    def _rank(self, name: str) -> tuple[int, bool]:
        """Rank what to measure: plans slower by an earlier protocol, models without rows of this machine, then all others.

        Recurrent variants come first, since only all of them make a figure.
        """
        if self.rows.has("checked", self._what(name)):
            return 3, False
        known = self.rows.stored("checked", self._what(name))
        rank = 1 if known is None else 0 if known["over_low"].max() > SLOWER else 2
        return rank, name not in self._recurrent

    def _planned(self, name: str) -> pd.DataFrame:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        s, model = self.settings, save_workload(self.models[name](), folder / "model.onnx", self.seed)
        frame, written = checked_rows(self.pair, name, model, s.settings, s.checked_turns, folder / "plan")
        log.info("%s: %s", name, in_line(*frame[["way", "median_ms", "reason"]].to_dict("records")))
        if written is not None and self._is_due(name):
            self._written[name] = written
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return frame

    def _what_later(self, name: str) -> list[object]:
        return [name, self.seed, self.settings.checked_later_seconds]

    def _is_due(self, name: str) -> bool:
        """Tell whether a plan of the model is to be run again later."""
        return self._fully and not self.rows.has("later", self._what_later(name))

    def _again(self, name: str) -> None:
        """Run the plan of a model again, at its time."""
        plan = self._written.pop(name)
        time.sleep(max(0.0, self.settings.checked_later_seconds - plan.age()))  # others may have the machine meanwhile
        self.rows.found("later", self._what_later(name), plan.rows)
        shutil.rmtree(self.folder / name, ignore_errors=True)
