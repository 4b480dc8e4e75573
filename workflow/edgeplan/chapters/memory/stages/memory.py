"""Stage `memory`: plans for budgets of memory, run beside stock engines; all that measures is here."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.chapters.memory.layouts import layouts
from edgeplan.chapters.memory.measuring import COLUMNS, NUMBERS, TEXTS, measured
from edgeplan.chapters.memory.plan import Cores
from edgeplan.chapters.memory.settings import MemorySettings, Params
from edgeplan.chapters.memory.studies import Subject
from edgeplan.devices.config import load_device
from edgeplan.devices.machine import environment
from edgeplan.errors import StoreError
from edgeplan.measurement.bench import STORED_ROWS_ONLY
from edgeplan.measurement.kept import KeptTables
from edgeplan.measurement.lock import machine_lock
from edgeplan.profiling.settings import cores_of
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_parquet
from edgeplan.support.protocols import protocol
from edgeplan.workloads.registry import WORKLOADS, save_workload

log = logging.getLogger(__name__)
_WHEN = "measured_at"
_LAYOUTS = "layouts"  # in the place of a model: what is laid out without being run


def measure_memory(params: Params, *, device: Path, rows: Path, work: Path, runs: Path, environment_path: Path) -> None:
    """Measure what the rows lack, and write all of it.

    Args:
        params: params.yaml.
        device: the device file.
        rows: rows of earlier runs.
        work: models and plans; may be deleted.
        runs: where the table of this stage goes.
        environment_path: where the state of the machine goes.

    Raises:
        StoreError: nothing may be measured, and there are no rows.
        BusyError: another process is measuring on this machine, and did not end in time.
        EdgeplanError: of the planner and the runtime.
    """
    settings = params.memory
    kept = KeptTables(rows, *COLUMNS, _WHEN)
    frames: list[pd.DataFrame] = []
    for name in (*settings.models, *([_LAYOUTS] if settings.layout_models else [])):
        key = _key(name, params.seed, settings)
        found = kept.get(key)
        if found is None and os.environ.get(STORED_ROWS_ONLY):
            log.warning("no rows of %s: it is left out, since nothing may be measured (%s)", name, STORED_ROWS_ONLY)
            continue
        if found is None and name == _LAYOUTS:
            found = _framed(list(layouts(settings.layout_models)))
            kept.add(key, found)
        elif found is None:
            found = _framed(_measured(name, params.seed, settings, device, work))
            kept.add(key, found)
        frames.append(found)
    kept.merge()
    if not frames:
        raise StoreError(
            "nothing may be measured, and there are no rows of any model",
            where=str(rows),
            next_step=f"unset {STORED_ROWS_ONLY} to measure here, or restore them: git checkout -- {rows}",
        )
    table = pd.concat(frames, ignore_index=True)
    write_parquet(table[[*COLUMNS, _WHEN]], runs)
    latest = float(table[_WHEN].max())
    about = environment() | {"load_1min": None, "measured_at": time.strftime("%Y-%m-%d", time.gmtime(latest))}
    write_json(environment_path, about)


def _key(name: str, seed: int, settings: MemorySettings) -> str:
    """What decides the rows of a model."""
    if name == _LAYOUTS:
        named = json.dumps([protocol("memory").name, *settings.layout_models])
        return hashlib.sha256(named.encode()).hexdigest()[:16]
    alone = {"devices", "models", "lock_timeout_seconds", "layout_models"}
    for own in ("sliced_model", "adapted_model"):
        if name != getattr(settings, own):
            alone |= {own, "adapted_runs"} if own == "adapted_model" else {own}
    alone |= set() if name in settings.offline_mb else {"offline_mb"}
    if name != settings.slowed_model:
        alone |= {"slowed_model", "slowed_ratio", "slowed_pairs"}
    if name != settings.limited_model:
        alone |= {"limited_model", "limited_mib"}
    what = [protocol("memory").name, name, seed, settings.model_dump(mode="json", exclude=alone)]
    return hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]


def _measured(name: str, seed: int, settings: MemorySettings, device: Path, work: Path) -> list[Mapping[str, Any]]:
    cores = Cores.of(cores_of(load_device(device)).all, settings.threads)
    folder = (work / name).resolve()
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir(parents=True)
    model = save_workload(WORKLOADS[name](), folder / f"{name}.onnx", seed)
    found: list[Mapping[str, Any]] = []
    with machine_lock(settings.lock_timeout_seconds):
        for row in measured(Subject(name, model, folder, cores, settings)):
            if row["case"] not in ("layer", "adapted"):
                log.info("%s: %s", name, ", ".join(f"{key} {value}" for key, value in row.items()))
            found.append({"model": name} | row)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _framed(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    frame[list(TEXTS)] = frame[list(TEXTS)].fillna("").astype(str)
    frame[list(NUMBERS)] = frame[list(NUMBERS)].astype("float64")
    return frame.assign(**{_WHEN: time.time()})
