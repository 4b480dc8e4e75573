"""Stage `sampling`: measure executed nodes by copies of them, the adaptive sampler's, random convolutions and held-out ones.

The adaptive sampler is nn-Meter's Algorithm 2 over nodes that exist: an initial sample of what people export, then rounds
that measure more of the keys that cross-validation errs most on.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import whole_models
from edgeplan.chapters.prediction.settings import PredictionParams, SamplingSettings
from edgeplan.chapters.prediction.whole_models import ADAPTIVE, COLUMNS, HELD_OUT, LEARNT
from edgeplan.devices.config import load_device
from edgeplan.graph.nodes import NodeConfig
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.kernel_labels import labels_us
from edgeplan.measurement.records import CALLS, NodeSubject, call_us
from edgeplan.measurement.settings import node_settings
from edgeplan.predictors.nodes.features import Table, describe
from edgeplan.predictors.nodes.learner import Samples, cross_validated_us
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.progress import spending
from edgeplan.support.files import write_json
from edgeplan.support.frames import read_parquet, write_parquet
from edgeplan.support.numerics import nine_digits
from edgeplan.support.store import stored_rows_only

log = logging.getLogger(__name__)
#: Share of the budget that goes to operators by themselves, whose sums are a baseline.
_OPERATORS_SHARE = 0.1
_BATCH = 192
#: A node takes about so many us: each, by floating point operations, and by bytes read, written, and of weights.
_THUMB_US = np.array([0.5, 2e-5, 0.0, 1e-4, 1e-4, 1e-4])
_LEAST_SHARE, _LEAST_OWN_SHARE = 5e-4, 2e-5  # of time, that a key and a node are measured as if they had
#: A label is never below this.
_LEAST_US = 0.01


@dataclass(frozen=True)
class Candidate:
    """A node that may be measured, and the model that it is of."""

    config: NodeConfig
    context_bytes: int
    model: str
    family: str

    @property
    def subject(self) -> NodeSubject:
        """Return what is measured of it."""
        return NodeSubject(self.config, self.context_bytes)


def sample_kernels(params: PredictionParams, *, device: Path, nodes: Path, rows: Path, kernels: Path, summary: Path) -> None:
    """Measure nodes and write the training table, and what it cost (docs/prediction.md)."""
    file, settings = load_device(device), params.sampling
    planned = settings.budget_seconds * (1 + _OPERATORS_SHARE + settings.baselines)
    with (
        Bench(file, node_settings(params.measurement), rows) as bench,
        spending(f"{file.name}: sampling", planned) as bench.spending,
    ):
        bench.limit(settings.stage_seconds)
        sampler = sampled_nodes(bench, read_parquet(nodes, *COLUMNS), params)
        measured_at = time.strftime("%Y-%m-%d", time.gmtime(bench.last_measured_at()))
        version, cache_bytes = str(bench.identity["engine_version"]), bench.cache_bytes
    log.info("%s: %d nodes do not run alone; rounds: %s", file.name, sampler.refused, sampler.rounds)
    # What was chosen when follows from times: in this order, stored rows alone give the same table.
    frame = pd.DataFrame(sampler.rows).sort_values(["sampler", "subject"], kind="stable", ignore_index=True)
    rounded = {name: frame[name].map(nine_digits) for name in ("latency_us", "noise", "slowness")}
    write_parquet(frame.assign(**rounded), kernels)
    document = {
        "device": file.name,
        "engine": file.engine,
        "engine_version": version,
        "measured_at": measured_at,
        "budget_seconds": settings.budget_seconds,
        "seconds": {name: round(value, 2) for name, value in sampler.seconds.items()},
        "call_us": nine_digits(sampler.call_as_run),
        "cache_bytes": cache_bytes,
    }
    write_json(summary, document)


def sampled_nodes(bench: Bench, told: pd.DataFrame, params: PredictionParams) -> Sampler:
    """Measure nodes of all parts, then count them anew, as where nothing may be measured: each for all that would take it."""
    seed, settings = params.seed, params.sampling
    pool = _candidates(told, LEARNT)
    known = {one.config.key for one in pool}
    ordered = by_weight(pool, told, seed)
    operators, held_out = (
        by_weight([one for one in _candidates(told, (part,)) if one.config.key not in known], told, seed)
        for part in (whole_models.OPERATORS, whole_models.FROZEN)
    )
    fixed = {part: _candidates(told, (part,)) for part in (whole_models.SWEEP, whole_models.CONV_CHECK)}
    sampler = Sampler(bench, seed, bench.has if stored_rows_only() else None)

    def take() -> None:
        sampler.adaptive(ordered, settings)
        sampler.spend(operators, settings.budget_seconds * _OPERATORS_SHARE, whole_models.OPERATORS)
        sampler.spend(held_out[: settings.frozen_kernels], np.inf, HELD_OUT)
        for part, those in fixed.items():
            sampler.spend(those, np.inf, part)
        if settings.baselines:
            as_long = sampler.seconds_of(ADAPTIVE, "convolution/")
            sampler.spend(_candidates(told, (whole_models.RANDOM,)), as_long, whole_models.RANDOM)

    take()
    if sampler.stored is None:
        bench.spending = None  # these rows were counted
        taken = {row["subject"] for row in sampler.rows}
        sampler.stored, sampler.rows, sampler.seconds = (lambda one: one.id in taken), [], {}
        take()
    return sampler


def _candidates(told: pd.DataFrame, of_parts: Iterable[str]) -> list[Candidate]:
    """Return the distinct nodes of some parts, each as the first model has it."""
    chosen = told[told["part"].isin(list(of_parts))].drop_duplicates("config")
    columns = (chosen[name] for name in ("config", "context_bytes", "model_id", "family"))
    return [
        Candidate(NodeConfig.from_json(config), int(context), model, family)
        for config, context, model, family in zip(*columns, strict=True)
    ]


def node_key(config: NodeConfig) -> str:
    """Return the key of a node: its kind, and which algorithm of it."""
    return describe(config)[1]


def by_weight(pool: Sequence[Candidate], told: pd.DataFrame, seed: int) -> list[Candidate]:
    """Draw an order: keys as often as the root of the time that models spend in them, nodes of a key by their own time.

    Shares of time are of the models of a family, and the mean of all families, by a rule of thumb: nothing is measured yet.
    """
    pool = sorted(pool, key=lambda one: one.config.to_json())  # engines tell a model's nodes in another order at times
    named, read = {one.model for one in pool}, cache(NodeConfig.from_json)
    rows = told[told["model_id"].isin(named)]
    table = Table.of([read(config) for config in rows["config"]])
    us = (table.sizes[:, : len(_THUMB_US)] @ _THUMB_US)[table.place] * rows["times"]
    of_key, of_config = (_shares(us, rows["family"], names) for names in (np.array(table.keys)[table.place], rows["config"]))
    # The first of exponential times whose rates are weights: a draw by weight without replacement.
    draw = Random(f"{seed}/nodes")  # noqa: S311  not cryptography
    drawn = sorted((draw.expovariate(of_config[one.config.to_json()] + _LEAST_OWN_SHARE), i) for i, one in enumerate(pool))
    counts: dict[str, int] = defaultdict(int)
    placed = []
    for _, i in drawn:
        key = node_key(pool[i].config)
        placed.append((counts[key] / (of_key[key] + _LEAST_SHARE) ** 0.5, key, pool[i]))
        counts[key] += 1
    return [one for _, _, one in sorted(placed, key=lambda place: place[:2])]


def _shares(us: pd.Series, family: pd.Series, names: Any) -> pd.Series:
    """Return the share of each name in the time of a family, as a mean of all families."""
    of_family = us.groupby([family, names]).sum()
    return (of_family / of_family.groupby(level=0).transform("sum")).groupby(level=1).sum() / family.nunique()


@dataclass
class Sampler:
    """Measures nodes on a bench and labels them.

    Attributes:
        stored: tells which rows there are; without, what is missing is measured.
        rounds: what the adaptive rounds found: error of cross-validation, rows, seconds.
        call, call_as_run: constant cost of an inference, normalised and not, us.
    """

    bench: Bench
    seed: int
    stored: Callable[[NodeSubject], bool] | None = None
    rows: list[dict[str, object]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    rounds: list[dict[str, float]] = field(default_factory=list)
    refused: int = 0

    def __post_init__(self) -> None:
        calls = self.bench.measure(CALLS, description="the call")
        self.call = call_us(calls)
        self.call_as_run = self.call * float(np.median([one.slowness for one in calls]))

    def adaptive(self, pool: Sequence[Candidate], settings: SamplingSettings) -> None:
        """Measure the first of a pool in order, then what cross-validation errs most on, until the budget is spent."""
        budget, first = settings.budget_seconds, settings.budget_seconds * settings.initial_share
        if self.stored:  # what was chosen then is what is there
            self.spend(pool, np.inf, ADAPTIVE)
            return
        left = self.spend(pool, first, ADAPTIVE)
        for _ in range(settings.rounds):
            if not left or self.seconds[ADAPTIVE] >= budget:
                break
            error = self._errors()
            self.rounds.append({"rmspe": float(np.sqrt(np.mean(np.square(error["error"])))), "rows": float(len(error))})
            if self.rounds[-1]["rmspe"] < settings.error_threshold:
                break
            of_key = error.groupby("key")["error"].apply(lambda e: float(np.sqrt(np.mean(np.square(e))))).to_dict()
            worst = max(of_key.values())
            chosen = sorted(enumerate(left), key=lambda one: one[0] / of_key.get(node_key(one[1].config), worst))
            share = (budget - first) / settings.rounds
            left = self.spend([one for _, one in chosen], share, ADAPTIVE)

    def _errors(self) -> pd.DataFrame:
        frame = pd.DataFrame([row for row in self.rows if row["sampler"] == ADAPTIVE])
        configs = [NodeConfig.from_json(text) for text in frame["config"]]
        samples = Samples.of(configs, frame["context_bytes"].tolist(), frame["latency_us"].tolist(), frame["model"].tolist())
        predicted = cross_validated_us(
            samples, float(self.bench.cache_bytes), TrainingSettings(trials=0, folds=2, seeds=(self.seed,))
        )
        return frame[["key"]].assign(error=np.clip(predicted / frame["latency_us"] - 1, -1, 1))

    def spend(self, ordered: Sequence[Candidate], seconds: float, sampler: str) -> list[Candidate]:
        """Measure nodes in order until the time is spent; return those left."""
        left = [one for one in ordered if self.stored is None or self.stored(one.subject)]
        until = self.seconds.get(sampler, 0.0) + seconds
        self.seconds.setdefault(sampler, 0.0)
        while left and self.seconds[sampler] < until and (self.stored or not self.bench.late):
            mean = self.seconds[sampler] / max(1, sum(row["sampler"] == sampler for row in self.rows)) or 0.1
            count = int(np.clip((until - self.seconds[sampler]) / mean, 1, _BATCH)) if np.isfinite(until) else _BATCH
            batch, left = left[:count], left[count:]
            found = self.bench.measure_in_time([one.subject for one in batch], description=f"{sampler} kernels")
            for one, m in zip(batch, found, strict=True):
                if m is None:
                    self.refused += not self.bench.late
                    continue
                self.seconds[sampler] += m.seconds
                labels = labels_us(one.config, m, self.call, one.subject.copies)
                self.rows += [
                    {
                        "subject": m.subject,
                        "model": one.model,
                        "family": one.family,
                        "sampler": sampler,
                        "key": node_key(config),
                        "config": config.to_json(),
                        "context_bytes": one.context_bytes,
                        "latency_us": max(us, _LEAST_US),
                        "noise": m.noise,
                        "slowness": m.slowness,
                        "seconds": m.seconds / len(labels),
                    }
                    for config, us in labels.items()
                ]
        return left

    def seconds_of(self, sampler: str, kind: str) -> float:
        """Return the measuring time of a sampler's nodes of one kind."""
        return sum(float(str(r["seconds"])) for r in self.rows if r["sampler"] == sampler and str(r["key"]).startswith(kind))
