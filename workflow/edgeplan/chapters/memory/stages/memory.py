"""Stage `memory`: plans for budgets of memory, run beside stock engines; all that measures is here."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.chapters.memory.budget import MACHINE
from edgeplan.chapters.memory.layouts import layouts
from edgeplan.chapters.memory.measuring import COLUMNS, EARLIER_COLUMNS, LATER_COLUMNS, NUMBERS, TEXTS, measured
from edgeplan.chapters.memory.plan import RunCores
from edgeplan.chapters.memory.settings import MemoryParams, MemorySettings
from edgeplan.chapters.memory.studies import StudiedModel
from edgeplan.devices.config import load_device
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import others_share, watched
from edgeplan.profiling.settings import cores_of
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_parquet
from edgeplan.support.machine import environment
from edgeplan.support.protocols import protocol
from edgeplan.support.store import STORED_ROWS_ONLY, key_of, nothing_stored, stored_rows_only
from edgeplan.support.table_store import TableStore, table_store
from edgeplan.workloads.registry import WORKLOADS, save_workload

log = logging.getLogger(__name__)
_WHEN = "measured_at"
_LAYOUTS = "layouts"  # in the place of a model: what is laid out without being run


def measure_memory(params: MemoryParams, *, device: Path, rows: Path, work: Path, runs: Path, environment_path: Path) -> None:
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
    kept, again = table_store(rows, *EARLIER_COLUMNS, _WHEN, later=LATER_COLUMNS), _kept_again(rows)
    frames: list[pd.DataFrame] = []
    measured_now = False
    for name in (*settings.models, *([_LAYOUTS] if settings.layout_models else [])):
        keys = [_key(name, params.seed, settings, by) for by in protocol("memory").readable]
        key, known = keys[0], keys if stored_rows_only() else keys[:1]
        found = next((table for one in known if (table := kept.get(one)) is not None), None)
        if found is None and stored_rows_only():
            log.warning("no rows of %s: it is left out, since nothing may be measured (%s)", name, STORED_ROWS_ONLY)
            continue
        if found is None:
            laid_out = name == _LAYOUTS
            with nullcontext() if laid_out else watched(rows, cores_of(load_device(device)).all):
                found = _framed(list(layouts(settings.layout_models) if laid_out else _rows(name, params, device, work)))
                kept.commit({key: found})
            measured_now = True
        frames.append(_with_newer(found, again, keys))
    kept.merge()
    if not frames:
        raise nothing_stored("there are no rows of any model", rows)
    table = pd.concat(frames, ignore_index=True)
    write_parquet(table.reindex(columns=[*COLUMNS, _WHEN, *([MACHINE] if len(again) else [])]).fillna({MACHINE: ""}), runs)
    if environment_path.is_file() and not measured_now:
        return  # of the machine that measured, which need not be this one
    latest = float(table[_WHEN].max())
    about = environment() | {"load_1min": None, "measured_at": time.strftime("%Y-%m-%d", time.gmtime(latest))}
    write_json(environment_path, about | others_share(rows))


def _key(name: str, seed: int, settings: MemorySettings, by: str) -> str:
    """Digest everything that decides the rows of a model, by the name of a protocol."""
    if name == _LAYOUTS:
        return key_of([by, *settings.layout_models], 16)
    alone = {"devices", "models", "lock_timeout_seconds", "layout_models", "contained_share"}
    for own in ("sliced_model", "adapted_model"):
        if name != getattr(settings, own):
            alone |= {own, "adapted_runs"} if own == "adapted_model" else {own}
    alone |= set() if name in settings.offline_mb else {"offline_mb"}
    if name != settings.slowed_model:
        alone |= {"slowed_model", "slowed_ratio", "slowed_pairs"}
    if name != settings.limited_model:
        alone |= {"limited_model", "limited_mib"}
    what = [by, name, seed, settings.model_dump(mode="json", exclude=alone)]
    return key_of(what, 16)


def keep_floor(params: MemoryParams, rows: Path, floor: int) -> None:
    """Keep the idle memory of `edgeplan run` on this machine (bytes) among the rows of the stage, as one of no model."""
    here = environment()
    machine = f"{here['cpu']} ({here['cpu_family_model']}), {here['cores']} cores, {here['fingerprint']}"
    row = _framed([{"model": "", "case": "floor", "idle": floor}]).assign(**{MACHINE: machine})
    key = _key(_LAYOUTS, params.seed, params.memory, protocol("memory").name)
    again = _kept_again(rows)
    again.commit({f"{key}-floor-{time.time_ns()}": row})
    again.merge()


def _kept_again(rows: Path) -> TableStore:
    return table_store(rows / "again", *EARLIER_COLUMNS, _WHEN, MACHINE, later=LATER_COLUMNS)


def _with_newer(found: pd.DataFrame, again: TableStore, keys: Sequence[str]) -> pd.DataFrame:
    """The rows of a model, each case that was measured again in the place of the earlier one, the latest of several.

    The model's keys are those of all protocols whose rows may be used.
    """
    for name, newer in sorted(again.query().items()):
        own, _, rest = name.partition("-")
        if own in keys:
            earlier = found["case"] == rest.rpartition("-")[0]
            place = int(earlier.to_numpy().argmax()) if earlier.any() else len(found)
            found = pd.concat([found[~earlier].iloc[:place], newer, found[~earlier].iloc[place:]], ignore_index=True)
    return found


def _rows(name: str, params: MemoryParams, device: Path, work: Path) -> Iterator[Mapping[str, Any]]:
    """Measure a model in a folder of its own, this machine to itself."""
    settings = params.memory
    cores = RunCores.of(cores_of(load_device(device)).all, settings.threads)
    folder = (work / name).resolve()
    shutil.rmtree(folder, ignore_errors=True)  # of a run that was killed
    folder.mkdir(parents=True)
    model = save_workload(WORKLOADS[name](), folder / f"{name}.onnx", params.seed)
    with machine_lock(settings.lock_timeout_seconds):
        for row in measured(StudiedModel(name, model, folder, cores, settings)):
            if row["case"] not in ("layer", "adapted"):
                log.info("%s: %s", name, ", ".join(f"{key} {value}" for key, value in row.items()))
            yield {"model": name} | row
    shutil.rmtree(folder, ignore_errors=True)


def _framed(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    frame[list(TEXTS)] = frame[list(TEXTS)].fillna("").astype(str)
    frame[list(NUMBERS)] = frame[list(NUMBERS)].astype("float64")
    return frame.assign(**{_WHEN: time.time()})
