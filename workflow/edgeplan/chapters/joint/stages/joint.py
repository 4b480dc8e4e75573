"""Stage `joint`: models planned within a budget and started by all ways, model by model."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.chapters.joint.settings import JointParams
from edgeplan.chapters.joint.ways import NUMBERS, TEXTS, StartedModel, starts, stock_peak
from edgeplan.devices.config import load_device
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import others_share, watched
from edgeplan.profiling.settings import cores_of
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_parquet
from edgeplan.support.machine import environment as environment_here
from edgeplan.support.protocols import protocol
from edgeplan.support.store import key_of, nothing_stored, stored_rows_only
from edgeplan.support.table_store import TableStore, table_store
from edgeplan.workloads.registry import WORKLOADS, save_workload

log = logging.getLogger(__name__)
_WHEN = "measured_at"


def measure_joint(params: JointParams, *, device_path: Path, rows: Path, work: Path, starts: Path, environment: Path) -> None:
    """Start the models that the rows lack, one after the other; one that is stored is not started again.

    Args:
        params: params.yaml.
        device_path: the device file.
        rows: rows of earlier runs.
        work: models and plans; may be deleted.
        starts: where the table of this stage goes.
        environment: where the state of the machine goes.

    Raises:
        StoreError: nothing may be measured, and there are no rows.
        BusyError: another process is measuring on this machine, and did not end in time.
    """
    kept = table_store(rows, *TEXTS, *NUMBERS, _WHEN)
    settings, measured_now = params.joint, False
    keys = {name: _key(params, name) for name in settings.models}
    lacking = [name for name in settings.models if not kept.has(keys[name])]
    if lacking and not stored_rows_only():
        measured_now = True
        processors = cores_of(load_device(device_path)).all
        with watched(rows, processors):
            for name in lacking:
                _measure(params, name, device_path, processors, work, kept, keys[name])
    kept.merge()
    found = [frame.assign(model=name) for name in settings.models if (frame := kept.get(keys[name])) is not None]
    if not found:
        raise nothing_stored("there are no rows of any model", rows)
    table = pd.concat(found, ignore_index=True)
    write_parquet(table[["model", *TEXTS, *NUMBERS, _WHEN]], starts)
    if environment.is_file() and not measured_now:
        return  # of the machine that measured, which need not be this one
    when = time.strftime("%Y-%m-%d", time.gmtime(float(table[_WHEN].max())))
    write_json(environment, environment_here() | {"load_1min": None, "measured_at": when} | others_share(rows))


def _key(params: JointParams, name: str) -> str:
    s = params.joint
    return key_of([protocol("joint").name, params.seed, name, s.share, list(s.beside), s.turns], 16)


def _measure(
    params: JointParams,
    name: str,
    device: Path,
    processors: tuple[int, ...],
    work: Path,
    kept: TableStore,
    key: str,
) -> None:
    """Plan and start a model, and keep its rows."""
    s, folder = params.joint, (work / name).resolve()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = save_workload(WORKLOADS[name](), folder / f"{name}.onnx", params.seed)
    with machine_lock(s.lock_timeout_seconds):
        budget = int(s.share * stock_peak(model, processors))
    subject = StartedModel(model, folder, str(device.resolve()), processors, budget, params.seed)
    found = starts(subject, s.beside, s.turns, s.lock_timeout_seconds)
    for row in found:
        log.info("%s: %s", name, ", ".join(f"{column} {value}" for column, value in row.items()))
    kept.commit({key: _framed(found)})
    shutil.rmtree(folder, ignore_errors=True)


def _framed(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows).reindex(columns=[*TEXTS, *NUMBERS])
    frame[list(TEXTS)] = frame[list(TEXTS)].astype(object).fillna("").astype(str)
    frame[list(NUMBERS)] = frame[list(NUMBERS)].astype("float64")
    return frame.assign(**{_WHEN: time.time()})
