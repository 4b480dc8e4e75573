"""Corrects profiled steps for what whole programs cost in a fresh process, where every cold start happens.

Candidates are profiled one after another, in a process that has prepared and executed the like before. A process that has just
started meets pages that are not mapped yet, caches that hold something else, and a code generator that nobody has called; but
it makes all its kernels in a row, where the profiler reads and transforms weights between two of them. So plans of a model are
started in fresh processes, by turns: each step's candidate of the least work, with weights mapped from the cache and with raw
ones, on one core first. Each stage's time there over the profile's is a factor on all costs of that stage. The same steps
prepared on one core beside the execution on another tell, against the start on one core, how much these slow each other down.
By how much two preparations on two cores do so is measured here, too.
"""

from __future__ import annotations

import hashlib
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from edgeplan.measurement.others import thread_waited_ms
from edgeplan.measurement.process.inputs import job_inputs
from edgeplan.measurement.process.interference import LIMIT, MOST_CONTENTION, Clock, Interference
from edgeplan.measurement.process.job import RunJob
from edgeplan.measurement.process.record_bench import Bench
from edgeplan.measurement.process.starts import ATTEMPTS, Forks, prepared_plan, start_cold
from edgeplan.measurement.settings import TimeBudget
from edgeplan.planning.document import Plan
from edgeplan.planning.machine import MAIN, KernelSchedule, cost_arrays, makespan_ms, stages_ms
from edgeplan.planning.optimal import Outcome, Search, optimal_outcome, plan_document
from edgeplan.planning.profile import BIG, SOURCES, Candidate, Contention, Fresh, Profile, check, pareto
from edgeplan.profiling.rounds import Harness, release_freed
from edgeplan.profiling.samples import TrialProgram
from edgeplan.profiling.settings import Cores
from edgeplan.profiling.store import NOISE, Row
from edgeplan.profiling.subjects import target_of
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.support.cpus import pinned
from edgeplan.support.workers import ColdRunError

#: Of each measurement.
REPEATS = 5
_MOST_WAITED = 0.9  # of a measurement, to waiting for a processor
_LEAST_LEFT = 0.05  # of a core's speed, when two that prepare get hardly more done than one


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs hold factors (>= 1) of preparing beside another preparation, by where the weights come from."""

    cached: float = 1.0
    raw: float = 1.0


def measure_pairs(rig: Harness, cores: Cores, watch: Interference | None, repeats: int = REPEATS) -> Pairs:
    """Prepare a model on one core, alone and beside another preparation of it, by turns, so that drift meets both alike.

    Where kernels are generated, two preparations wait for each other; where bytes are moved, they share the memory.

    The cores are the first big one, and the first little one, else the second big one. What they were disturbed in is measured
    again, by the watch of all cores; without it nothing is waited for, and a waiting for a processor is taken off.
    """
    others = (*cores.little, *cores.big[1:])
    if not others:
        return Pairs()
    trials, where = rig.trials, (others[0], cores.big[0])

    def factor(*programs: TrialProgram) -> float:
        with ExitStack() as stack:
            benches = (Bench(made.content, rig.dnnl.info.path, made.cache, rig.bench) for made in programs)
            first, second = (_Passes(rig.dnnl, stack.enter_context(bench)) for bench in benches)
            return _pair((first, second), where, watch, repeats)

    return Pairs(factor(trials.cached, trials.cached), factor(trials.raw, trials.trying))  # raw ones go to places of their own


def _pair(pair: tuple[_Passes, _Passes], where: tuple[int, int], watch: Interference | None, repeats: int) -> float:
    """Return the factor of the first of two."""

    def alone() -> float:
        with pinned(where[0]):
            return pair[0].prepare()

    def together() -> float:
        return _at_once(*zip(pair, where, strict=True))[0]

    times = [(_undisturbed(alone, watch), _undisturbed(together, watch)) for _ in range(repeats)]
    usual, slowed = (float(np.median(found)) for found in zip(*times, strict=True))
    return float(np.clip(slowed / usual, 1.0, MOST_CONTENTION))


def _undisturbed(measure: Callable[[], float], watch: Interference | None) -> float:
    """Return a measurement during which the processors were free, if there was one; else the last."""
    if watch is None:
        return measure()
    for _ in range(ATTEMPTS):
        before = watch.wait()
        found = measure()
        if max(before, watch.now()) <= LIMIT:
            break
    return found


def charged(both: float, beside_execution: float) -> float:
    """Return the factor on the main core's preparations that makes up for what two preparations take from each other.

    Beside each other they get 2 / `both` of a lone core's work done. The other core goes on at 1 / `beside_execution` in the
    model, so 2 / `both` - 1 / `beside_execution` is left for the main core.
    """
    return float(np.clip(1 / max(2 / both - 1 / beside_execution, _LEAST_LEFT), 1.0, MOST_CONTENTION))


def _at_once(*preparing: tuple[_Passes, int]) -> list[float]:
    """Prepare beside each other, once, each on a processor. Nothing is freed meanwhile, which interrupts: no start does."""
    together = threading.Barrier(len(preparing))

    def one(passes: _Passes, processor: int) -> float:
        with pinned(processor):
            try:
                return passes.prepare(together)
            except BaseException:
                together.abort()
                raise

    with ThreadPoolExecutor(len(preparing), thread_name_prefix="contention") as pool:
        made = [pool.submit(one, *each) for each in preparing]
        problems = [each.exception() for each in made]
    if found := [problem for problem in problems if problem is not None]:
        # what one failed at, rather than that the other missed it
        raise min(found, key=lambda problem: isinstance(problem, threading.BrokenBarrierError))
    return [each.result() for each in made]


@dataclass(frozen=True, slots=True)
class _Passes:
    """Passes prepare a whole model with the first candidate of every step, as a cold start does."""

    dnnl: Dnnl
    bench: Bench

    def prepare(self, together: threading.Barrier | None = None) -> float:
        """Return milliseconds of preparing all steps; together with others if they are to begin, and to have ended, at once."""
        self.dnnl.set_threads(1)
        release_freed()
        self.bench.renew()  # also what is mapped: pages that were seen before cost nothing
        if together:
            together.wait()
        waited, start = thread_waited_ms(), time.perf_counter()
        spent = self.bench.prepare_all()
        elapsed_ms = (time.perf_counter() - start) * 1e3
        lost = min((thread_waited_ms() - waited) / elapsed_ms, _MOST_WAITED)
        if together:
            together.wait()
        return spent / 1e6 * (1 - lost)


#: Medians over 13 models and their home layouts on a quiet machine.
_USUAL_FRESH = Fresh(read=1.2, map=0.9, create=0.6, transform=1.0, execute=1.0, wide=1.0)
_USUAL_CONTENTION = Contention(prepare=1.03, execute=1.01, read=1.03, main=1.8, raw_prepare=1.1, raw_read=1.2, raw_main=4.2)
Factors = TypeVar("Factors", Fresh, Contention)
#: Signatures of the rows of whole programs begin with this; the `position` of such a row is the number of steps.
START = "start-"
_STAGE, _SCALE = "start", "scale"
_MOST = 20.0  # a factor beyond this, either way, says that the machine was busy
_TRIED_SECONDS = 1.0  # of search
_LEAST_MS = 0.05  # of a stage, for a ratio of it to say anything
_PREPARING = ("read", "create", "transform")
_MAPPED, _READ, _RAW = "cached_mmap", "cached_read", "raw"
Key = TypeVar("Key", bound=Hashable)
STAGES = ("open", "read", "create", "transform", "execute")
_MOST_LOST = 0.9
_SLIGHT = 0.1  # of a start, lost to others and taken off, is less than starts differ by


@dataclass(frozen=True, slots=True)
class Check:
    """Holds predicted and measured milliseconds: `total`, then `STAGES` summed over cores, an execution once however wide."""

    predicted_ms: Mapping[str, float]
    measured_ms: Mapping[str, float]


def predicted_ms(profile: Profile, plan: Plan) -> dict[str, float]:
    """Predict the makespan (`total`) and the stages of a plan from its profile, contention included."""
    choice = []
    for layer, implementation, source in zip(profile.layers, plan.implementation, plan.source, strict=True):
        wanted = (plan.implementations[implementation], SOURCES[source])
        choice.append([(c.implementation, c.source) for c in layer.candidates].index(wanted))
    place = {k: q for q, queue in enumerate(plan.queues) for k in queue}
    schedule = KernelSchedule(tuple(choice), tuple(place.get(k, MAIN) for k in range(len(choice))), plan.widen_from)
    total = profile.start_ms + makespan_ms(cost_arrays(profile), schedule)
    return {"total": total, "open": profile.start_ms} | stages_ms(profile, schedule)


def start_job(plan: Plan, folder: Path, cpus: tuple[int, ...]) -> RunJob:
    """Return the job of a cold start of the folder that was built from a plan, on these processors, the page cache warm."""
    return RunJob.model_validate(
        {
            "setting": "edgeplan",
            "threads": plan.threads,
            "cpus": cpus,
            "artefact": prepared_plan(folder).artefact,
            "state": "cached",
            **job_inputs(read_folder(folder).head.inputs),
        }
    )


@dataclass(frozen=True, slots=True)
class _Started:
    """Times of a start at nominal speed, waiting taken off, and the share of it that was lost to others."""

    times_ms: Mapping[str, float]
    lost: float


@dataclass(frozen=True, slots=True)
class Starter:
    """A starter starts plans in fresh processes.

    Attributes:
        clock: the profile's; with a watch of all cores quiet moments are waited for.
        forks: the processes; those of a clock with a watch are made anew, as for the starts that are published.
        retries: further starts, for as long as all of a plan were disturbed; none where quiet moments are waited for.
        thorough: whether plans of raw weights are started beside an execution, too; else those of cached ones stand for them.
    """

    clock: Clock
    forks: Forks
    repeats: int
    retries: int
    budget: TimeBudget
    thorough: bool = True

    def start(self, jobs: Mapping[Key, RunJob]) -> tuple[dict[Key, dict[str, float]], float]:
        """Start each job by turns, so that drift meets all alike.

        Returns:
            For each job the medians of `total` and of `STAGES` over the starts that nobody disturbed, else those of the start
            that was disturbed least; and the share of the jobs that it was so for.
        """
        waits = self.clock.watch is not None
        made: dict[Key, list[_Started]] = {key: [] for key in jobs}
        for turn in range(self.repeats if waits else self.repeats + self.retries):
            for key, job in jobs.items():
                enough = turn >= self.repeats and any(start.lost <= _SLIGHT for start in made[key])
                if waits or not made[key] or not (enough or self.budget.over):
                    made[key].append(self._one(job))
        noisy = sum(all(start.lost > _SLIGHT for start in starts) for starts in made.values())
        return {key: _typical(starts) for key, starts in made.items()}, noisy / max(len(jobs), 1)

    def _one(self, job: RunJob) -> _Started:
        if self.clock.watch is not None:
            quiet = start_cold(job, self.clock.now, self.clock.watch)
            run, slowness = quiet.result, self.clock.slowness(quiet.references)
        else:
            before = self.clock.now()
            run = self.forks.run_cold(job)
            slowness = self.clock.slowness(before, self.clock.now())
        if run.cold_ms is None:
            raise ColdRunError(f"the plan was not run: {run.reason}", where=job.setting, next_step="plan the model again")
        times, lost = {"total": run.cold_ms, **{stage: run.stages_ms[stage] for stage in STAGES}}, 0.0
        if self.clock.watch is None:
            lost = min((run.waited_ms + run.stolen_ms) / (run.cold_ms * (len(job.cpus) or job.threads)), _MOST_LOST)
        return _Started({name: time * (1 - lost) / slowness for name, time in times.items()}, lost)


def _typical(starts: Sequence[_Started]) -> dict[str, float]:
    counting = [start for start in starts if start.lost <= _SLIGHT] or [min(starts, key=lambda start: start.lost)]
    return {name: statistics.median(start.times_ms[name] for start in counting) for name in counting[0].times_ms}


@dataclass(frozen=True, slots=True)
class Start:
    """A start holds the measured costs of a whole program in a fresh process.

    Attributes:
        start_ms: paid before the first step, and for the inputs and outputs.
        noise: share of the programs that were disturbed whenever they were started.
        scale: what the home layout's own plan took over its prediction, relative to the best layout, where that was tried: it
            tells layouts apart that are predicted alike.
    """

    start_ms: float
    fresh: Fresh
    contention: Contention
    noise: float = 0.0
    scale: float = 1.0


def start_signature(signed: Sequence[str]) -> str:
    """Return the key of a program's row: it stands for all of its steps."""
    return START + hashlib.sha256(" ".join(signed).encode()).hexdigest()[:18]


def start_row(signed: Sequence[str], start: Start) -> Row:
    """Return the row of a program: the time of its start, and each factor as a stage of one sample."""
    stored = {_STAGE: start.start_ms}
    stored |= {f"{name}_{f.name}": getattr(part, f.name) for name, part in _parts(start) for f in fields(part)}
    if start.noise:
        stored[NOISE] = start.noise
    if start.scale != 1.0:
        stored[_SCALE] = start.scale
    samples = {name: (float(np.float32(value)),) for name, value in stored.items()}  # as rows are stored
    return Row(start_signature(signed), "", len(signed), 0, 0, 0, samples, time.time())


def start_of(rows: Sequence[Row]) -> Start:
    """Build a start from a program's rows; of several, the medians; of none, a start that costs nothing."""
    nothing = Start(0.0, Fresh(), Contention())
    if not rows:
        return nothing

    def median(stage: str, otherwise: float | None = None) -> float:
        found = [row.samples_ms[stage][0] if otherwise is None else row.samples_ms.get(stage, (otherwise,))[0] for row in rows]
        return float(np.median(found))

    fresh, contention = (
        type(part)(*(median(f"{name}_{field.name}") for field in fields(part))) for name, part in _parts(nothing)
    )
    assert isinstance(fresh, Fresh)  # noqa: S101  by the order of the parts
    assert isinstance(contention, Contention)  # noqa: S101  likewise
    return Start(median(_STAGE), fresh, contention, median(NOISE, 0.0), median(_SCALE, 1.0))


def _parts(start: Start) -> tuple[tuple[str, Fresh | Contention], ...]:
    return ("fresh", start.fresh), ("contention", start.contention)


def measure_start(
    dnnl: Dnnl, model: Path, profile: Profile, pairs: Pairs, starter: Starter, *, cores: Cores, scratch: Path
) -> Start:
    """Start plans of a model under one home layout in fresh processes; the profile's own start and factors do not count."""
    plain = replace(profile, start_ms=0.0, fresh=Fresh(), contention=Contention())
    cases = {("alone", _MAPPED): replace(plain, big_cores=1) if plain.equal else plain}
    cases["alone", _RAW] = cases["alone", _MAPPED]
    if plain.queues:
        cases |= {("beside", source): plain for source in ((_MAPPED, _RAW) if starter.thorough else (_MAPPED,))}
    if plain.equal and plain.big_cores > 1:
        cases["wide", _MAPPED] = plain
    plans, jobs = {}, {}
    for (how, source), on in cases.items():
        plan = plan_of_least(dnnl, model, on, source, beside=how == "beside")
        # within a folder of their own: what replaces a plan locks the one around it, and the scratch folder is locked
        folder = scratch / "started" / f"{profile.layout}-{how}-{source}"
        build_plan_folder(dnnl, model, plan, folder)
        plans[how, source] = plan
        jobs[how, source] = start_job(plan, folder, cores.all if on.cores > 1 else cores.big[:1])
    found, noise = starter.start(jobs)
    checks = {case: Check(predicted_ms(on, plans[case]), found[case]) for case, on in cases.items()}
    fresh, alone = _fresh(checks), checks["alone", _MAPPED].measured_ms
    start = max(alone["total"] - sum(alone[stage] for stage in (*_PREPARING, "execute")), 0.0)
    if not plain.queues:
        return Start(start, drawn(fresh, _USUAL_FRESH, noise), Contention(), noise)
    contention = _contention(checks, pairs)
    told = predicted_ms(replace(plain, start_ms=start, fresh=fresh, contention=contention), plans["beside", _MAPPED])
    left = checks["beside", _MAPPED].measured_ms["total"] - told["total"]
    fresh = replace(fresh, hand_over_ms=max(left, 0.0) / len(profile.layers))
    return Start(start, drawn(fresh, _USUAL_FRESH, noise), drawn(contention, _USUAL_CONTENTION, noise), noise)


def drawn(found: Factors, usual: Factors, noise: float) -> Factors:
    """Draw factors to usual ones by the share of the starts behind them that stayed disturbed.

    Beside other work they say more of that than of the model: a contention of 7 was seen, where quiet machines give 1 to 1.3.
    """

    def between(measured: float, other: float) -> float:
        return measured ** (1 - noise) * other**noise if min(measured, other) > 0 else measured * (1 - noise) + other * noise

    return type(found)(*map(between, astuple(found), astuple(usual)))


def tried(
    dnnl: Dnnl, model: Path, profiles: Sequence[Profile], starter: Starter, *, cores: Cores, scratch: Path
) -> list[float]:
    """Measure the optimal plan of each profile over its prediction, started by turns; the least ratio counts as 1.

    Only how they differ is asked for: what slows all of them is the load that happens to be beside them.
    """
    jobs, predicted = {}, []
    search = Search(time_limit_s=_TRIED_SECONDS)
    for profile in profiles:
        found = optimal_outcome(pareto(check(profile)), search)
        target = target_of(model, dnnl, profile.big_cores)
        plan = plan_document(found, "optimal", target, bound_ms=found.lower_bound_ms or found.makespan_ms)
        folder = scratch / "tried" / profile.layout
        build_plan_folder(dnnl, model, plan, folder)
        jobs[profile.layout] = start_job(plan, folder, cores.all)
        predicted.append(plan.makespan_ms)
    starts, _ = starter.start(jobs)
    ratios = [starts[p.layout]["total"] / time for p, time in zip(profiles, predicted, strict=True)]
    return [float(min(ratio / min(ratios), _MOST)) for ratio in ratios]


def _fresh(checks: Mapping[tuple[str, str], Check]) -> Fresh:
    """Return measured over profiled times of each stage, from starts in which nothing overlaps."""
    mapped, raw = checks["alone", _MAPPED], checks["alone", _RAW]
    execute = _factor(mapped, "execute")
    wide = checks.get(("wide", _MAPPED))
    return Fresh(
        read=_factor(raw, "read"),
        map=_factor(mapped, "read"),
        create=_factor(mapped, "create"),
        transform=_factor(raw, "transform"),
        execute=execute,
        wide=_factor(wide, "execute") if wide else execute,
    )


def _factor(checked: Check, stage: str) -> float:
    """Return measured over predicted time; 1 where there is next to nothing of the stage."""
    predicted = checked.predicted_ms[stage]
    return float(np.clip(checked.measured_ms[stage] / predicted, 1 / _MOST, _MOST)) if predicted > _LEAST_MS else 1.0


def _contention(checks: Mapping[tuple[str, str], Check], pairs: Pairs) -> Contention:
    """Return each stage's slow-down beside other work; what is profiled of both cores' classes cancels out."""

    def slower(source: str, *stages: str) -> float:
        source = source if ("beside", source) in checks else _MAPPED
        beside, alone = (checks[how, source] for how in ("beside", "alone"))
        sums = [sum(times[s] for s in stages) for c in (beside, alone) for times in (c.measured_ms, c.predicted_ms)]
        measured, predicted, measured_alone, predicted_alone = sums
        if min(predicted, measured_alone, predicted_alone) < _LEAST_MS:
            return 1.0
        return float(np.clip(measured / measured_alone * predicted_alone / predicted, 1.0, _MOST))

    return Contention(
        prepare=slower(_MAPPED, "create"),
        execute=slower(_MAPPED, "execute"),
        read=slower(_MAPPED, "read"),
        main=charged(pairs.cached, slower(_MAPPED, *_PREPARING)),
        raw_prepare=slower(_RAW, "create", "transform"),
        raw_read=slower(_RAW, "read"),
        raw_main=charged(pairs.raw, slower(_RAW, *_PREPARING)),
    )


def plan_of_least(dnnl: Dnnl, model: Path, profile: Profile, source: str, *, beside: bool) -> Plan:
    """Return each step's candidate of the least work with one source of weights; raw ones are read where there are none.

    Others may have had the profiler's quick look only, and be good in nothing: what they cost says little of those in plans.
    All is prepared beside the execution, or before it by the core that executes.
    """

    def work_ms(candidate: Candidate) -> float:
        return sum(candidate.stages_ms(BIG)) + candidate.execute_ms[min(candidate.execute_ms)]

    choice = []
    for layer in profile.layers:
        usable = [i for i, c in enumerate(layer.candidates) if c.source in (source, "none")]
        usable = usable or [i for i, c in enumerate(layer.candidates) if c.source == _READ]
        choice.append(min(usable, key=lambda i: work_ms(layer.candidates[i])))
    steps = len(choice)
    place = tuple(k % profile.queues if beside else MAIN for k in range(steps))
    schedule = KernelSchedule(tuple(choice), place, steps if beside or not profile.equal else 0)
    makespan = makespan_ms(cost_arrays(profile), schedule)
    outcome = Outcome(profile, schedule, makespan, "for calibration")
    return plan_document(outcome, "calibration", target_of(model, dnnl, profile.big_cores), bound_ms=makespan)
