"""Measures cold runs of models x settings x threads x states x repeats, interleaved and resumable, and tables of them."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.chapters.cold_start.measuring.artefacts import OVER, ArtefactStore, ColdModel, protocol_of
from edgeplan.engines.registry import SETTINGS, setting
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process import page_cache
from edgeplan.measurement.process.interference import EXPONENTS, LOOK_RUNS, Interference
from edgeplan.measurement.process.job import STOCK_TOLERANCE, PrepareResult, RunJob, RunResult, State
from edgeplan.measurement.process.starts import ATTEMPTS, ObservedStart, start_cold
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.measurement.settings import TimeBudget
from edgeplan.support.cpus import pinned
from edgeplan.support.machine import NOT_RECORDED, fingerprint, source_commit
from edgeplan.support.store import Journal, key_of
from edgeplan.support.tensors import OUTPUT_TOLERANCE
from edgeplan.support.workers import ColdRunError

_PREPARING_SHARE = 0.5  # of the budget; the rest is for runs
#: Runs, about half a minute, whose looks tell together how slow the machine was: one look scatters more than that drifts.
NEIGHBOURS = 25
#: Model, setting and threads.
_Place = tuple[str, str, int]
#: Columns of the runs; one row a process. `reason` is "" for a run that counts; `stages_ms` is a JSON object, `warm_ms` a JSON
#: list of the warm runs in their order; `compute_us` and `bandwidth_us` are the references timed around the run, `interference`
#: is what was seen of its processors (`attempts.Attempt`), `commit` the state of the code that made the run.
RUN_COLUMNS: Mapping[str, str] = {
    "model": "str", "setting": "str", "engine": "str", "engine_version": "str", "stores_work": "bool", "stock": "bool",
    "threads": "int64", "state": "str", "repeat": "int64", "cold_ms": "float64", "warm_ms": "str", "warm_min_ms": "float64",
    "warm_median_ms": "float64", "open_ms": "float64", "first_run_ms": "float64", "stages_ms": "str",
    "first_touch_ms": "float64", "anonymous_bytes": "int64", "rss_before_bytes": "int64", "peak_rss_bytes": "int64",
    "minor_faults": "int64", "major_faults": "int64", "read_bytes": "int64", "file_bytes": "int64",
    "cached_before": "float64", "output_error": "float64", "prepare_ms": "float64", "compute_us": "float64",
    "bandwidth_us": "float64", "measured_at": "float64", "interference": "float64", "commit": "str", "reason": "str",
}  # fmt: skip
_BANDWIDTH_COLUMNS: Mapping[str, str] = {
    "model": "str", "repeat": "int64", "file_bytes": "int64", "mb_per_s": "float64", "measured_at": "float64",
}  # fmt: skip


class ColdSettings(BaseModel):
    """Settings of cold starts say which are measured, and how; the others are as in `ColdStartSettings`.

    Attributes:
        settings: which settings, see `engines.registry`; ours needs plans in `ready`, so it is not among the default.
        cpus: logical processors; a run with t threads is pinned to the first t. Empty pins nothing.
        seed: seed of inputs and of the order of runs.
        loaded: whether other work runs on the processors on purpose; else runs that it disturbs are made again.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    settings: Annotated[tuple[str, ...], Field(min_length=1)] = tuple(n for n, s in SETTINGS.items() if s.stock)
    threads: Annotated[tuple[Annotated[int, Field(ge=1, le=1024)], ...], Field(min_length=1)] = (1, 2)
    cpus: tuple[Annotated[int, Field(ge=0)], ...] = ()
    states: Annotated[tuple[State, ...], Field(min_length=1)] = ("evicted", "cached")
    repeats: Annotated[int, Field(ge=1, le=1000)] = 5
    warm_runs: Annotated[int, Field(ge=0, le=100_000)] = 10
    seed: Annotated[int, Field(ge=0)] = 0
    run_timeout_seconds: Annotated[float, Field(gt=0)] = 120.0
    lock_timeout_seconds: Annotated[float, Field(ge=0)] = 0.0
    loaded: bool = False


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """Names one process to start, or, where `setting` is empty, one probe of the disk's bandwidth."""

    model: str
    setting: str
    threads: int
    state: State
    repeat: int

    @property
    def place(self) -> _Place:
        """Return what is prepared once for it."""
        return self.model, self.setting, self.threads


@dataclass(frozen=True, slots=True)
class ExtraRun:
    """Adds a setting to the groups of one model's runs, under the name of its `alias`, with its prepared artefact."""

    model: str
    alias: ColdModel
    setting: str
    threads: int
    states: tuple[State, ...]
    prepared: PrepareResult


@dataclass(frozen=True, slots=True)
class ColdResults:
    """Results hold `runs` (`RUN_COLUMNS`), `bandwidth` (model, repeat, file_bytes, mb_per_s), and how many had no time."""

    runs: pd.DataFrame
    bandwidth: pd.DataFrame
    left_out: int = 0


def plan_runs(models: Sequence[str], knobs: ColdSettings, guests: Sequence[ExtraRun] = ()) -> Iterator[PlannedRun]:
    """Yield the runs in the order they are made.

    Repeats lie apart in time, and all settings of a model follow each other closely, in an order shuffled for each repeat: the
    machine's drift falls on all of them alike. A probe of the disk precedes each group.
    """
    for repeat in range(knobs.repeats):
        ordered = list(models)
        _rng(knobs.seed, repeat).shuffle(ordered)
        for model in ordered:
            group = [
                PlannedRun(model, name, threads, state, repeat)
                for name in knobs.settings
                for threads in knobs.threads
                for state in knobs.states
            ]
            group += [
                PlannedRun(guest.alias.name, guest.setting, guest.threads, state, repeat)
                for guest in guests
                if guest.model == model
                for state in guest.states
            ]
            _rng(knobs.seed, repeat, model).shuffle(group)
            yield PlannedRun(model, "", 0, "evicted", repeat)
            yield from group


def measure_runs(
    models: Sequence[ColdModel],
    knobs: ColdSettings,
    store: ArtefactStore,
    journal_path: Path,
    on_run: Callable[[PlannedRun, int, int], None] | None = None,
    ready: Mapping[tuple[str, str, int], PrepareResult] = MappingProxyType({}),
    guests: Sequence[ExtraRun] = (),
    budget: TimeBudget | None = None,
    must: Callable[[PlannedRun], bool] = lambda run: run.repeat == 0,
) -> ColdResults:
    """Make every run that the journal does not hold yet, and return all.

    Args:
        models: their names are distinct.
        knobs: what to run.
        store: holds the artefacts that settings load.
        journal_path: an append-only file; runs of another machine, engine version or content of a model in it are left alone
            and never mixed in.
        on_run: told each run before it is made, with how many are done and how many there are.
        ready: artefacts built elsewhere, by model, setting and threads, e.g. plans; the rest come from the store. Their
            `engine_version` must change with their content, since it decides which runs of the journal are theirs.
        guests: further runs that take part.
        budget: beyond it only what must be is made, each by one start that waits for nothing; None is unbounded.
        must: which runs are made whether there is time or not; without, first repeats.

    Raises:
        BusyError: another process is measuring on this machine.
        ColdRunError: ONNX Runtime, which gives the reference outputs, cannot run a model.
    """
    with machine_lock(knobs.lock_timeout_seconds):
        return _Measuring(models, knobs, store, Journal(journal_path), ready, guests, budget or TimeBudget(), must).go(on_run)


@dataclass
class _Measuring:
    """Makes runs; the arguments are those of `measure_runs`."""

    hosts: Sequence[ColdModel]
    knobs: ColdSettings
    store: ArtefactStore
    journal: Journal
    ready: Mapping[_Place, PrepareResult]
    guests: Sequence[ExtraRun]
    budget: TimeBudget
    must: Callable[[PlannedRun], bool]

    def __post_init__(self) -> None:
        known = {guest.alias.name: guest.alias for guest in self.guests}
        self._models = known | {model.name: model for model in self.hosts}
        self._prepared = self._prepare()
        self._references = {name: self.store.reference(model, self.knobs.seed) for name, model in self._models.items()}
        self._machine, self._commit, self._clocked = fingerprint(), source_commit(), References()
        self._watch = None if self.knobs.loaded else Interference(self.knobs.cpus)

    def _prepare(self) -> dict[_Place, PrepareResult]:
        """Prepare artefacts: first of runs that must be made, then of the others while there is time."""
        knobs, budget = self.knobs, self.budget.part(_PREPARING_SHARE)
        combinations = product([model.name for model in self.hosts], knobs.settings, knobs.threads)
        places = {place: any(self.must(PlannedRun(*place, state, 0)) for state in knobs.states) for place in combinations}
        made: dict[_Place, PrepareResult] = {}
        for place in sorted(places, key=lambda place: not places[place]):
            build = places[place] or not budget.over
            made[place] = self.ready.get(place) or self.store.prepare(self._models[place[0]], *place[1:], build=build)
        own = {(guest.alias.name, guest.setting, guest.threads): guest.prepared for guest in self.guests}
        return {place: made[place] for place in places} | own

    def go(self, on_run: Callable[[PlannedRun, int, int], None] | None) -> ColdResults:
        """Make the runs that the journal lacks, one after the other."""
        known = {record["key"]: record for record in self.journal.query() if not _reason(record)}
        planned = plan_runs([model.name for model in self.hosts], self.knobs, self.guests)
        possible = [run for run in planned if not run.setting or self._prepared[run.place].artefact is not None]
        given_up, left_out, records = set[_Place](), list[_Place](), list[dict[str, Any]]()
        for index, run in enumerate(possible):
            if on_run is not None:
                on_run(run, index, len(possible))
            key = self._key(run)
            if key in known:
                records.append(known[key])
                continue
            if run.place in given_up:
                continue
            if self.budget.over and not self.must(run):
                left_out.append(run.place)
                continue
            record = {"key": key, **asdict(run), "measured_at": time.time(), "commit": self._commit}
            record |= self._run(run) if run.setting else self._probe(run)
            self.journal.commit(record)
            records.append(record)
            if _reason(record):  # one crash or time-out is enough; the next call tries again
                given_up.add(run.place)
        made = {(record["model"], record["setting"], record["threads"]) for record in records}
        never = {place: PrepareResult(reason=OVER) for place in left_out if place[1] and place not in made}
        return ColdResults(result_frame(records, self._prepared | never), bandwidth_frame(records), len(left_out))

    def _run(self, run: PlannedRun) -> dict[str, Any]:
        knobs, artefact = self.knobs, self._prepared[run.place].artefact
        assert artefact is not None  # noqa: S101  it is possible
        job = RunJob(
            setting=run.setting, threads=run.threads, cpus=knobs.cpus[: run.threads], artefact=artefact, state=run.state,
            inputs=dict(self._models[run.model].inputs), seed=knobs.seed, warm_runs=knobs.warm_runs,
            reference=self._references[run.model],
        )  # fmt: skip
        watch, attempts = (None, 1) if self.budget.over else (self._watch, ATTEMPTS)
        try:
            made = start_cold(job, self._look, watch, knobs.run_timeout_seconds, attempts)
        except ColdRunError as error:
            made = ObservedStart(RunResult(reason=error.reason), self._look())
        return {"result": json.loads(made.result.model_dump_json()), "references": asdict(made.references)}

    def _look(self) -> ReferenceTimes:
        """Time the references on the first processor of a run: how slow the machine is now."""
        with pinned(*self.knobs.cpus[:1]):
            return self._clocked.time(LOOK_RUNS)

    def _probe(self, run: PlannedRun) -> dict[str, Any]:
        model = self._models[run.model]
        return {"file_bytes": model.size, "mb_per_s": page_cache.read_bandwidth_mb_per_s(model.files)}

    def _key(self, run: PlannedRun) -> str:
        version = self._prepared[run.place].engine_version if run.setting else ""
        return run_key(run, self._machine, self._models[run.model].digest, version, self.knobs)


def run_key(run: PlannedRun, machine: str, model: str, version: str, settings: ColdSettings) -> str:
    """Return the digest of all that decides a run.

    The version of the setting's engine has the plan's digest where there is one; it is "" for a probe of the disk.
    """
    knobs = settings.model_dump(include={"cpus", "warm_runs", "seed"})
    parts = [machine, model, version, protocol_of(run.setting), knobs, asdict(run)]
    return key_of(parts, 20)


def slowness_of(runs: pd.DataFrame, nominal: ReferenceTimes) -> pd.Series[float]:
    """Estimate the slowness around each run, relative to nominal times, from references beside it and its neighbours in time.

    Returns:
        Running medians over `NEIGHBOURS` runs, in the order and with the index of the runs; not a number where none was timed.
    """
    single = EXPONENTS.scaled(runs["compute_us"] / nominal.compute_us, runs["bandwidth_us"] / nominal.bandwidth_us)
    ordered = single[runs["measured_at"].sort_values(kind="stable").index]
    return ordered.rolling(NEIGHBOURS, center=True, min_periods=1).median().reindex(runs.index)


def _reason(record: dict[str, Any]) -> str:
    return str(record.get("result", {}).get("reason", ""))


def _rng(*parts: object) -> random.Random:
    return random.Random("/".join(map(str, parts)))  # noqa: S311  an order of runs, not a secret


def result_frame(records: Iterable[Mapping[str, Any]], prepared: Mapping[tuple[str, str, int], PrepareResult]) -> pd.DataFrame:
    """Return one row a run, and one (state "", repeat -1) for each setting that cannot run a model, by what preparing gave."""
    rows = [_row(record, prepared) for record in records if record["setting"]]
    rows += [
        _shared(model, name, threads, result) | {"state": "", "repeat": -1, "reason": result.reason}
        for (model, name, threads), result in prepared.items()
        if result.artefact is None
    ]
    return _typed(rows, RUN_COLUMNS)


def bandwidth_frame(records: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Return sequential reads of each model's evicted files, in MB/s (10^6 bytes); 0 where they could not be evicted."""
    return _typed([{k: r[k] for k in _BANDWIDTH_COLUMNS} for r in records if not r["setting"]], _BANDWIDTH_COLUMNS)


def _shared(model: str, name: str, threads: int, prepared: PrepareResult) -> dict[str, Any]:
    found = setting(name)
    return {
        "model": model,
        "setting": name,
        "engine": found.engine,
        "engine_version": prepared.engine_version,
        "stores_work": found.stores_work,
        "stock": found.stock,
        "threads": threads,
        "prepare_ms": prepared.prepare_ms,
    }


def _row(record: Mapping[str, Any], prepared: Mapping[tuple[str, str, int], PrepareResult]) -> dict[str, Any]:
    result = RunResult.model_validate(record["result"])
    key = (record["model"], record["setting"], record["threads"])
    row = {name: getattr(result, name) for name in RUN_COLUMNS if name in RunResult.model_fields} | _shared(*key, prepared[key])
    return row | {
        "state": record["state"],
        "repeat": record["repeat"],
        "measured_at": record["measured_at"],
        "commit": record.get("commit", NOT_RECORDED),
        "warm_ms": json.dumps([round(ms, 4) for ms in result.warm_ms]),
        "warm_min_ms": min(result.warm_ms, default=None),
        "warm_median_ms": statistics.median(result.warm_ms) if result.warm_ms else None,
        "open_ms": result.stages_ms.get("open"),
        "first_run_ms": result.stages_ms.get("first_run"),
        "stages_ms": json.dumps(result.stages_ms),
        "reason": _uncounted(record["state"], result, STOCK_TOLERANCE if row["stock"] else OUTPUT_TOLERANCE),
        **record["references"],
    }


def _uncounted(state: str, result: RunResult, tolerance: float) -> str:
    """Return why a run does not count, or ""."""
    if result.reason:
        return result.reason
    if not result.state_reached:
        return f"{result.cached_before:.0%} of the files were in the page cache, not as in state {state!r}"
    if result.output_error is not None and not result.output_error <= tolerance:
        return f"outputs differ from ONNX Runtime's by {result.output_error:.2g} of their largest magnitude"
    return ""


def _typed(rows: Iterable[dict[str, Any]], columns: Mapping[str, str]) -> pd.DataFrame:
    blank = {name: {"int64": 0, "str": ""}.get(dtype) for name, dtype in columns.items()}
    return pd.DataFrame([blank | row for row in rows], columns=list(columns)).astype(dict(columns))
