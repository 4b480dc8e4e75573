"""Joules of cold starts, where the machine counts them (Figure 12)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from edgeplan.chapters.cold_start.evaluation.evidence import OPTIMAL, OWN
from edgeplan.chapters.cold_start.measuring.artefacts import ColdModel
from edgeplan.chapters.cold_start.measuring.bench import Bench, Plans
from edgeplan.chapters.cold_start.measuring.variants import digest
from edgeplan.errors import DeviceError
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process.child import ColdRunError, run_cold
from edgeplan.measurement.process.energy import counters, read_uj, spent_joules
from edgeplan.measurement.process.job import RunJob
from edgeplan.measurement.process.journal import Journal


def measure_energy(bench: Bench, models: Sequence[ColdModel], plans: Plans, kept: Path) -> pd.DataFrame:
    """Joules of whole processes that start cold, page cache warm, settings taking turns.

    Raises:
        DeviceError: the machine counts no energy.
    """
    zones = counters()
    threads = max(bench.settings.threads)
    journal = Journal(kept)
    known = {(r["key"], r["repeat"]): r for r in journal.records()}
    rows = []
    for repeat in range(bench.settings.energy_runs):
        for model in models:
            for name in (*bench.settings.settings, OWN):
                prepared = (
                    plans.get((model.name, OPTIMAL, threads)) if name == OWN else bench.store.prepare(model, name, threads)
                )
                if prepared is None or prepared.artefact is None:
                    continue
                key = digest([model.digest, name, prepared.engine_version, threads])
                record = known.get((key, repeat))
                if record is None:
                    job = RunJob.model_validate(
                        {
                            "setting": name,
                            "threads": threads,
                            "cpus": bench.cpus[:threads],
                            "artefact": prepared.artefact,
                            "inputs": model.inputs,
                            "seed": bench.seed,
                            "state": "cached",
                        }
                    )
                    with machine_lock(bench.settings.lock_timeout_seconds):
                        before = read_uj(zones)
                        try:
                            run_cold(job, bench.settings.run_timeout_seconds)
                        except ColdRunError:
                            continue  # the table of speed-ups says why this setting cannot run the model
                        joules = spent_joules(zones, before, read_uj(zones))
                    record = {"key": key, "repeat": repeat, "model": model.name, "setting": name, "joules": joules}
                    journal.append(record)
                rows.append(record)
    return pd.DataFrame(rows, columns=["model", "setting", "repeat", "joules"])


def energy_or_reason(bench: Bench, models: Sequence[ColdModel], plans: Plans, kept: Path) -> tuple[pd.DataFrame, str]:
    """`measure_energy`, or an empty table and the reason."""
    empty = pd.DataFrame(columns=["model", "setting", "repeat", "joules"])
    if bench.settings.energy_runs == 0:
        return empty, "cold_start.energy_runs is 0"
    try:
        return measure_energy(bench, models, plans, kept), ""
    except DeviceError as error:
        return empty, error.what
