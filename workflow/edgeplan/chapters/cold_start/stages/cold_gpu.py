"""Stage `cold_gpu`: cold starts on a GPU, planned model by model and started in fresh processes; rows are kept by model."""

from __future__ import annotations

import logging
import math
import random
import shutil
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.cold_start.gpu.planned import GpuPlan, GpuPlanning, planning_on, upload_mb_per_s
from edgeplan.chapters.cold_start.settings import GPU_PROTOCOL, ColdStartParams, GpuStartSettings
from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.engines.onnxruntime.reference import onnxruntime_reference
from edgeplan.errors import EdgeplanError
from edgeplan.gpu_start.session import STAGES, open_gpu, without_driver_caches
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import Others, others_share, watched, worth_again
from edgeplan.measurement.process.gpu_starts import GpuStartJob, start_gpu
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.measurement.process.job import PrepareJob, RunJob
from edgeplan.measurement.process.page_cache import read_bandwidth_mb_per_s
from edgeplan.measurement.process.starts import prepare_offline, run_cold
from edgeplan.planning.optimal import Search
from edgeplan.progress import in_line
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.gpu_program import CODE_NAME, DeviceSpec, GpuProgram
from edgeplan.support.files import write_json
from edgeplan.support.frames import read_document, table_store, write_parquet
from edgeplan.support.machine import environment, fingerprint
from edgeplan.support.store import key_of, nothing_stored, stored_rows_only
from edgeplan.support.tensors import relative_error
from edgeplan.support.workers import ColdRunError
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

log = logging.getLogger(__name__)
_ABOUT, _LACKING = "about.json", "rows of cold starts on this GPU are lacking"
_WHEN, _OTHERS = "measured_at", "others"
#: Columns of each kind of rows: a row a start, and a row a plan.
COLUMNS = {
    "starts": (
        *("way", "stock", "state", "repeat", "library_ms", "context_ms", "cold_ms", "warm_ms"),
        *(f"{stage}_ms" for stage in STAGES),
        *("cached_before", "error", "reason"),
    ),
    "plans": (
        *("way", "predicted_ms", "bound_ms", "planning_s", "search_ms", "kept_mb", "code_mb", "steps", "threads", "reason"),
    ),
}
#: Columns that plans of before lack: the GPU's own time at least, MB that are uploaded and read at least, and MB/s of both.
LATER_COLUMNS = dict.fromkeys(("work_ms", "upload_mb", "read_mb", "upload_mb_s", "read_mb_s"), math.nan)
_MB = 1e6


@dataclass(frozen=True)
class GpuStartBench:
    """A bench plans a model on a device, and starts it; what lies in its folder `work` may be deleted."""

    device: DeviceFile
    settings: GpuStartSettings
    seed: int
    work: Path

    def rows(self, model: Path) -> dict[str, pd.DataFrame]:
        """Plan a model and start it in all ways, a frame for each kind in `COLUMNS`; without a plan a row says why."""
        try:
            plans, rates = self._plans(model)
        except EdgeplanError as error:
            return {kind: _frame(kind, [{"way": "", "reason": error.headline}]) for kind in COLUMNS}
        values = random_inputs({border.name: border.shape for border in _program(plans[0]).inputs}, self.seed)
        inputs, outputs, expected = (self.work / f"{name}.npz" for name in ("inputs", "outputs", "expected"))
        np.savez(inputs, allow_pickle=False, **values)
        reference = onnxruntime_reference(model, values)
        np.savez(expected, allow_pickle=False, **reference)
        wanted = [reference[border.name] for border in _program(plans[0]).outputs]

        def of_plan(plan: GpuPlan, state: str) -> dict[str, Any]:
            job = GpuStartJob(str(plan.folder), str(inputs), str(outputs), self.settings.warm_runs, evicted=state == "evicted")
            found = start_gpu(job)
            with np.load(outputs, allow_pickle=False) as made:
                error = relative_error([made[border.name] for border in _program(plan).outputs], wanted)
            told = {name: getattr(found, name) for name in ("library_ms", "context_ms", "cold_ms", "cached_before")}
            stages = {f"{stage}_ms": found.stages_ms.get(stage, 0.0) for stage in STAGES}
            return told | stages | {"warm_ms": statistics.median(found.warm_ms), "error": error, "reason": found.code_problem}

        starts: list[tuple[dict[str, Any], Callable[[], dict[str, Any]]]] = []

        def add(way: str, stock: float, repeats: int, start_once: Callable[[str], dict[str, Any]]) -> None:
            for state in self.settings.states:
                row = {"way": way, "stock": stock, "state": state}
                starts.extend((row | {"repeat": k}, partial(start_once, state)) for k in range(repeats))

        for plan in plans:
            most = self.settings.repeats if plan.schedule.code else self.settings.compiled_repeats
            add(plan.schedule.planner, 0.0, min(self.settings.repeats, most), partial(of_plan, plan))
        rows: list[dict[str, Any]] = []
        for name in self.settings.settings:
            try:
                add(name, 1.0, self.settings.repeats, self._stock(name, model, expected, values))
            except EdgeplanError as error:
                rows.append({"way": name, "stock": 1.0, "reason": error.headline})
        random.Random(self.seed).shuffle(starts)  # noqa: S311  an order, no secret
        for row, start in starts:
            try:
                rows.append(row | start())
            except EdgeplanError as error:
                rows.append(row | {"reason": error.headline})
        return {"starts": _frame("starts", rows), "plans": _frame("plans", [_described(plan) | rates for plan in plans])}

    def _plans(self, model: Path) -> tuple[list[GpuPlan], dict[str, float]]:
        """The plans, and how fast this machine uploads and reads."""
        search = Search(self.settings.gap, self.settings.time_limit_s)
        with planning_on(self.device) as (processor, block):
            planning = GpuPlanning(self.device, model, processor, block)
            rate = upload_mb_per_s(processor)
            plans = [planning.write(name, self.work / f"{name}.plan", search) for name in self.settings.planners]
        return plans, {"upload_mb_s": rate, "read_mb_s": read_bandwidth_mb_per_s([model]) or math.nan}

    def _stock(self, name: str, model: Path, expected: Path, values: Any) -> Callable[[str], dict[str, Any]]:
        """Return what starts a setting once in a state of the page cache; ColdRunError: it does not run."""
        shapes = {of: value.shape for of, value in values.items()}
        folder = self.work / name
        folder.mkdir()
        made = prepare_offline(PrepareJob(setting=name, threads=1, model=model, inputs=shapes, folder=folder))
        if made.artefact is None:
            raise ColdRunError(made.reason)
        fields = {"setting": name, "threads": 1, "artefact": made.artefact, "inputs": shapes, "seed": self.seed,
                  "warm_runs": self.settings.warm_runs, "reference": expected}  # fmt: skip

        def start(state: str) -> dict[str, Any]:
            run = run_cold(RunJob.model_validate(fields | {"state": state}))
            warm = statistics.median(run.warm_ms) if run.warm_ms else None
            return {"cold_ms": run.cold_ms, "warm_ms": warm, "cached_before": run.cached_before,
                    "error": run.output_error, "reason": run.reason}  # fmt: skip

        return start


def _program(plan: GpuPlan) -> GpuProgram:
    return plan.plan.program_of(GpuProgram)


def _described(plan: GpuPlan) -> dict[str, Any]:
    program, told = _program(plan), plan.prediction
    code = plan.folder / CODE_NAME
    return {
        "way": plan.schedule.planner, "predicted_ms": told.makespan_ms, "bound_ms": told.lower_bound_ms,
        "planning_s": told.planning_s, "search_ms": told.search_ms, "kept_mb": program.packed_bytes / _MB,
        "code_mb": code.stat().st_size / _MB if code.is_file() else 0.0,
        "steps": len(program.steps), "threads": len(plan.schedule.queues), "work_ms": plan.costs.least_work_ms,
        "upload_mb": plan.costs.least_bytes(lambda one: one.kept_bytes) / _MB,
        "read_mb": plan.costs.least_bytes(lambda one: one.read_bytes) / _MB,
    }  # fmt: skip


def _frame(kind: str, rows: list[dict[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows).reindex(columns=[*COLUMNS[kind], *(LATER_COLUMNS if kind == "plans" else ())])
    texts = [name for name in ("way", "state", "reason") if name in frame.columns]
    frame[texts] = frame[texts].astype(object).fillna("").astype(str)
    return frame.astype(dict.fromkeys(frame.columns.difference(texts), float))


def measure_cold_gpu(params: ColdStartParams, *, device: Path, rows: Path, work: Path, measured: Path) -> None:
    """Plan and start the models that the rows lack, one after the other; one that is stored is not started again.

    What lies in `work` may be deleted; the rows and the state of the machine go to `measured`.
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
            names = GPU_PROTOCOL.readable if stored_rows_only() else (GPU_PROTOCOL.name,)
            keys = {one: key_of([one, about["identity"], name, params.seed, what], 16) for one in names}
            measured_by = next((one for one, key in keys.items() if all(s.has(key) for s in stores.values())), names[0])
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
