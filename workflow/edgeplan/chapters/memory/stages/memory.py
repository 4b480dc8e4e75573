"""Stage `memory`: plans for budgets of memory, run beside stock engines; all that measures is here."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from edgeplan.chapters.memory.folders import RunCores
from edgeplan.chapters.memory.measuring import (
    COLUMNS,
    NUMBERS,
    TEXTS,
    RowsPart,
    parts_of,
)
from edgeplan.chapters.memory.settings import MemoryParams
from edgeplan.chapters.memory.single_layers import single_layers
from edgeplan.chapters.memory.studies import ModelBench, StudiedModel
from edgeplan.devices.config import load_device
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import others_share, watched
from edgeplan.profiling.settings import cores_of
from edgeplan.progress import spending
from edgeplan.support.files import write_json
from edgeplan.support.frames import TableStore, table_store, write_parquet
from edgeplan.support.machine import environment
from edgeplan.support.store import STORED_ROWS_ONLY, Protocol, key_of, nothing_stored, stored_rows_only
from edgeplan.workloads.registry import WORKLOADS, save_workload

log = logging.getLogger(__name__)
#: Since 4 sessions are native, stock engines have a protocol of their own (`by`), and there is one setting more.
PROTOCOL = Protocol("memory/4")
_WHEN = "measured_at"
_SINGLE = "single layers"  # in the place of a model: models of one layer
_MANY = ("layer", "adapted", "turn")  # cases of so many rows that a log does not name them
#: The case of a part that has no rows: it was measured, and is not to be measured again.
NOTHING = "nothing"
#: Milliseconds of an inference on two cores of 2026, where none was measured.
_USUAL_MS = MappingProxyType(
    {"resnet152": 215.0, "vgg19": 380.0, "vit_b_16": 300.0, "gpt2": 330.0, "mobilenetv2": 12.0, "squeezenet": 20.0}
)


def measure_memory(params: MemoryParams, *, device: Path, rows: Path, work: Path, runs: Path, environment_path: Path) -> None:
    """Measure what the rows lack, part by part, and write all of it; a part that was measured is kept whatever comes after.

    What lies in `work`, models and plans, may be deleted; the table of this stage goes to `runs`, the state of the machine to
    `environment_path`.
    """
    kept, wanted = table_store(rows, *COLUMNS, _WHEN), _wanted(params)
    measured_now = not stored_rows_only() and _measure(wanted, params, kept, device=device, rows=rows, work=work)
    frames: list[pd.DataFrame] = []
    for name in dict.fromkeys(part.model for part in wanted):
        tables = [table for one in wanted if one.model == name and (table := kept.get(one.key)) is not None]
        if not tables:
            log.warning("no rows of %s: it is left out, since nothing may be measured (%s)", name, STORED_ROWS_ONLY)
            continue
        found = pd.concat(tables, ignore_index=True)
        frames.append(found[found["case"] != NOTHING])
    kept.merge()
    if not frames:
        raise nothing_stored("there are no rows of any model", rows)
    table = pd.concat(frames, ignore_index=True)
    write_parquet(table[[*COLUMNS, _WHEN]], runs)
    if environment_path.is_file() and not measured_now:
        return  # of the machine that measured, which need not be this one
    day = time.strftime("%Y-%m-%d", time.gmtime(float(table[_WHEN].max())))
    write_json(environment_path, environment() | {"load_1min": None, "measured_at": day} | others_share(rows))


class _Wanted(NamedTuple):
    """A part of the rows that the settings ask for: of which model, and its key."""

    model: str
    part: RowsPart
    key: str


def _wanted(params: MemoryParams) -> tuple[_Wanted, ...]:
    """Parts of all models in the order in which they are measured: what bars rest on first, model by model."""
    settings = params.memory
    found = [(name, part) for name in settings.models for part in parts_of(name, settings)]
    if settings.single_layers:
        depends, seconds = {"layers": settings.single_layers}, 20.0 * len(settings.single_layers)
        found.append((_SINGLE, RowsPart("single layers", single_layers, seconds, 0, depends, bars=False)))
    found.sort(key=lambda pair: not pair[1].bars)
    by = [PROTOCOL.name, params.seed, settings.threads, settings.runs]
    return tuple(_Wanted(name, part, key_of([*by, name, part.name, dict(part.depends)], 16)) for name, part in found)


def _measure(
    wanted: Sequence[_Wanted], params: MemoryParams, kept: TableStore, *, device: Path, rows: Path, work: Path
) -> bool:
    """Measure the parts that are not kept, this machine to itself, and tell whether there were any."""
    settings = params.memory
    lacking = [one for one in wanted if not kept.has(one.key)]
    if not lacking:
        return False
    cores = cores_of(load_device(device)).all
    benches: dict[str, ModelBench] = {}
    seconds = {one.key: one.part.estimated(_inference_ms(one.model, wanted, kept)) for one in lacking}
    log.info(
        "%d of %d parts of the rows are to be measured, about %.0f min", len(lacking), len(wanted), sum(seconds.values()) / 60
    )
    with watched(rows, cores), machine_lock(settings.lock_timeout_seconds), spending("memory", sum(seconds.values())) as spent:
        try:
            for one in lacking:
                if one.model not in benches:
                    benches[one.model] = _bench(one.model, params, cores, work, _stock(one.model, wanted, kept))
                began = time.perf_counter()
                found = [{"model": one.model} | row for row in one.part.rows(benches[one.model])]
                for row in found:
                    if row["case"] not in _MANY:
                        log.info("%s: %s", one.model, ", ".join(f"{key} {value}" for key, value in row.items()))
                kept.commit({one.key: _framed(found or [{"model": one.model, "case": NOTHING}])})
                took = time.perf_counter() - began
                log.info("%s, %s: %.0f s, %.0f were expected", one.model, one.part.name, took, seconds[one.key])
                spent.add(seconds[one.key])
        finally:
            for bench in benches.values():
                bench.close()
    return True


def _bench(
    name: str, params: MemoryParams, cores: Sequence[int], work: Path, stock: Mapping[str, Mapping[str, Any]]
) -> ModelBench:
    settings, folder = params.memory, (work / name).resolve()
    subject = StudiedModel(name, folder / f"{name}.onnx", folder, RunCores.of(cores, settings.threads), settings)

    def save(path: Path) -> None:
        if name in WORKLOADS:
            save_workload(WORKLOADS[name](), path, params.seed)

    return ModelBench(subject, save, stock)


def _stock(name: str, wanted: Sequence[_Wanted], kept: TableStore) -> dict[str, dict[str, Any]]:
    """Kept rows of the stock engines of a model that ran, by setting, in the order of the settings."""
    tables = [kept.get(one.key) for one in wanted if one.model == name and one.part.name.startswith("stock ")]
    rows = [{str(k): v for k, v in table.iloc[0].dropna().items()} for table in tables if table is not None]
    return {row["setting"]: row for row in rows if "peak" in row}


def _inference_ms(name: str, wanted: Sequence[_Wanted], kept: TableStore) -> float:
    """Milliseconds of an inference, to estimate what parts take: as measured, else as it is of the chapter's models."""
    found = next(iter(_stock(name, wanted, kept).values()), {})
    return float(found.get("median_ms", _USUAL_MS.get(name, max(_USUAL_MS.values()))))


def _framed(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows).reindex(columns=list(COLUMNS))
    frame[list(TEXTS)] = frame[list(TEXTS)].astype(object).fillna("").astype(str)
    frame[list(NUMBERS)] = frame[list(NUMBERS)].astype("float64")
    return frame.assign(**{_WHEN: time.time()})
