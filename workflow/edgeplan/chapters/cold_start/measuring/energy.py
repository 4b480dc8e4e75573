"""Measures joules of cold starts, where the machine counts them (Figure 12)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from edgeplan.chapters.cold_start.evaluation.evidence import OPTIMAL, OWN
from edgeplan.chapters.cold_start.measuring.artefacts import OVER, ColdModel
from edgeplan.chapters.cold_start.measuring.bench import ColdStartBench, Plans
from edgeplan.errors import DeviceError
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process.child import run_cold
from edgeplan.measurement.process.energy import counters, read_uj, spent_joules
from edgeplan.measurement.process.job import RunJob
from edgeplan.support.store import Journal, key_of
from edgeplan.support.workers import ColdRunError


def measure_energy(bench: ColdStartBench, models: Sequence[ColdModel], plans: Plans, kept: Path) -> tuple[pd.DataFrame, int]:
    """Measure joules of whole processes that start cold, page cache warm, by turns; the caller holds the machine.

    Beyond the bench's budget nothing is measured that is not known.

    Returns:
        model, setting, repeat, joules; how many processes there was no time for.

    Raises:
        DeviceError: the machine counts no energy.
    """
    zones = counters()
    threads = max(bench.settings.threads)
    journal = Journal(kept)
    known = {(r["key"], r["repeat"]): r for r in journal.query()}
    rows, left_out = [], 0
    for repeat in range(bench.settings.energy_runs):
        for model in models:
            for name in (*bench.settings.settings, OWN):
                hurried = bench.budget.over
                if name == OWN:
                    prepared = plans.get((model.name, OPTIMAL, threads))
                else:
                    prepared = bench.store.prepare(model, name, threads, build=not hurried)
                if prepared is None or prepared.artefact is None:
                    left_out += prepared is not None and prepared.reason == OVER
                    continue
                key = key_of([model.digest, name, prepared.engine_version, threads])
                record = known.get((key, repeat))
                if record is None and hurried:
                    left_out += 1
                    continue
                if record is None:
                    job = RunJob(
                        setting=name, threads=threads, cpus=bench.cpus[:threads], artefact=prepared.artefact,
                        inputs=dict(model.inputs), seed=bench.seed, state="cached",
                    )  # fmt: skip
                    before = read_uj(zones)
                    try:
                        run_cold(job, bench.settings.run_timeout_seconds)
                    except ColdRunError:
                        continue  # the table of speed-ups says why this setting cannot run the model
                    joules = spent_joules(zones, before, read_uj(zones))
                    record = {"key": key, "repeat": repeat, "model": model.name, "setting": name, "joules": joules}
                    journal.commit(record)
                rows.append(record)
    return pd.DataFrame(rows, columns=["model", "setting", "repeat", "joules"]), left_out


def energy_or_reason(bench: ColdStartBench, models: Sequence[ColdModel], plans: Plans, kept: Path) -> tuple[pd.DataFrame, str]:
    """Measure energy as `measure_energy` does; return its table, maybe empty, and why there is nothing or not all."""
    empty = pd.DataFrame(columns=["model", "setting", "repeat", "joules"])
    if bench.settings.energy_runs == 0:
        return empty, "cold_start.energy_runs is 0"
    try:
        with machine_lock(bench.settings.lock_timeout_seconds):  # models are converted, too, and that loads the cores
            found, left_out = measure_energy(bench, models, plans, kept)
    except DeviceError as error:
        return empty, error.what
    over = f"{left_out} processes were left out: cold_start.budget_seconds ({bench.settings.budget_seconds:g}) was over"
    return found, over if left_out else ""
