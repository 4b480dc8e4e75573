"""Measures cold runs of models x settings x threads x states x repeats: interleaved, journalled, resumable."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.chapters.cold_start.measuring.artefacts import OVER, ArtefactStore, ColdModel, protocol_of
from edgeplan.chapters.cold_start.measuring.results import bandwidth_frame, result_frame
from edgeplan.engines.registry import SETTINGS, setting
from edgeplan.measurement.budget import TimeBudget
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process import page_cache
from edgeplan.measurement.process.clock import LOOK_RUNS
from edgeplan.measurement.process.interference import Interference
from edgeplan.measurement.process.job import PrepareResult, RunJob, RunResult, State
from edgeplan.measurement.process.undisturbed_start import ATTEMPTS, ObservedStart, start_cold
from edgeplan.measurement.provenance import source_commit
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.support.cpus import pinned
from edgeplan.support.machine import fingerprint
from edgeplan.support.store import Journal, key_of
from edgeplan.support.workers import ColdRunError

_PREPARING_SHARE = 0.5  # of the budget; the rest is for runs
#: Model, setting and threads.
_Place = tuple[str, str, int]


class ColdSettings(BaseModel):
    """Settings of cold starts say which are measured, and how.

    Attributes:
        settings: which settings, see `engines.registry`; ours needs plans in `ready`, so it is not among the default.
        threads: thread counts each setting is tried with.
        cpus: logical processors; a run with t threads is pinned to the first t. Empty pins nothing.
        states: page cache evicted, cached or both.
        repeats: fresh processes for each combination.
        warm_runs: runs after the cold one in each process.
        seed: seed of inputs and of the order of runs.
        run_timeout_seconds: bound on one process.
        lock_timeout_seconds: how long to wait while another process is measuring on this machine.
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
    state: str
    repeat: int


@dataclass(frozen=True, slots=True)
class ExtraRun:
    """Adds a setting to the groups of one model's runs, under a name of its own.

    Attributes:
        model: whose groups.
        alias: the model under the other name.
        setting, threads, states: what is run, on how many threads, in which states of the page cache.
        prepared: its artefact.
    """

    model: str
    alias: ColdModel
    setting: str
    threads: int
    states: tuple[State, ...]
    prepared: PrepareResult


@dataclass(frozen=True, slots=True)
class ColdResults:
    """Results hold `runs` (schema in `results.RUN_COLUMNS`) and `bandwidth` (model, repeat, file_bytes, mb_per_s).

    Attributes:
        left_out: runs for which there was no time.
    """

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


def measure(
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
        models: the models; their names are distinct.
        knobs: settings that say what to run.
        store: store of the artefacts that settings load.
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
        DeviceError: a setting is not known.
        ColdRunError: ONNX Runtime, which gives the reference outputs, cannot run a model.
    """
    for name in knobs.settings:
        setting(name)
    with machine_lock(knobs.lock_timeout_seconds):
        return _Measuring(models, knobs, store, Journal(journal_path), ready, guests, budget or TimeBudget(), must).go(on_run)


class _Measuring:
    def __init__(
        self,
        models: Sequence[ColdModel],
        knobs: ColdSettings,
        store: ArtefactStore,
        journal: Journal,
        ready: Mapping[tuple[str, str, int], PrepareResult],
        guests: Sequence[ExtraRun],
        budget: TimeBudget,
        must: Callable[[PlannedRun], bool],
    ) -> None:
        self._budget, self._must = budget, must
        known = {guest.alias.name: guest.alias for guest in guests}
        self._hosts, self._guests = [model.name for model in models], guests
        self._models = known | {model.name: model for model in models}
        if len(self._models) != len(known) + len(models):
            raise ValueError("two models share a name")
        self._knobs, self._journal = knobs, journal
        self._prepared = self._prepare(store, ready)
        self._references = {name: store.reference(model, knobs.seed) for name, model in self._models.items()}
        self._machine, self._commit, self._clocked = fingerprint(), source_commit(), References()
        self._watch = None if knobs.loaded else Interference(knobs.cpus)

    def _prepare(self, store: ArtefactStore, ready: Mapping[_Place, PrepareResult]) -> dict[_Place, PrepareResult]:
        """Prepare artefacts: first of runs that must be made, then of the others while there is time."""
        knobs, budget = self._knobs, self._budget.part(_PREPARING_SHARE)
        combinations = product(self._hosts, knobs.settings, knobs.threads)
        places = {place: any(self._must(PlannedRun(*place, state, 0)) for state in knobs.states) for place in combinations}
        made: dict[_Place, PrepareResult] = {}
        for place in sorted(places, key=lambda place: not places[place]):
            build = places[place] or not budget.over
            made[place] = ready.get(place) or store.prepare(self._models[place[0]], *place[1:], build=build)
        own = {(guest.alias.name, guest.setting, guest.threads): guest.prepared for guest in self._guests}
        return {place: made[place] for place in places} | own

    def go(self, on_run: Callable[[PlannedRun, int, int], None] | None) -> ColdResults:
        known = {record["key"]: record for record in self._journal.query() if not _reason(record)}
        planned = [run for run in plan_runs(self._hosts, self._knobs, self._guests) if self._possible(run)]
        given_up, left_out, records = set[_Place](), list[_Place](), list[dict[str, Any]]()
        for index, run in enumerate(planned):
            if on_run is not None:
                on_run(run, index, len(planned))
            key = self._key(run)
            if key in known:
                records.append(known[key])
                continue
            if (run.model, run.setting, run.threads) in given_up:
                continue
            if self._budget.over and not self._must(run):
                left_out.append((run.model, run.setting, run.threads))
                continue
            record = {"key": key, **asdict(run), "measured_at": time.time(), "commit": self._commit}
            record |= self._run(run) if run.setting else self._probe(run)
            self._journal.commit(record)
            records.append(record)
            if _reason(record):  # one crash or time-out is enough; the next call tries again
                given_up.add((run.model, run.setting, run.threads))
        made = {(record["model"], record["setting"], record["threads"]) for record in records}
        never = {place: PrepareResult(reason=OVER) for place in left_out if place[1] and place not in made}
        return ColdResults(result_frame(records, self._prepared | never), bandwidth_frame(records), len(left_out))

    def _possible(self, run: PlannedRun) -> bool:
        return not run.setting or self._preparation(run).artefact is not None

    def _preparation(self, run: PlannedRun) -> PrepareResult:
        return self._prepared[run.model, run.setting, run.threads]

    def _run(self, run: PlannedRun) -> dict[str, Any]:
        prepared, model = self._preparation(run), self._models[run.model]
        job = RunJob.model_validate(
            {
                "setting": run.setting,
                "threads": run.threads,
                "cpus": self._knobs.cpus[: run.threads],
                "artefact": prepared.artefact,
                "inputs": model.inputs,
                "seed": self._knobs.seed,
                "state": run.state,
                "warm_runs": self._knobs.warm_runs,
                "reference": self._references[run.model],
            }
        )
        try:
            hurried = self._budget.over
            watch, attempts = (None, 1) if hurried else (self._watch, ATTEMPTS)
            made = start_cold(job, self._look, watch, self._knobs.run_timeout_seconds, attempts)
        except ColdRunError as error:
            made = ObservedStart(RunResult(reason=error.reason), self._look())
        return {"result": json.loads(made.result.model_dump_json()), "references": asdict(made.references)}

    def _look(self) -> ReferenceTimes:
        """Time the references on the first processor of a run: how slow the machine is now."""
        with pinned(*self._knobs.cpus[:1]):
            return self._clocked.time(LOOK_RUNS)

    def _probe(self, run: PlannedRun) -> dict[str, Any]:
        files = self._models[run.model].files
        return {
            "file_bytes": sum(path.stat().st_size for path in files),
            "mb_per_s": page_cache.read_bandwidth_mb_per_s(files),
        }

    def _key(self, run: PlannedRun) -> str:
        """Return the digest of all that decides a run."""
        version = self._preparation(run).engine_version if run.setting else ""
        return run_key(run, self._machine, self._models[run.model].digest, version, self._knobs)


def run_key(run: PlannedRun, machine: str, model: str, version: str, settings: ColdSettings) -> str:
    """Return the digest of all that decides a run.

    Args:
        run: which one.
        machine: fingerprint of the machine.
        model: digest of the model's files.
        version: of the setting's engine, with the plan's digest where there is one; "" for a probe of the disk.
        settings: how runs are made.
    """
    knobs = settings.model_dump(include={"cpus", "warm_runs", "seed"})
    parts = [machine, model, version, protocol_of(run.setting), knobs, asdict(run)]
    return key_of(parts, 20)


def _reason(record: dict[str, Any]) -> str:
    return str(record.get("result", {}).get("reason", ""))


def _rng(*parts: object) -> random.Random:
    return random.Random("/".join(map(str, parts)))  # noqa: S311  an order of runs, not a secret
