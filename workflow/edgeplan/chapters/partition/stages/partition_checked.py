"""Stage `partition_checked`: models planned by their own sweeps on a pair, and all ways to run them on fresh runs."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pandas as pd

from edgeplan.chapters.partition.eop.variants import recurrent
from edgeplan.chapters.partition.measuring.checked import WrittenPlan, checked_rows
from edgeplan.chapters.partition.measuring.opened import LACKING, about_pair
from edgeplan.chapters.partition.measuring.rows import CHECKED, WHEN, NotThereError, PartitionRows
from edgeplan.chapters.partition.settings import PartitionParams
from edgeplan.devices.pairs import PairFile, load_pair
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import others_share, watched
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_parquet
from edgeplan.support.store import nothing_stored, stored_rows_only
from edgeplan.workloads.registry import WORKLOADS, Workload, save_workload

log = logging.getLogger(__name__)


def measure_checked(params: PartitionParams, *, pair_path: Path, rows: Path, work: Path, measured: Path) -> None:
    """Plan and run the models that the rows lack, one after the other; one that is stored is not run again.

    Args:
        params: params.yaml.
        pair_path: the pair file.
        rows: rows of earlier runs.
        work: models and plans; may be deleted.
        measured: where the rows and the state of the machine go.

    Raises:
        StoreError: nothing may be measured, and there are no rows.
        BusyError: another process is measuring on this machine, and did not end in time.
        DeviceError: a processor of the pair is not there.
    """
    pair = load_pair(pair_path)
    folder = (work / pair.name).resolve()
    with watched(rows, pair.cores):
        about = about_pair(pair, rows)
        run = _Run(pair, params, PartitionRows(rows, about["identity"], CHECKED, "partition_checked"), folder)
        run.go()
    shutil.rmtree(folder, ignore_errors=True)
    if not run.checked:
        raise nothing_stored(LACKING, rows)
    frame = pd.concat(run.checked, ignore_index=True)
    later = [pd.DataFrame(columns=["model", *CHECKED["later"], WHEN], dtype="float64"), *run.later.values()]
    write_parquet(frame, measured / "checked.parquet")
    write_parquet(pd.concat(later[1:] or later, ignore_index=True), measured / "later.parquet")
    when = time.strftime("%Y-%m-%d", time.gmtime(float(frame[WHEN].max())))
    told = {name: about[name] for name in ("names", "versions")}
    machine = {**about["environment"], **others_share(rows), "processors": told["names"], "versions": told["versions"]}
    waits = {"synchronisation": f"{about['synchronisation']}: {about['why']}", "measured_at": when}
    write_json(measured / "environment.json", {**machine, **waits})


class _Run:
    """One run of the stage."""

    def __init__(self, pair: PairFile, params: PartitionParams, rows: PartitionRows, folder: Path) -> None:
        self.pair, self.settings, self.seed, self.rows, self.folder = pair, params.partition, params.seed, rows, folder
        rows.wait_seconds = self.settings.lock_timeout_seconds
        self.models: dict[str, Callable[[], Workload]] = {name: WORKLOADS[name] for name in self.settings.checked_models}
        self._fully = pair.name in self.settings.checked_fully
        if self._fully:
            self.models |= recurrent()
        self.checked: list[pd.DataFrame] = []
        self.later: dict[str, pd.DataFrame] = {}
        self._written: dict[str, WrittenPlan] = {}

    def go(self) -> None:
        """Plan one model after the other, and run each plan again once its time has come."""
        s = self.settings
        for name in self.models:
            what = [name, self.seed, s.checked_turns, s.settings]
            try:
                found = self.rows.found("checked", what, partial(self._planned, name))
            except NotThereError:
                log.warning("no rows of %s: it is left out, since nothing may be measured", name)
                continue
            self.checked.append(found.assign(model=name))
            if self._is_due(name) and name not in self._written and (found["way"] != "").any():
                with machine_lock(s.lock_timeout_seconds):
                    self._planned(name)  # its ways are stored, and no plan
            for old in [one for one, plan in self._written.items() if plan.age() >= s.checked_later_seconds]:
                self._again(old)
        for name in self.models if self._fully else ():
            self._again(name)
        for kind in CHECKED:
            self.rows.merge(kind)

    def _planned(self, name: str) -> pd.DataFrame:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        s, model = self.settings, save_workload(self.models[name](), folder / "model.onnx", self.seed)
        frame, written = checked_rows(self.pair, name, model, s.settings, s.checked_turns, folder / "plan")
        log.info("%s: %s", name, frame[["way", "median_ms", "reason"]].to_dict("records"))
        if written is not None and self._is_due(name):
            self._written[name] = written
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return frame

    def _what_later(self, name: str) -> list[object]:
        return [name, self.seed, self.settings.checked_later_seconds]

    def _is_due(self, name: str) -> bool:
        """Tell whether a plan of the model is to be run again later."""
        return self._fully and not stored_rows_only() and not self.rows.has("later", self._what_later(name))

    def _again(self, name: str) -> None:
        """Run the plan of a model again, if one is written and was not, or take the rows of that."""
        plan = self._written.pop(name, None)
        if name in self.later or (plan is None and not self.rows.has("later", self._what_later(name))):
            return
        if plan is not None:  # others may have the machine meanwhile
            time.sleep(max(0.0, self.settings.checked_later_seconds - plan.age()))
        self.later[name] = self.rows.found("later", self._what_later(name), partial(_run_again, plan)).assign(model=name)
        shutil.rmtree(self.folder / name, ignore_errors=True)


def _run_again(plan: WrittenPlan | None) -> pd.DataFrame:
    assert plan is not None  # noqa: S101  or its rows are stored
    return plan.rows()
