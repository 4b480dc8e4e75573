"""Stage `sampling`: measured and labelled kernels, by the adaptive sampler, its baselines, the frozen set and both modes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd

from edgeplan.devices.config import load_device
from edgeplan.files import write_json
from edgeplan.frames import write_parquet
from edgeplan.fusion.rules import FusionRules, read_rules
from edgeplan.graph.kernels import KernelConfig, make_kernel, without_context
from edgeplan.graph.simplify import simplify
from edgeplan.graph.splitting import split
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Subject
from edgeplan.params import Params
from edgeplan.sampling.adaptive import CarrierSampler, Row, Sampled
from edgeplan.sampling.isolated import Boundary, chains, extract, fit_boundary, isolated_label, isolated_row
from edgeplan.sampling.labels import CounterModel, fit_counters, plain_layouts
from edgeplan.sampling.prior import Prior, read_prior
from edgeplan.sampling.sweeps import CONV_CHECK, SWEEP, check_graphs, sweep_graphs
from edgeplan.zoo import prior_models

#: Name under which the kernels of whole published networks stand in the training table.
NETWORK = "network"
_CHAINS = 24


def sample_kernels(params: Params, *, device: Path, prior: Path, rules: Path, rows: Path, kernels: Path, summary: Path) -> None:
    """Measure kernels on a device and write the training table and what it cost.

    An engine that reports its nodes is sampled in carriers; a black box is sampled by kernels measured alone.
    """
    file = load_device(device)
    settings = params.sampling
    mode = settings.modes.get(file.engine, "isolated")
    found: list[Row] = []
    seconds: dict[str, float] = {}
    sampler_seconds: dict[str, float] = {}
    with Bench(file, params.measurement, rows) as bench:
        sampler = CarrierSampler(bench, settings, Prior(read_prior(prior)), params.seed)
        fused = read_rules(rules)
        counters, plain, adaptive = CounterModel(0.0, 1.0, 0.0), {}, Sampled()
        if mode == "in_situ":
            adaptive = sampler.adaptive()
            counters, plain = fit_counters(adaptive.measurements), plain_layouts(adaptive.graphs, adaptive.measurements)
            parts = {"adaptive": adaptive, "frozen": sampler.frozen()}
            if settings.baselines:
                parts |= {"random": sampler.uniform(), "prior": sampler.prior_only(adaptive)}
            if settings.networks:
                parts[NETWORK] = sampler.fixed(simplify(build()) for build in prior_models().values())
            parts |= {SWEEP: sampler.fixed(sweep_graphs()), CONV_CHECK: sampler.fixed(check_graphs())}
            for name, sampled in parts.items():
                found += sampled.rows(counters, plain, name)
                seconds[name] = sampled.seconds
            sampler_seconds = {name: round(seconds[name], 2) for name in ("adaptive", "random", "prior") if name in seconds}
            if "prior" in parts:  # its initial carriers are those of the adaptive sampler: measured once, counted once
                seconds["prior"] -= sum(
                    m.seconds for m, n in zip(adaptive.measurements, adaptive.rounds, strict=True) if n == 0
                )
        budget = settings.mode_seconds if mode == "in_situ" else settings.budget_seconds
        if budget:
            alone, seconds["isolated" if mode == "in_situ" else "kernels"] = _isolated(
                bench, sampler, fused, budget, params.seed
            )
            found += alone
        measured_at = time.strftime("%Y-%m-%d", time.gmtime(bench.last_measured_at()))
        version = str(bench.store.identity["engine_version"])
    write_parquet(_without_seen(pd.DataFrame(found)), kernels)
    document = {
        "mode": mode,
        "device": file.name,
        "engine": file.engine,
        "engine_version": version,
        "measured_at": measured_at,
        "budget_seconds": settings.budget_seconds,
        "seconds": {k: round(v, 2) for k, v in seconds.items()},
        "sampler_seconds": sampler_seconds,
        "carriers": {"adaptive": len(adaptive.graphs)},
        "rounds": adaptive.errors,
        "counters": asdict(counters),
        "call_us": counters.call,
        "plain_layouts": plain,
        "mode_subjects": _first_subjects(adaptive, settings.mode_seconds),
    }
    write_json(summary, document)


def _without_seen(table: pd.DataFrame) -> pd.DataFrame:
    """The table without frozen rows whose configuration some sampler measured too: the frozen set must be unseen."""
    if table.empty or "frozen" not in set(table["sampler"]):
        return table
    frozen = table["sampler"] == "frozen"
    plain = table["config"].map(without_context)
    return table[~(frozen & plain.isin(set(plain[~frozen])))].reset_index(drop=True)


def _first_subjects(sampled: Sampled, seconds: float) -> list[str]:
    """Ids of the first carriers that took so many seconds together: what the comparison of modes trains on."""
    taken, spent = [], 0.0
    for measurement in sampled.measurements:
        if spent >= seconds:
            break
        spent += measurement.seconds
        taken.append(measurement.subject)
    return taken


def _isolated(bench: Bench, sampler: CarrierSampler, rules: FusionRules, budget: float, seed: int) -> tuple[list[Row], float]:
    """Kernels measured alone until the budget is spent: those that the rules find in carriers of the prior."""
    pairs = chains(_CHAINS, seed)
    flat = [Subject(graph) for pair in pairs for graph in pair]
    timed = bench.measure(flat, description="chains for the boundary cost")
    boundary = fit_boundary(pairs, [(timed[i], timed[i + 1]) for i in range(0, len(timed), 2)])
    spent = sum(m.seconds for m in timed)
    found: list[Row] = []
    known: set[str] = set()
    for batch in sampler.prior_batches("isolated"):
        alone: list[tuple[KernelConfig, Subject]] = []
        for graph in batch:
            for kernel in split(graph, rules):
                text = without_context(kernel.config.to_json())
                if text not in known:
                    known.add(text)
                    single = extract(graph, kernel)
                    alone.append((make_kernel(single, kernel.members).config, Subject(single)))
        spent += _measure_alone(bench, alone, boundary, found)
        if spent >= budget:
            return found, spent
    raise AssertionError("the carriers never end")


def _measure_alone(bench: Bench, alone: Sequence[tuple[KernelConfig, Subject]], boundary: Boundary, found: list[Row]) -> float:
    measured = bench.measure([subject for _, subject in alone], description="isolated kernels")
    for (config, subject), m in zip(alone, measured, strict=True):
        label = isolated_label(subject.graph, m, boundary)
        found.append({**isolated_row(config, m.subject, label, m.noise), "sampler": "isolated", "round": 0})
    return sum(m.seconds for m in measured)
