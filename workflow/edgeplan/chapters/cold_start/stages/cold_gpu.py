"""Stage `cold_gpu`: cold starts on a GPU, planned model by model and started in fresh processes; rows are kept by model."""

from __future__ import annotations

import logging
import shutil
import time
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.chapters.cold_start.gpu.measuring import COLUMNS, LATER_COLUMNS, GpuStartBench
from edgeplan.chapters.cold_start.settings import ColdStartParams
from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.gpu_start.opened import open_gpu, without_driver_caches
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import Others, others_share, watched, worth_again
from edgeplan.progress import in_line
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.gpu_program import DeviceSpec
from edgeplan.support.files import write_json
from edgeplan.support.frames import read_document, write_parquet
from edgeplan.support.machine import environment, fingerprint
from edgeplan.support.protocols import protocol
from edgeplan.support.store import key_of, nothing_stored, stored_rows_only
from edgeplan.support.table_store import table_store
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

log = logging.getLogger(__name__)
_ABOUT, _LACKING = "about.json", "rows of cold starts on this GPU are lacking"
_WHEN, _OTHERS = "measured_at", "others"


def measure_cold_gpu(params: ColdStartParams, *, device: Path, rows: Path, work: Path, measured: Path) -> None:
    """Plan and start the models that the rows lack, one after the other; one that is stored is not started again.

    Args:
        params: params.yaml.
        device: the device file.
        rows: rows of earlier runs.
        work: models and plans; may be deleted.
        measured: where the rows and the state of the machine go.
    """
    found, settings, folder = load_device(device), params.cold_gpu, (work / device.stem).resolve()
    about = _about(found, rows)
    stores = {
        kind: table_store(rows / kind, *names, _WHEN, _OTHERS, later=LATER_COLUMNS if kind == "plans" else {})
        for kind, names in COLUMNS.items()
    }
    frames: dict[str, list[pd.DataFrame]] = {kind: [] for kind in COLUMNS}
    with watched(rows, ()):
        for name in settings.models:
            what = settings.model_dump(exclude={"devices", "models", "lock_timeout_seconds"})
            names = protocol("cold_gpu").readable if stored_rows_only() else (protocol("cold_gpu").name,)
            keys = {one: key_of([one, about["identity"], name, params.seed, what], 16) for one in names}
            measured_by = next((one for one in names if all(s.get(keys[one]) is not None for s in stores.values())), names[0])
            key = keys[measured_by]
            kept = {kind: frame for kind, store in stores.items() if (frame := store.get(key)) is not None}
            whole = len(kept) == len(stores)
            if not whole and stored_rows_only():
                log.warning("no rows of %s: it is left out, since nothing may be measured", name)
                continue
            share = max((float(frame[_OTHERS].max()) for frame in kept.values()), default=0.0)
            if not whole or (not stored_rows_only() and worth_again(share)):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                model = save_onnx(COLD_START_MODELS[name](), folder / f"{name}.onnx", params.seed)
                with machine_lock(settings.lock_timeout_seconds):
                    watch, begun = Others(), time.time()
                    made = GpuStartBench(found, settings, params.seed, folder).rows(model)
                    own = round(watch.share(), 2)
                kept = {kind: frame.assign(**{_WHEN: begun, _OTHERS: own}) for kind, frame in made.items()}
                for kind, store in stores.items():
                    store.commit({key: kept[kind]})
                medians = kept["starts"].groupby(["way", "state"])["cold_ms"].median().reset_index()
                log.info("%s: %s", name, in_line(*medians.to_dict("records")))
            for kind, frame in kept.items():
                frames[kind].append(frame.assign(model=name, protocol=measured_by))
        for store in stores.values():
            store.merge()
    shutil.rmtree(folder, ignore_errors=True)
    if not frames["starts"]:
        raise nothing_stored(_LACKING, rows)
    joined = {kind: pd.concat(parts, ignore_index=True).drop(columns=_OTHERS) for kind, parts in frames.items()}
    for kind, frame in joined.items():
        write_parquet(frame, measured / f"{kind}.parquet")
    when = time.strftime("%Y-%m-%d", time.gmtime(float(joined["starts"][_WHEN].max())))
    machine = {**about["environment"], **others_share(rows), "processor": about["processor"], "measured_at": when}
    write_json(measured / "environment.json", machine)


def _about(device: DeviceFile, rows: Path) -> dict[str, Any]:
    """Rows are of the machine, the device and its driver; where nothing may be measured, as stored rows say."""
    path = rows / _ABOUT
    if stored_rows_only():
        if not path.is_file():
            raise nothing_stored(_LACKING, rows)
        return read_document(path, "identity", "environment")
    without_driver_caches()
    processor = open_gpu(DeviceSpec(device.engine, dict(device.options), Dnnl().info.block)).processor
    try:
        version, numbers = processor.capabilities.version, dict(processor.numbers)
    finally:
        processor.close()
    machine = environment() | {"load_1min": None, "machine": fingerprint()}
    about = {"identity": [fingerprint(), version, numbers, dict(device.options)], "processor": version, "environment": machine}
    write_json(path, about)
    return about
