"""Measures the runs of the chapter: stock engines and plans interleaved, plans for uneven cores, background load."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.chapters.cold_start.evaluation.evidence import (
    ABLATION,
    CACHED,
    CONTINUOUS,
    EVICTED_PLAN,
    EVICTED_SETTING,
    FIXED,
    FOLLOWED,
    OPTIMAL,
    OWN,
)
from edgeplan.chapters.cold_start.measuring.artefacts import ArtefactStore, ColdModel
from edgeplan.chapters.cold_start.measuring.planning import VARIANTS
from edgeplan.chapters.cold_start.measuring.runs import ColdResults, ColdSettings, ExtraRun, PlannedRun, measure_runs
from edgeplan.chapters.cold_start.settings import ColdStartSettings
from edgeplan.measurement.process.background import background_load
from edgeplan.measurement.process.job import PrepareResult, State
from edgeplan.measurement.settings import TimeBudget
from edgeplan.support.files import state_folder
from edgeplan.support.store import Journal

log = logging.getLogger(__name__)
#: The stock setting beside ours under a background load (Figure 11): always this one, whichever is fastest on the model.
_LOADED_STOCK = "onnxruntime-optimised"
_SEPARATOR = "--"
_LOG_EVERY_SECONDS = 15.0
#: (model, plan, threads) -> plan folder.
Plans = Mapping[tuple[str, str, int], PrepareResult]


@dataclass(frozen=True)
class ColdStartBench:
    """Holds what every kind of run needs; `cpus` are in the order in which they are used, and `budget` is for all runs."""

    settings: ColdStartSettings
    cpus: tuple[int, ...]
    seed: int
    store: ArtefactStore
    journal: Path
    budget: TimeBudget = field(default_factory=TimeBudget)

    def knobs(self, **changes: object) -> ColdSettings:
        """Return the settings of runs, with changes."""
        s = self.settings
        values = {name: value for name, value in s if name in ColdSettings.model_fields}
        own = {"settings": (*s.settings, OWN), "cpus": self.cpus, "seed": self.seed}
        return ColdSettings.model_validate(values | own | changes)

    def further(self, what: str, models: Sequence[ColdModel], ready: Plans, **changes: Any) -> ColdResults:
        """Make runs none of which must be, each as often as further plans are."""
        knobs = self.knobs(**{"repeats": self.settings.fewer_repeats} | changes)
        budget, never = self.budget, lambda _run: False
        return measure_runs(models, knobs, self.store, self.journal, reporter(what), ready, budget=budget, must=never)


def measure_all(bench: ColdStartBench, models: Sequence[ColdModel], plans: Plans) -> tuple[pd.DataFrame, pd.DataFrame, int]:
    """Make the runs, with probes of the disk among them.

    Returns:
        The runs with their plan, load and load's core; the bandwidths; how many runs were left out for lack of time.
    """
    threads = max(bench.settings.threads)
    absent = PrepareResult(reason="no plan: execution was not profiled at this width")
    ours = {OWN: OPTIMAL}
    if any(plan == EVICTED_PLAN for _, plan, _ in plans):
        ours[EVICTED_SETTING] = EVICTED_PLAN
    own = {
        (m.name, setting, t): plans.get((m.name, plan, t), absent)
        for m in models
        for setting, plan in ours.items()
        for t in bench.settings.threads
    }
    knobs = bench.knobs(settings=(*bench.settings.settings, *ours))
    groups = _groups(bench.settings.plans, plans, bench.settings.states)
    beside = [guest for group, names in groups.items() if not group.uneven for guest in group.guests(models, plans, names)]
    stock = bench.settings.settings[:1]

    def must(run: PlannedRun) -> bool:
        """Tell whether a run is made even without time: one a model, of ours and of a stock engine, and the disk's."""
        return run.repeat == 0 and (not run.setting or (run.threads == threads and run.setting in (OWN, *stock)))

    main = measure_runs(models, knobs, bench.store, bench.journal, reporter("cold starts"), own, beside, bench.budget, must)
    parts = [_labelled(main.runs)]
    probes, left_out = [main.bandwidth], main.left_out
    for group, names in groups.items():
        if group.uneven:
            # they have a core more, the little one beyond the first, so they cannot stand beside others
            guests = group.guests(models, plans, names)
            ready = {(g.alias.name, g.setting, g.threads): g.prepared for g in guests}
            found = bench.further(
                "plans for uneven cores", [guest.alias for guest in guests], ready,
                settings=(group.setting,), threads=(group.threads,), states=group.states, cpus=(),
            )  # fmt: skip
            parts.append(_labelled(found.runs))
            left_out += found.left_out
            probes.append(found.bandwidth.assign(model=found.bandwidth["model"].str.partition(_SEPARATOR)[0]))
    loaded, missed = _under_load(bench, models, plans, threads)
    parts.append(loaded)
    runs = pd.concat([part for part in parts if len(part)], ignore_index=True)
    return runs, pd.concat(probes, ignore_index=True), left_out + missed


@dataclass(frozen=True)
class _Group:
    """Describes how some further plans are run alike."""

    setting: str
    threads: int
    states: tuple[State, ...]
    uneven: bool = False

    def guests(self, models: Sequence[ColdModel], plans: Plans, names: Sequence[str]) -> list[ExtraRun]:
        """Return every plan under a name of its own, so that all are shuffled among each other."""
        return [
            ExtraRun(m.name, replace(m, name=f"{m.name}{_SEPARATOR}{n}"), self.setting, self.threads, self.states, prepared)
            for m in models
            for n in names
            if (prepared := plans.get((m.name, n, self.threads))) is not None
        ]


def _groups(wanted: Collection[str], plans: Plans, states: Sequence[State]) -> dict[_Group, list[str]]:
    """Group further plans by how they are run.

    All are for weights in memory; the ablation (Figure 13) is shown with the page cache evicted, too.
    """
    groups: dict[_Group, list[str]] = {}
    for name, variant in VARIANTS.items():
        if name in (OPTIMAL, EVICTED_PLAN):  # run among the stock engines
            continue
        setting = CONTINUOUS if variant.continuous else FIXED if name in FOLLOWED else OWN
        for count in sorted({threads for _, plan, threads in plans if plan == name and name in wanted}):
            both = name in ABLATION or CACHED not in states
            shown: tuple[State, ...] = tuple(states) if both else ("cached",)
            groups.setdefault(_Group(setting, count, shown, variant.uneven), []).append(name)
    return groups


def _labelled(runs: pd.DataFrame, *, percent: int = 0, core: str = "") -> pd.DataFrame:
    """Tell plan and model apart in the names under which they were run."""
    parts = runs["model"].str.partition(_SEPARATOR)
    own = runs["setting"].str.startswith(OWN)
    streamed = runs["setting"] == EVICTED_SETTING
    plan = parts[2].where(parts[2] != "", OPTIMAL).where(~streamed, EVICTED_PLAN).where(own, "")
    setting = runs["setting"].where(~streamed, OWN)
    return runs.assign(model=parts[0], setting=setting, plan=plan, load_percent=percent, load_core=core)


def _under_load(bench: ColdStartBench, models: Sequence[ColdModel], plans: Plans, threads: int) -> tuple[pd.DataFrame, int]:
    """Measure Figure 11: the optimal plan, with and without stealing, and one stock setting, beside a load on one core."""
    s = bench.settings
    chosen = [m for m in models if m.name == "googlenet"] or list(models)[:1]
    settings = [OWN, FIXED, *(n for n in (_LOADED_STOCK,) if n in s.settings)]
    cores = {"executing": bench.cpus[0], "preparing": bench.cpus[threads - 1]} if threads > 1 else {"executing": bench.cpus[0]}
    parts: dict[tuple[str, int], pd.DataFrame] = {}
    left_out: dict[tuple[str, int], int] = {}
    for repeat in range(s.fewer_repeats if s.load_percents else 0):  # the loads take turns: drift meets all alike
        for place, core in cores.items():
            for percent in s.load_percents:
                loaded = [replace(m, name=f"{m.name}{_SEPARATOR}load-{place}-{percent}") for m in chosen]
                ready = {
                    (alias.name, name, threads): plans[m.name, OPTIMAL, threads]
                    for alias, m in zip(loaded, chosen, strict=True)
                    for name in settings
                    if name.startswith(OWN)
                }
                changes = {"settings": settings, "threads": (threads,), "states": ("cached",), "repeats": repeat + 1}
                with background_load(core, percent):
                    found = bench.further("background load", loaded, ready, **changes, loaded=True)
                left_out[place, percent] = found.left_out
                parts[place, percent] = _labelled(found.runs, percent=percent, core=place).assign(
                    plan=lambda f: f["plan"].where(f["plan"] == "", OPTIMAL)
                )
    runs = pd.concat(list(parts.values()), ignore_index=True) if parts else pd.DataFrame()
    return runs, sum(left_out.values())


def reporter(what: str) -> Callable[[PlannedRun, int, int], None]:
    """Return a function that tells the log now and then how far the runs are."""
    last = time.monotonic()

    def report(run: PlannedRun, done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= _LOG_EVERY_SECONDS:
            last = time.monotonic()
            log.info("%s: %d of %d, now %s on %s", what, done, total, run.setting or "the disk", run.model)

    return report


@contextmanager
def shared_journal(kept: Path, name: str) -> Iterator[Path]:
    """Open the journal of a device's runs: it lies outside of the workspace, which may be temporary, and is `kept` in it."""
    path = state_folder() / "cold_start" / f"{name}.jsonl"
    Journal(path).merge(kept)
    try:
        yield path
    finally:
        Journal(kept).merge(path)
