"""Adaptive data sampling (Algorithm 2) and its baselines, in carriers, each within a budget of measuring time.

The growing test set selects where to sample next; a separate, frozen set, measured by its own seed, only reports.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import lightgbm as lgb
import numpy as np
import numpy.typing as npt

from edgeplan.graph.cost import graph_macs
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import KernelConfig
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Measurement, Subject
from edgeplan.predictors.features import features
from edgeplan.sampling.carriers import build_carrier
from edgeplan.sampling.labels import CounterModel, fit_counters, label_rows, plain_layouts, standard_error_us
from edgeplan.sampling.prior import ConvShape, Prior
from edgeplan.sampling.settings import SamplingSettings
from edgeplan.sampling.sources import ConvSource, FocusSource, PriorSource, PublishedSource, UniformSource

log = logging.getLogger(__name__)

Row = dict[str, object]
_CONVOLUTIONS = ("conv", "dwconv")
# The regression model f of Algorithm 2 only ranks configurations by their error, and is trained anew in every round. It is
# fixed rather than tuned or in params.yaml: it decides which carriers a round measures, and with other values the stored rows
# would not do. One thread: the measuring process is pinned to the cores of the device.
_MODEL = {"objective": "l1", "learning_rate": 0.08, "num_leaves": 31, "min_data_in_leaf": 5, "verbose": -1, "num_threads": 1}
_TREES = 250
#: Carriers measured before their cost can be judged.
_FIRST_BATCH = 12
#: What one tensor of an ONNX model can hold is 2 GiB; channels redrawn around the largest kernels of Table 5 may ask for more.
_MOST_WEIGHT_BYTES = (1 << 31) - (1 << 20)
#: Standard errors that a label is likely not to be off by.
_LIKELY = 2.0
#: An adaptive round needs this many rows to learn from.
_LEAST_ROWS = 40


@dataclass
class Sampled:
    """What a sampler measured: carriers with their measurements, in order, and the adaptive rounds."""

    graphs: list[Graph] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    errors: list[dict[str, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Measuring time, with model building, references and rejected batches."""
        return sum(m.seconds for m in self.measurements)

    @property
    def seconds_after_initial(self) -> float:
        """Measuring time without that of the initial sample, which the adaptive sampler and the prior baseline share."""
        return sum(m.seconds for m, number in zip(self.measurements, self.rounds, strict=True) if number > 0)

    def within(self, seconds: float) -> Sampled:
        """The first carriers whose measuring took no more than so many seconds together; never none.

        A batch is measured whole, so a sampler ends beyond its budget, and by how much depends on its batches. Samplers are
        compared, and predictors trained, on what fits. The course of the rounds stays as it was.
        """
        count = max(1, within(self.measurements, seconds))
        return Sampled(self.graphs[:count], self.measurements[:count], self.rounds[:count], self.errors)

    def add(self, graphs: Sequence[Graph], measurements: Sequence[Measurement], round_number: int) -> None:
        """Append carriers of one round."""
        self.graphs += graphs
        self.measurements += measurements
        self.rounds += [round_number] * len(graphs)

    def rows(self, counters: CounterModel, plain: Mapping[str, str], sampler: str) -> list[Row]:
        """Labelled kernels of all carriers."""
        found: list[Row] = []
        for graph, measurement, number in zip(self.graphs, self.measurements, self.rounds, strict=True):
            found += [{**row, "sampler": sampler, "round": number} for row in label_rows(graph, measurement, counters, plain)]
        return found


Stop = Callable[[], bool]


def within(measurements: Sequence[Measurement], seconds: float) -> int:
    """How many of the first measurements took no more than so many seconds together."""
    spent = itertools.accumulate(m.seconds for m in measurements)
    return sum(1 for _ in itertools.takewhile(lambda total: total <= seconds, spent))


class CarrierSampler:
    """Measures carriers on a bench until a budget is spent.

    Args:
        bench: where to measure.
        settings: budgets and shares.
        prior: the prior over convolutions.
        seed: seed of everything drawn.
    """

    def __init__(self, bench: Bench, settings: SamplingSettings, prior: Prior, seed: int) -> None:
        self.bench, self.settings, self.prior, self.seed = bench, settings, prior, seed

    def carriers(self, stream: str, source: ConvSource, start: int = 0) -> Iterator[Graph]:
        """Carriers of a stream without end, by number; those with a weight too large for ONNX are passed over."""
        index = start
        while True:
            name = f"{stream}-{index}"
            carrier = build_carrier(name, f"{self.seed}/{name}", source, self.settings.carrier_kernels)
            largest = max((carrier.tensors[w].size_bytes for op in carrier.operators for w in op.weights), default=0)
            if largest <= _MOST_WEIGHT_BYTES:
                yield carrier
            index += 1

    def spend(
        self, into: Sampled, stream: str, source: ConvSource, seconds: float, number: int = 0, stop: Stop = lambda: False
    ) -> None:
        """Measure carriers of a stream until they took so many seconds, batch by batch."""
        until = into.seconds + seconds
        carriers = self.carriers(stream, source)
        while into.seconds < until and not stop():
            batch = _affordable(carriers, into, until - into.seconds, self.bench.settings.batch_size)
            measured = self.bench.measure([Subject(g, profiled=True) for g in batch], description=f"{stream} carriers")
            into.add(batch, measured, number)

    def prior_batches(self, stream: str, size: int = 8) -> Iterator[list[Graph]]:
        """Carriers of the prior without end, a few at a time, not measured."""
        carriers = self.carriers(stream, PriorSource(self.prior))
        while True:
            yield [next(carriers) for _ in range(size)]

    def frozen(self) -> Sampled:
        """The separate set that only reports: carriers of the prior under a seed of their own."""
        carriers = self.carriers("frozen", PriorSource(self.prior))
        return self.fixed(next(carriers) for _ in range(self.settings.frozen_carriers))

    def fixed(self, graphs: Iterable[Graph]) -> Sampled:
        """Given carriers, each measured once."""
        sampled = Sampled()
        chosen = list(graphs)
        sampled.add(chosen, self.bench.measure([Subject(g, profiled=True) for g in chosen], description="fixed carriers"), 0)
        return sampled

    def uniform(self) -> Sampled:
        """The paper's random baseline: uniform over Table 5, same budget."""
        sampled = Sampled()
        self.spend(sampled, "random", UniformSource(), self.settings.budget_seconds)
        return sampled

    def adaptive(self) -> Sampled:
        """Algorithm 2: an initial sample from the prior, then rounds around what is predicted badly."""
        budget, initial = self.settings.budget_seconds, self.settings.initial_share
        sampled = Sampled()
        published = self.settings.published_share
        self.spend(sampled, "published", PublishedSource(self.prior), budget * initial * published)
        self.spend(sampled, "prior", PriorSource(self.prior), budget * initial * (1 - published))
        test: set[str] = set()
        for number in range(1, self.settings.rounds + 1):
            rows = _conv_rows(sampled)
            test |= _pick_test(rows, test, self.settings.test_share, Random(f"{self.seed}/test/{number}"))  # noqa: S311
            held = [r for r in rows if r["subject"] in test]
            train = [r for r in rows if r["subject"] not in test]
            left = budget - sampled.seconds
            if len(train) < _LEAST_ROWS or len(held) < 2 or left <= 0:  # noqa: PLR2004  nothing to learn or test on
                break
            errors = _test_errors(train, held)
            rmspe = float(np.sqrt(np.mean(errors**2)))
            sampled.errors.append({"round": number, "rows": len(rows), "test_rows": len(held), "error": rmspe})
            log.info("adaptive round %d: %d rows, RMSPE %.1f %% on %d test rows", number, len(rows), 100 * rmspe, len(held))
            if rmspe <= self.settings.error_threshold:
                break
            worst = np.argsort(-np.abs(errors))[: max(1, int(len(errors) * self.settings.hard_share))]
            hard = list({_shape(held[i]): None for i in worst}) * self.settings.fine_grained
            source = FocusSource(hard, self.prior)
            rounds_left = self.settings.rounds - number + 1
            self.spend(sampled, f"round{number}", source, left / rounds_left, number, lambda s=source: s.exhausted)  # type: ignore[misc]
        if sampled.seconds < budget:  # the rounds ended early: the rest of the budget goes to the prior
            self._spend_rest(sampled, budget)
        return sampled

    def _spend_rest(self, sampled: Sampled, budget: float) -> None:
        self.spend(sampled, "rest", PriorSource(self.prior), budget - sampled.seconds, self.settings.rounds + 1)

    def prior_only(self, adaptive: Sampled) -> Sampled:
        """The baseline that samples the prior for the whole budget; it shares the initial sample of the adaptive one."""
        sampled = Sampled()
        initial = [i for i, number in enumerate(adaptive.rounds) if number == 0]
        sampled.add([adaptive.graphs[i] for i in initial], [adaptive.measurements[i] for i in initial], 0)
        self.spend(sampled, "more-prior", PriorSource(self.prior), self.settings.budget_seconds - sampled.seconds, 1)
        return sampled


def _affordable(carriers: Iterator[Graph], so_far: Sampled, seconds: float, most: int) -> list[Graph]:
    """Carriers that take about so many seconds, judged by the multiply-adds of those measured so far; the first are a try."""
    batch = [next(carriers), next(carriers)]
    if not so_far.graphs:
        return [*batch, *(next(carriers) for _ in range(_FIRST_BATCH - len(batch)))]
    work = sum(graph_macs(graph) for graph in so_far.graphs)
    each, per_mac = so_far.seconds / len(so_far.graphs) / 2, so_far.seconds / max(work, 1) / 2
    planned = sum(each + per_mac * graph_macs(graph) for graph in batch)
    while len(batch) < most and planned < seconds:
        batch.append(next(carriers))
        planned += each + per_mac * graph_macs(batch[-1])
    return batch


def _conv_rows(sampled: Sampled) -> list[Row]:
    counters = fit_counters(sampled.measurements)
    plain = plain_layouts(sampled.graphs, sampled.measurements)
    return [r for r in sampled.rows(counters, plain, "adaptive") if r["kind"] in _CONVOLUTIONS]


def _pick_test(rows: Sequence[Row], known: set[str], share: float, rng: Random) -> set[str]:
    """Whole carriers that join the test set: `share` of those not in it that are new since the last round."""
    fresh = sorted({str(r["subject"]) for r in rows if r["round"] == max(int(str(x["round"])) for x in rows)} - known)
    return set(rng.sample(fresh, max(1, round(share * len(fresh))))) if fresh else set()


def _shape(row: Row) -> ConvShape:
    config = KernelConfig.from_json(str(row["config"]))
    return ConvShape(
        config.in_height, config.in_channels, config.out_channels, config.kernel_h, config.stride_h, config.kind == "dwconv"
    )


def _design(rows: Sequence[Row]) -> npt.NDArray[np.float64]:
    implementations = sorted({str(r["implementation"]) for r in rows})
    code = np.array([[implementations.index(str(r["implementation"])), r["kind"] == "dwconv"] for r in rows], dtype=float)
    return np.hstack([features([KernelConfig.from_json(str(r["config"])) for r in rows]), code])


def _test_errors(train: Sequence[Row], test: Sequence[Row]) -> npt.NDArray[np.float64]:
    """Errors, beyond those of the labels, on the test rows of a model trained on the others: the model f of Algorithm 2."""
    both = _design([*train, *test])
    shapes = [_shape(r) for r in (*train, *test)]
    work = np.log([s.macs for s in shapes])
    latency = np.log([float(str(r["latency_us"])) for r in (*train, *test)])
    cut = len(train)
    model = lgb.train(_MODEL, lgb.Dataset(both[:cut], latency[:cut] - work[:cut]), _TREES)
    predicted = np.asarray(model.predict(both[cut:])) + work[cut:]
    return errors_beyond_labels(np.exp(predicted), np.exp(latency[cut:]))


def errors_beyond_labels(predicted_us: npt.NDArray[np.float64], labels_us: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Relative errors of predictions, less what the labels themselves are likely to be off by.

    With it, rounds would go to kernels of a microsecond, whose labels say how the engine rounds: more of them teach nothing. An
    engine that counts finer is treated alike.
    """
    off = predicted_us - labels_us
    beyond = np.maximum(np.abs(off) - _LIKELY * standard_error_us(labels_us), 0.0)
    return np.asarray(np.sign(off) * beyond / labels_us)
