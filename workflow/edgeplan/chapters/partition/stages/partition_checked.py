"""Stage `partition_checked`: models planned by their own sweeps on a pair, and all ways to run them on fresh runs."""

from __future__ import annotations

import logging
import shutil
import time
from functools import partial
from pathlib import Path

import pandas as pd

from edgeplan.chapters.partition.eop.variants import recurrent
from edgeplan.chapters.partition.measuring.checked import checked_rows
from edgeplan.chapters.partition.measuring.opened import LACKING, about_pair
from edgeplan.chapters.partition.measuring.rows import CHECKED, WHEN, NotThereError, PartitionRows
from edgeplan.chapters.partition.settings import PartitionParams
from edgeplan.devices.pairs import load_pair
from edgeplan.measurement.others import others_share, watched
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_parquet
from edgeplan.support.store import nothing_stored
from edgeplan.workloads.registry import WORKLOADS, save_workload

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
    pair, settings, folder = load_pair(pair_path), params.partition, (work / pair_path.stem).resolve()

    models = {name: WORKLOADS[name] for name in settings.checked_models}
    if pair.name in settings.checked_recurrent:
        models |= recurrent()

    def planned(name: str) -> pd.DataFrame:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        model = save_workload(models[name](), folder / f"{name}.onnx", params.seed)
        frame = checked_rows(pair, model, settings.settings, settings.checked_turns)
        log.info("%s: %s", name, frame[["way", "median_ms", "reason"]].to_dict("records"))
        return frame

    found = []
    with watched(rows, pair.cores):
        about = about_pair(pair, rows)
        store = PartitionRows(rows, about["identity"], CHECKED, "partition_checked", settings.lock_timeout_seconds)
        for name in models:
            what = [name, params.seed, settings.checked_turns, settings.settings]
            try:
                found.append(store.found("checked", what, partial(planned, name)).assign(model=name))
            except NotThereError:
                log.warning("no rows of %s: it is left out, since nothing may be measured", name)
        store.merge("checked")
    shutil.rmtree(folder, ignore_errors=True)
    if not found:
        raise nothing_stored(LACKING, rows)
    frame = pd.concat(found, ignore_index=True)
    write_parquet(frame, measured / "checked.parquet")
    when = time.strftime("%Y-%m-%d", time.gmtime(float(frame[WHEN].max())))
    told = {name: about[name] for name in ("names", "versions")}
    machine = {**about["environment"], **others_share(rows), "processors": told["names"], "versions": told["versions"]}
    waits = {"synchronisation": f"{about['synchronisation']}: {about['why']}", "measured_at": when}
    write_json(measured / "environment.json", {**machine, **waits})
