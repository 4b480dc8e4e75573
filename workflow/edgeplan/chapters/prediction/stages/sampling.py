"""Stage `sampling`: measure and label kernels by the adaptive sampler, its baselines, the frozen set and both modes."""

from __future__ import annotations

import itertools
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.chapters.prediction.sampling.adaptive import CarrierSampler, CarrierSamples, within
from edgeplan.chapters.prediction.sampling.carriers_detection_text import KINDS, further_graphs
from edgeplan.chapters.prediction.sampling.isolated import (
    Boundary,
    chains,
    extract,
    fit_boundary,
    isolated_label,
    isolated_row,
)
from edgeplan.chapters.prediction.sampling.labels import CounterModel, fit_counters, plain_layouts
from edgeplan.chapters.prediction.sampling.prior import ConvPrior, read_prior
from edgeplan.chapters.prediction.sampling.rows import Row
from edgeplan.chapters.prediction.sampling.settings import SamplingSettings
from edgeplan.chapters.prediction.sampling.singles import single_graphs
from edgeplan.chapters.prediction.sampling.sweeps import CONV_CHECK, SWEEP, check_graphs, sweep_graphs
from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.errors import DeviceError
from edgeplan.graph.cost import graph_macs
from edgeplan.graph.fusion_rules import FusionRules, read_rules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import Kernel, make_kernel, without_context
from edgeplan.graph.simplify import simplify
from edgeplan.graph.splitting import split
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Measurement, Subject
from edgeplan.predictors.training_rows import BEYOND, FURTHER, LACKING, SINGLE, trained_on
from edgeplan.progress import spending
from edgeplan.support.files import write_json
from edgeplan.support.frames import check_parquet, write_parquet
from edgeplan.support.rounding import nine_digits
from edgeplan.support.store import stored_rows_only
from edgeplan.zoo import prior_models

log = logging.getLogger(__name__)

#: Name under which the kernels of whole published networks stand in the training table.
NETWORK = "network"
#: Name of the measuring time beyond the samplers' budgets, whose rows are discarded.
EXCESS = "excess"
#: Pairs of chains that the boundary cost is fitted on, eight for each of its parameters; their time counts for the isolated
#: mode. Fixed rather than in params.yaml: with other pairs the stored rows would not do.
_CHAINS = 24
#: Kernels measured alone of each kind that the rules find and no node of the engine was.
_OF_LACKING_KIND = 12


def sample_kernels(
    params: PredictionParams, *, device: Path, prior: Path, rules: Path, rows: Path, kernels: Path, summary: Path
) -> None:
    """Measure kernels on a device and write the training table and what it cost.

    An engine that reports its nodes is sampled in carriers; a black box is sampled by kernels measured alone.
    """
    file = load_device(device)
    check_parquet(prior, "config", "count")  # before anything is measured
    if not stored_rows_only():
        require_numbers(file)
    settings = params.sampling
    mode = settings.modes.get(file.engine, "isolated")
    found = _Found()
    beyond_seconds = settings.beyond_seconds.get(file.engine, 0.0)
    planned = _planned(settings, mode, beyond_seconds)
    with Bench(file, params.measurement, rows) as bench, spending(f"{file.name}: sampling", planned) as bench.spending:
        bench.limit(settings.stage_seconds)
        sampler = CarrierSampler(bench, settings, ConvPrior(read_prior(prior)), read_rules(rules), params.seed)
        if mode == "in_situ":
            _in_carriers(sampler, found, beyond_seconds, singles=settings.singles_on(file.name))
        budget = settings.mode_seconds if mode == "in_situ" else settings.budget_seconds
        if budget:
            alone = mode != "in_situ"
            further = list(further_graphs(params.seed)) if alone else ()
            singles = list(single_graphs(params.seed, settings.singles_on(file.name))) if alone else ()
            _isolated(bench, sampler, read_rules(rules), budget, params.seed, found, further, singles)
        if mode == "in_situ":
            carriers = found.adaptive.graphs
            seconds = measure_lacking(bench, read_rules(rules), params.seed, found.rows, carriers, chains_known=budget > 0)
            found.seconds |= {LACKING: seconds} if seconds else {}
        measured_at = time.strftime("%Y-%m-%d", time.gmtime(bench.last_measured_at()))
        version = str(bench.identity["engine_version"])
    if mode != "in_situ":  # what is kept of the isolated kernels is what the predictors learn from
        all_alone, kept_alone = found.seconds.pop("isolated"), found.mode_seconds["isolated"]
        found.seconds |= {"kernels": kept_alone, EXCESS: all_alone - kept_alone}
    labelled = _without_seen(pd.DataFrame(found.rows))
    rounded = {name: labelled[name].map(nine_digits) for name in ("latency_us", "noise")}  # the same on every machine
    write_parquet(labelled.assign(**rounded), kernels)
    document = {
        "mode": mode,
        "device": file.name,
        "engine": file.engine,
        "engine_version": version,
        "measured_at": measured_at,
        "budget_seconds": settings.budget_seconds,
        "seconds": _rounded(found.seconds),
        "sampler_seconds": _rounded(found.sampler_seconds),
        "carriers": {"adaptive": len(found.adaptive.graphs)},
        "rounds": [{name: nine_digits(value) for name, value in told.items()} for told in found.adaptive.errors],
        "counters": {name: nine_digits(value) for name, value in asdict(found.counters).items()},
        "call_us": nine_digits(found.counters.call),
        "plain_layouts": found.plain,
        "mode_subjects": found.mode_subjects,
        "mode_seconds": _rounded(found.mode_seconds),
    }
    write_json(summary, document)


def require_numbers(file: DeviceFile) -> None:
    """Refuse to measure a device whose kernels are launched by other numbers than those that predictors will be told."""
    numbers = file.settings.get("training", {}).get("dispatch_numbers", {})
    if not numbers or file.board is not None:
        return
    found = dict(file.load_engine().dispatch_numbers())
    if found != numbers:
        raise DeviceError(
            f"kernels are launched by {found} here, and not by {dict(numbers)}",
            where=f"device {file.name!r}, settings.training.dispatch_numbers",
            next_step=f"dispatch_numbers: {json.dumps(found)}" if found else "leave them out: this engine has none",
        )


def _planned(settings: SamplingSettings, mode: str, beyond_seconds: float) -> float:
    """Return the seconds of measuring by the budgets; fixed sets are added once the first sampler knows a carrier's time."""
    if mode != "in_situ":
        return settings.budget_seconds
    return settings.budget_seconds * _samplers(settings) + beyond_seconds + settings.mode_seconds


def _samplers(settings: SamplingSettings) -> float:
    """Return how many times a sampler's time is spent: the prior baseline shares the initial sample."""
    return 1.0 + (1.0 + (1.0 - settings.initial_share) if settings.baselines else 0.0)


@dataclass
class _Found:
    """Collects the measurements of the stage so far.

    Attributes:
        rows: the training table.
        seconds: measuring time by part; together the parts are all that was measured.
        sampler_seconds: measuring time behind the kept rows of each sampler that is compared, a shared initial sample included.
        adaptive: the part of the adaptive sample that is kept.
        counters, plain: how the engine's counters and layouts are read, fitted on it.
        mode_subjects: its first carriers, on which the comparison of modes trains.
        mode_seconds: measuring time behind each mode's part in that comparison.
    """

    rows: list[Row] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    sampler_seconds: dict[str, float] = field(default_factory=dict)
    adaptive: CarrierSamples = field(default_factory=CarrierSamples)
    counters: CounterModel = field(default_factory=lambda: CounterModel(0.0, 1.0, 0.0))
    plain: dict[str, str] = field(default_factory=dict)
    mode_subjects: list[str] = field(default_factory=list)
    mode_seconds: dict[str, float] = field(default_factory=dict)


def _rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in seconds.items()}


def _in_carriers(sampler: CarrierSampler, found: _Found, beyond_seconds: float, *, singles: int) -> None:
    """Sample in carriers: the adaptive sampler and its baselines, what of each its budget holds, and the fixed sets."""
    settings = sampler.settings
    measured = {"adaptive": sampler.adaptive()}
    fixed_sets = {
        FURTHER: list(further_graphs(sampler.seed)),
        SWEEP: list(sweep_graphs()),
        CONV_CHECK: list(check_graphs()),
    }
    if singles:
        fixed_sets[SINGLE] = list(single_graphs(sampler.seed, singles))
    if settings.network_gmacs:
        networks = [simplify(build()) for build in prior_models().values()]
        fixed_sets = {NETWORK: [g for g in networks if graph_macs(g) <= 1e9 * settings.network_gmacs], **fixed_sets}
    if sampler.bench.spending:
        excess = measured["adaptive"].seconds - settings.budget_seconds  # a batch is measured to its end, by every sampler
        later = _fixed_seconds(measured["adaptive"], settings.frozen_carriers, fixed_sets)
        sampler.bench.spending.plan(later + excess * _samplers(settings))
    # before the baselines, which only tables need, should the time be short
    fixed = {"frozen": sampler.frozen()} | {name: sampler.fixed(carriers) for name, carriers in fixed_sets.items()}
    if settings.baselines:
        measured |= {"random": sampler.uniform(measured["adaptive"]), "prior": sampler.prior_only(measured["adaptive"])}
    kept = {name: sampled.within(settings.budget_seconds) for name, sampled in measured.items()}
    found.sampler_seconds = {name: sampled.seconds for name, sampled in kept.items()}
    if beyond_seconds:
        measured[BEYOND] = sampler.beyond(beyond_seconds, measured["adaptive"])
        kept[BEYOND] = measured[BEYOND].within(beyond_seconds)
    found.adaptive = kept["adaptive"]
    found.counters = fit_counters(found.adaptive.measurements, fixed[SINGLE].measurements if singles else ())
    found.plain = plain_layouts(found.adaptive.graphs, found.adaptive.measurements)
    for name, sampled in (kept | fixed).items():
        found.rows += sampled.rows(found.counters, found.plain, name)
        found.seconds[name] = _own_seconds(name, sampled)
    found.seconds[EXCESS] = sum(_own_seconds(name, measured[name]) - found.seconds[name] for name in measured)
    short = found.adaptive.within(settings.mode_seconds)
    found.mode_subjects = [m.subject for m in short.measurements] if settings.mode_seconds else []
    found.mode_seconds["in_situ"] = short.seconds


def _fixed_seconds(sampled: CarrierSamples, frozen: int, fixed_sets: Mapping[str, Sequence[Graph]]) -> float:
    """Estimate the seconds of the frozen carriers and fixed sets, by operators and multiply-adds of the carriers so far."""

    def size(graphs: Iterable[Graph]) -> npt.NDArray[np.float64]:
        total: npt.NDArray[np.float64] = np.sum([(len(g.operators), float(graph_macs(g))) for g in graphs], axis=0)
        return total

    fixed = size(itertools.chain(*fixed_sets.values()))
    return float(sampled.seconds * (frozen / len(sampled.graphs) + np.mean(fixed / size(sampled.graphs))))


def _own_seconds(name: str, sampled: CarrierSamples) -> float:
    """Return the measuring time of a part; the prior baseline's initial carriers are the adaptive sampler's, measured once."""
    return sampled.seconds_after_initial if name == "prior" else sampled.seconds


def _without_seen(table: pd.DataFrame) -> pd.DataFrame:
    """Return the table without frozen rows whose configuration a sampler measured too: the frozen set must be unseen."""
    if table.empty or "frozen" not in set(table["sampler"]):
        return table
    frozen = table["sampler"] == "frozen"
    plain = table["config"].map(without_context)
    return table[~(frozen & plain.isin(set(plain[~frozen])))].reset_index(drop=True)


def _isolated(
    bench: Bench,
    sampler: CarrierSampler,
    rules: FusionRules,
    budget: float,
    seed: int,
    found: _Found,
    further: Sequence[Graph] = (),
    singles: Sequence[Graph] = (),
) -> None:
    """Measure kernels alone until the budget is spent: those that the rules find in carriers of the prior.

    The chains that tell the boundary cost are part of the budget, and so are the kernels that only the further carriers
    and the models of a single operator have.
    What was measured beyond it is not kept.
    """
    boundary, of_chains = _boundary(bench, seed)
    if not found.adaptive.graphs:  # no engine's counters tell the cost of a call: the boundary of a black box holds it
        found.counters = replace(found.counters, call=float(boundary[0]))
    spent = of_chains
    rows: list[Row] = []
    measured: list[Measurement] = []
    known: set[str] = set()
    of_prior = (("isolated", None, batch) for batch in sampler.prior_batches("isolated"))
    fixed = [("isolated", KINDS, further), (SINGLE, None, singles)]
    batches = itertools.chain([one for one in fixed if one[2]], of_prior)
    while spent < budget or not rows:
        alone: list[tuple[Graph, Kernel]] = []
        name, wanted, graphs = next(batches)
        for graph in graphs:
            for kernel in split(graph, rules):
                text = without_context(kernel.config.to_json())
                if text not in known and (wanted is None or kernel.config.kind in wanted):
                    known.add(text)
                    alone.append((graph, kernel))
        batch = _measured_alone(bench, alone, boundary, name, rows)
        measured += batch
        spent += sum(m.seconds for m in batch)
    count = max(1, within(measured, budget - of_chains))
    found.rows += rows[:count]
    found.seconds["isolated"] = spent
    found.mode_seconds["isolated"] = of_chains + sum(m.seconds for m in measured[:count])


def _boundary(bench: Bench, seed: int) -> tuple[Boundary, float]:
    """Fit the boundary cost, and return it with the measuring time of the chains that tell it."""
    pairs = chains(_CHAINS, seed)
    flat = [Subject(graph) for pair in pairs for graph in pair]
    timed = bench.measure(flat, description="chains for the boundary cost")
    fitted = fit_boundary(pairs, [(timed[i], timed[i + 1]) for i in range(0, len(timed), 2)])
    return fitted, sum(m.seconds for m in timed)


def _measured_alone(
    bench: Bench, kernels: Sequence[tuple[Graph, Kernel]], boundary: Boundary, sampler: str, rows: list[Row]
) -> list[Measurement]:
    """Measure kernels of graphs, each by itself, and add their rows."""
    graphs = [extract(graph, kernel) for graph, kernel in kernels]
    configs = [make_kernel(single, kernel.members).config for single, (_, kernel) in zip(graphs, kernels, strict=True)]
    measured = bench.measure([Subject(graph) for graph in graphs], description=f"{sampler} kernels")
    for graph, config, m in zip(graphs, configs, measured, strict=True):
        label = isolated_label(graph, m, boundary)
        rows.append({**isolated_row(config, m.subject, label, m.noise), "sampler": sampler, "round": 0})
    return measured


def measure_lacking(
    bench: Bench, rules: FusionRules, seed: int, rows: list[Row], carriers: Sequence[Graph] = (), *, chains_known: bool = False
) -> float:
    """Measure alone what the rules take for kernels though the engine ran it inside others.

    Models are split by the rules and labels come from the engine's nodes. Where a rule is wrong, as it may be after few rounds
    on a noisy machine, kernels come out that no node was, and a model with one could not be predicted at all.

    Args:
        bench: where to measure.
        rules: of the device.
        seed: seed of the choice among the kernels of a kind.
        rows: what was measured in carriers; gets a row for each kernel.
        carriers: looked through beside the networks of the prior: their channels are odd too, for which rules may differ.
        chains_known: whether the time of the chains that tell the boundary cost was counted before.

    Returns:
        Seconds of measuring; 0 where nothing was lacking.
    """
    table = pd.DataFrame(rows)
    shown = set(table.loc[trained_on(table, "in_situ") & ~table["sampler"].isin([FURTHER, SINGLE]), "kind"])
    lacking: dict[str, dict[str, tuple[Graph, Kernel]]] = {}
    for graph in (*(simplify(build()) for build in prior_models().values()), *carriers):
        for kernel in split(graph, rules):
            if kernel.config.kind not in shown:
                lacking.setdefault(kernel.config.kind, {}).setdefault(without_context(kernel.config.to_json()), (graph, kernel))
    if not lacking:
        return 0.0
    rng = Random(f"{seed}/lacking")  # noqa: S311  not cryptography
    chosen = [
        kernels[text]
        for kernels in lacking.values()
        for text in rng.sample(sorted(kernels), min(_OF_LACKING_KIND, len(kernels)))
    ]
    log.warning("no node of the engine was a kernel of kind %s: measured alone", ", ".join(sorted(lacking)))
    boundary, seconds = _boundary(bench, seed)
    measured = _measured_alone(bench, chosen, boundary, LACKING, rows)
    return sum(m.seconds for m in measured) + (0.0 if chains_known else seconds)
