"""Profiles a model: what the row store lacks is measured, the rest is read."""

from __future__ import annotations

import contextlib
import logging
import math
import mmap
import os
import resource
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.graph.ir import Graph
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.others import DISTURBED, Others, worth_again
from edgeplan.measurement.process.interference import NOMINAL_SECONDS, PRODUCTS, Clock, Interference, calibrate
from edgeplan.measurement.process.prepare_machine import back_memory
from edgeplan.measurement.process.starts import Forks
from edgeplan.measurement.references import References
from edgeplan.measurement.settings import TimeBudget
from edgeplan.planning.profile import Fresh, Profile
from edgeplan.profiling.fresh_process_factors import (
    REPEATS,
    Pairs,
    Start,
    Starter,
    measure_pairs,
    measure_start,
    start_of,
    start_row,
    start_signature,
    tried,
)
from edgeplan.profiling.profiles import ONCE, measure_once, once_ms, profile_of
from edgeplan.profiling.rounds import Harness, ModelToProfile, measure_groups, work_ms
from edgeplan.profiling.settings import Cores, ProfileSettings
from edgeplan.profiling.store import Constants, ProfileStore, Row, identity
from edgeplan.profiling.subjects import signatures
from edgeplan.progress import progress
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.support.cpus import pinned
from edgeplan.support.scratch import ScratchFolder

log = logging.getLogger(__name__)
_THOUSANDTHS = 1000
#: How long to wait while another process is measuring on this machine.
LOCK_SECONDS = 600.0
_STEPS_SHARE = 0.6  # of the budget; the rest is for whole programs
_NOMINAL_SHARE = 0.05
_CLEARLY = 1.3  # times the work of another layout
_PROBE_BYTES, _HUGE_BYTES = 16 << 20, 2 << 20
_PRIORITY = -10  # nine tenths of a processor beside one process of the usual priority
_FEW_PAIRS, _STARTS, _TRIALS = 3, 2, 5  # of profiles that are not thorough


def profile_model(
    dnnl: Dnnl,
    model: Path,
    graph: Graph,
    settings: ProfileSettings,
    *,
    cores: Cores,
    name: str,
    store: ProfileStore | None = None,
    layouts: Sequence[str] = HOMES,
    budget: TimeBudget | None = None,
    lock_timeout_seconds: float = LOCK_SECONDS,
) -> tuple[Profile, ...]:
    """Profile a model under every home layout; only what the store lacks is measured. Without a store nothing is kept.

    The budget of time is that of the settings without one; the wait for another process that is measuring takes none of it.
    """
    known = ModelToProfile.of(dnnl, model, graph, name)
    rows = ProfileStore(None, identity(dnnl.info, settings, cores)) if store is None else store
    signed = {home: signatures(dnnl, known.lowered, home) for home in layouts}
    _set_disturbed_aside(rows, signed.values(), cores)
    missing = [home for home in layouts if not is_known(rows, signed[home])]
    constants = rows.constants()
    if missing or constants is None:
        with machine_lock(lock_timeout_seconds):
            budget = budget or TimeBudget.of(settings.budget_seconds)  # the wait for the machine takes none of it
            constants = _Measuring(known, rows, settings, cores, budget).go(missing or list(layouts)[:1])
        rows.merge()
    starts = [_stored_start(rows, signed[home]) for home in layouts]
    profiles = [_profile(known, home, rows, cores, constants, s) for home, s in zip(layouts, starts, strict=True)]
    return pooled(profiles, [start.scale for start in starts])


def is_known(rows: ProfileStore, signed: Sequence[str]) -> bool:
    """Tell whether a model was profiled under a home layout, by the signatures of its steps."""
    return all(map(rows.has, (*signed, start_signature(signed))))


def _set_disturbed_aside(rows: ProfileStore, signed: Iterable[Sequence[str]], cores: Cores) -> None:
    """Take as unknown what was measured beside others, if these have left."""
    every = {name for names in signed for name in (*names, start_signature(names)) if rows.has(name)}
    share = {name: max(row.others for row in rows.rows(name)) for name in every}
    if worth_again(max(share.values(), default=0.0), cores.all):
        log.info("measured again: other work had %.0f %% of the processors' time then", 100 * max(share.values()))
        again = {name for name in every if share[name] > DISTURBED}
        again |= {row.signature for row in rows.all_rows() if row.signature.startswith(ONCE) and row.others > DISTURBED}
        # What whole programs take is of the costs of their steps.
        rows.set_aside(again | {start_signature(names) for names in signed if not again.isdisjoint(names)} & every)


def _stored_start(rows: ProfileStore, signed: Sequence[str]) -> Start:
    signature = start_signature(signed)
    return start_of(rows.rows(signature) if rows.has(signature) else ())


def pooled(profiles: Sequence[Profile], scales: Sequence[float] = ()) -> tuple[Profile, ...]:
    """Return the profiles of a model, with medians over its home layouts of what is measured once for each layout.

    Layouts differ less in these than one measurement from the next, and a planner compares layouts. The factor on creation is
    each layout's own: unequal steps share conversions and descriptors too, which the profiler makes for each anew, and how much
    they share is a matter of the layout. So is the scale of each layout, which its costs are multiplied by.
    """

    def medians(found: Sequence[Any]) -> Any:
        names = [field.name for field in fields(found[0])]
        return type(found[0])(*(statistics.median(getattr(one, name) for one in found) for name in names))

    contention, fresh = medians([p.contention for p in profiles]), medians([p.fresh for p in profiles])
    start = statistics.median(p.start_ms for p in profiles)
    found = []
    for profile, scale in zip(profiles, scales or [1.0] * len(profiles), strict=True):
        own = replace(fresh, create=profile.fresh.create)
        own = Fresh(*(scale * value for value in astuple(own)))
        found.append(replace(profile, contention=contention, fresh=own, start_ms=scale * start))
    return tuple(found)


def _profile(model: ModelToProfile, home: str, rows: ProfileStore, cores: Cores, constants: Constants, start: Start) -> Profile:
    """Return the profile of a model under a home layout whose steps are stored, with what a fresh process pays."""
    signed = signatures(model.dnnl, model.lowered, home)
    known, once = {signature: rows.rows(signature) for signature in signed}, once_ms(rows.all_rows())
    profile = profile_of(model.dnnl, model.name, model.lowered, home, signed, known, cores, constants, start, once)
    signature = start_signature(signed)
    started = rows.rows(signature) if rows.has(signature) else ()
    return replace(profile, others=max([profile.others, *(row.others for row in started)]))


class _Measuring:
    """This class measures, within a budget, missing rows of home layouts and what the machine's constants lack."""

    def __init__(
        self, model: ModelToProfile, store: ProfileStore, settings: ProfileSettings, cores: Cores, budget: TimeBudget
    ) -> None:
        self._model, self._store, self._settings, self._cores, self._budget = model, store, settings, cores, budget
        self._pairs: dict[str, Pairs] = {}
        self._looked: set[str] = set()  # layouts that are clearly worse
        self._others = Others(cores.all)

    def go(self, layouts: Sequence[str]) -> Constants:
        """Measure the missing rows of home layouts."""
        settings, cores, model = self._settings, self._cores, self._model
        with ExitStack() as stack:
            self._scratch = Path(stack.enter_context(ScratchFolder("profile")))
            stack.enter_context(_prioritised())
            self._forks = stack.enter_context(Forks())
            self._forks.open()  # it imports while this process links
            with pinned(cores.big[0]):
                references = References()
                # The big cores alone: one load takes longer on a little core, which is no disturbance.
                watch = Interference(cores.big, PRODUCTS) if settings.strict else None
                constants = self._store.constants() or self._constants(references, watch)
                self._clock = Clock(references, constants.nominal, watch, settings.reference_runs)
            self._of_starts = replace(self._clock, watch=Interference(cores.all) if settings.strict else None)
            advance = stack.enter_context(progress(f"profiling {model.path.name}", _THOUSANDTHS * len(layouts)))
            self._steps(layouts, advance)
            starts: dict[str, Start] = {}
            for home in sorted(layouts, key=self._work_ms):
                starts[home] = self._start(home, constants, starts)
            if not settings.thorough:
                self._try(starts, constants)
            for home, start in starts.items():
                if not self._store.has(start_signature(self._signed(home))):
                    self._keep([start_row(self._signed(home), start)])
        return constants

    def _try(self, starts: dict[str, Start], constants: Constants) -> None:
        """Start the plans of the layouts that come into question: what decides between them is measured, not summed up."""
        model, homes = self._model, [home for home in starts if home not in self._looked]
        if len(homes) < 2 or all(self._store.has(start_signature(self._signed(home))) for home in homes):
            return
        plain = [replace(starts[home], scale=1.0) for home in homes]
        made = [
            _profile(model, home, self._store, self._cores, constants, start) for home, start in zip(homes, plain, strict=True)
        ]
        starter = Starter(self._of_starts, self._forks, _TRIALS, 0, TimeBudget())
        found = tried(model.dnnl, model.path, pooled(made), starter, cores=self._cores, scratch=self._scratch)
        for home, start, scale in zip(homes, plain, found, strict=True):
            starts[home] = replace(start, scale=scale)

    def _constants(self, references: References, watch: Interference | None) -> Constants:
        runs = self._settings.reference_runs
        seconds = min(NOMINAL_SECONDS, _NOMINAL_SHARE * self._budget.left_s)
        nominal = calibrate(references, runs, seconds)
        clock = Clock(references, nominal, watch, runs)
        before = clock.now()
        touch_ms, page_bytes = min(_first_touch() for _ in range(5))
        touch_ms /= clock.slowness(before, clock.now())
        constants = Constants(
            nominal_compute_us=nominal.compute_us,
            nominal_bandwidth_us=nominal.bandwidth_us,
            touch_ms_per_page=touch_ms,
            page_bytes=page_bytes,
        )
        self._store.keep_constants(constants)
        return constants

    def _steps(self, layouts: Sequence[str], advance: Callable[[int], None]) -> None:
        """Measure the steps of all layouts; the first layouts, which are the likely ones, may take most of the time."""
        budget = self._budget.part(_STEPS_SHARE)
        for number, home in enumerate(layouts):
            part = budget.part(1 / (len(layouts) - number))
            with Harness(self._model, home, self._cores, self._scratch) as rig:
                self._layout(rig, home, part, advance)

    def _layout(self, rig: Harness, home: str, budget: TimeBudget, advance: Callable[[int], None]) -> None:
        settings, store, thorough = self._settings, self._store, self._settings.thorough
        signed = self._signed(home)
        missing = [group for group in rig.subject.groups if not store.has(group.digest)]
        others = [self._work_ms(other) for other in HOMES if other != home and all(map(store.has, self._signed(other)))]

        def promising(rows: Sequence[Row]) -> bool:
            """Tell whether a layout is not clearly worse than another one, by the quick look."""
            new = {row.signature for row in rows}
            by_signature = {name: [row for row in rows if row.signature == name] for name in new}
            work = work_ms([by_signature.get(name) or store.rows(name) for name in signed])
            if thorough or not others or work <= _CLEARLY * min(others):
                return True
            self._looked.add(home)
            return False

        if missing:
            rows = measure_groups(rig, missing, settings, self._clock, advance, budget, promising)
            last = f"first:{rig.widths[-1]}"
            wanted = None if thorough else {(r.signature, r.implementation) for r in rows if last in r.samples_ms}
            known = once_ms(store.all_rows())
            self._keep([*rows, *measure_once(rig.trials, known, self._scratch, self._clock, self._forks, wanted)])
        best = thorough or self._work_ms(home) <= min(others, default=math.inf)  # only that one is started in every way
        if best and not store.has(start_signature(signed)):
            self._pairs[home] = measure_pairs(rig, self._cores, self._of_starts.watch, REPEATS if thorough else _FEW_PAIRS)

    def _keep(self, rows: Sequence[Row]) -> None:
        share = round(self._others.share(), 2)
        self._store.add([row.beside(share) for row in rows])

    def _signed(self, home: str) -> tuple[str, ...]:
        return signatures(self._model.dnnl, self._model.lowered, home)

    def _work_ms(self, home: str) -> float:
        return work_ms([self._store.rows(signature) for signature in self._signed(home)])

    def _start(self, home: str, constants: Constants, starts: Mapping[str, Start]) -> Start:
        """Start whole programs of a layout; unless profiles are thorough, only the most promising one in every way."""
        model, settings, store, signed = self._model, self._settings, self._store, self._signed(home)
        if store.has(start_signature(signed)):
            return _stored_start(store, signed)
        known = None if settings.thorough else next(iter(starts.values()), None)
        if known is not None:  # their own plans tell layouts apart
            return replace(known, scale=1.0)
        starter = Starter(
            self._of_starts,
            self._forks,
            max(settings.blocks // 2, 1) if settings.thorough else _STARTS,
            settings.retries,
            self._budget,
            settings.thorough,
        )
        profile = _profile(model, home, store, self._cores, constants, start_of(()))
        return measure_start(
            model.dnnl, model.path, profile, self._pairs.get(home, Pairs()), starter, cores=self._cores, scratch=self._scratch
        )


def _first_touch() -> tuple[float, int]:
    """Measure the first touches of a session's region: milliseconds a page, and the bytes of a page (huge, if there are)."""
    back_memory(_PROBE_BYTES)
    region = _region(_PROBE_BYTES)
    faults, start = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt, time.perf_counter()
    region[:: mmap.PAGESIZE] = 1
    elapsed = time.perf_counter() - start
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults
    huge = faults < _PROBE_BYTES // mmap.PAGESIZE // 2
    page = _HUGE_BYTES if huge else mmap.PAGESIZE
    return elapsed * 1e3 * page / _PROBE_BYTES, page


def _region(size: int) -> npt.NDArray[np.uint8]:
    """Memory as a session has it: on huge pages where the system has them, and at the beginning of one."""
    memory = mmap.mmap(-1, size + _HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % _HUGE_BYTES
    return whole[start : start + size]


@contextlib.contextmanager
def _prioritised() -> Iterator[None]:
    """Run the calling thread, and threads and processes that it starts, before other work, where the system allows that."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):  # few users may
        os.setpriority(os.PRIO_PROCESS, 0, min(before, _PRIORITY))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)
