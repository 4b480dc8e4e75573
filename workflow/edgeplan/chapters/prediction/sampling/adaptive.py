"""Samples adaptively (Algorithm 2), with its baselines, in carriers, each within a budget of measuring time.

The growing test set selects where to sample next and, by `sampling.selection`, a committee which carriers are measured of those
drawn there and from the prior; a separate, frozen set, measured by its own seed, only reports.
"""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import lightgbm as lgb
import numpy as np
import numpy.typing as npt

from edgeplan.chapters.prediction.sampling.carriers import build_carrier
from edgeplan.chapters.prediction.sampling.carriers_large_grouped import beyond_carriers
from edgeplan.chapters.prediction.sampling.committee import MODEL, Committee
from edgeplan.chapters.prediction.sampling.labels import (
    CounterModel,
    fit_counters,
    label_rows,
    plain_layouts,
    standard_error_us,
)
from edgeplan.chapters.prediction.sampling.prior import ConvPrior
from edgeplan.chapters.prediction.sampling.rows import CONVOLUTIONS, Row, config_of, design, latency_of, log_work, shape_of
from edgeplan.chapters.prediction.sampling.settings import SamplingSettings
from edgeplan.chapters.prediction.sampling.sources import ConvSource, FocusSource, PriorSource, PublishedSource, UniformSource
from edgeplan.graph.cost import graph_macs
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import weight_bytes
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Measurement, Subject

log = logging.getLogger(__name__)

#: Of the regression model f of Algorithm 2, which only ranks configurations by their error and is trained anew in every round.
_TREES = 250
#: Carriers that a round proposes for each that its time is likely to hold; fixed, as what the committee is made of.
_PROPOSED = 8
#: Carriers of the prior at a time.
_FEW = 8
#: Weights of a carrier that a round may propose. Large kernels on a single pixel ask for gigabytes: to build and load one such
#: carrier takes as long as to measure a hundred others. Of the published models, VGG-16 alone holds more.
_MOST_PROPOSED_BYTES = 300_000_000
#: Carriers measured before their cost can be judged: so many at most, fewer where they might take all the time there is.
_FIRST_BATCH, _LIKELY_SECONDS = 12, 3.0
#: What one tensor of an ONNX model can hold is 2 GiB; channels redrawn around the largest kernels of Table 5 may ask for more.
_MOST_WEIGHT_BYTES = (1 << 31) - (1 << 20)
#: Standard errors that a label is likely not to be off by.
_LIKELY = 2.0
#: An adaptive round needs this many rows to learn from.
_LEAST_ROWS = 40


@dataclass
class CarrierSamples:
    """Holds what a sampler measured: carriers with their measurements, in order, and the adaptive rounds."""

    graphs: list[Graph] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    errors: list[dict[str, float]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Return the measuring time in seconds, with model building, references and rejected batches."""
        return sum(m.seconds for m in self.measurements)

    @property
    def seconds_after_initial(self) -> float:
        """Return the measuring time in seconds without the initial sample's, which adaptive and prior sampling share."""
        return sum(m.seconds for m, number in zip(self.measurements, self.rounds, strict=True) if number > 0)

    def within(self, seconds: float) -> CarrierSamples:
        """Return the first carriers whose measuring took no more than so many seconds together; never none.

        A batch is measured whole, so a sampler ends beyond its budget, and by how much depends on its batches. Samplers are
        compared, and predictors trained, on what fits. The course of the rounds stays as it was.
        """
        count = max(1, within(self.measurements, seconds))
        return CarrierSamples(self.graphs[:count], self.measurements[:count], self.rounds[:count], self.errors)

    def add(self, graphs: Sequence[Graph], measurements: Sequence[Measurement], round_number: int) -> None:
        """Append carriers of one round."""
        self.graphs += graphs
        self.measurements += measurements
        self.rounds += [round_number] * len(graphs)

    def rows(self, counters: CounterModel, plain: Mapping[str, str], sampler: str) -> list[Row]:
        """Return the labelled kernels of all carriers."""
        found: list[Row] = []
        for graph, measurement, number in zip(self.graphs, self.measurements, self.rounds, strict=True):
            found += [{**row, "sampler": sampler, "round": number} for row in label_rows(graph, measurement, counters, plain)]
        return found


def within(measurements: Sequence[Measurement], seconds: float) -> int:
    """Count the first measurements that took no more than so many seconds together."""
    spent = itertools.accumulate(m.seconds for m in measurements)
    return sum(1 for _ in itertools.takewhile(lambda total: total <= seconds, spent))


class CarrierSampler:
    """Measures carriers on a bench until a budget is spent.

    Args:
        bench: where to measure.
        settings: budgets and shares.
        prior: the prior over convolutions.
        rules: fusion rules, which tell the kernels of carriers that have not run.
        seed: seed of everything drawn.
    """

    def __init__(self, bench: Bench, settings: SamplingSettings, prior: ConvPrior, rules: FusionRules, seed: int) -> None:
        self.bench, self.settings, self.prior, self.rules, self.seed = bench, settings, prior, rules, seed

    def carriers(self, stream: str, source: ConvSource) -> Iterator[Graph]:
        """Yield carriers of a stream without end, by number; those with a weight too large for ONNX are passed over."""
        for index in itertools.count():
            name = f"{stream}-{index}"
            carrier = build_carrier(name, f"{self.seed}/{name}", source, self.settings.carrier_kernels)
            largest = max(_weights(carrier), default=0)
            if largest <= _MOST_WEIGHT_BYTES:
                yield carrier

    def spend(
        self,
        into: CarrierSamples,
        carriers: Iterator[Graph],
        seconds: float,
        what: str,
        number: int = 0,
        known: CarrierSamples | None = None,
    ) -> None:
        """Measure carriers, in their order, until they took so many seconds or there are no more, batch by batch.

        What the first batch takes is judged by `known`, carriers of another kind, if there are any.
        """
        until = into.seconds + seconds
        while into.seconds < until and not (self.bench.late and into.graphs):
            batch = _affordable(carriers, into, until - into.seconds, self.bench.settings.batch_size, known)
            if not batch:
                break
            measured = self.bench.measure([Subject(g, profiled=True) for g in batch], description=f"{what} carriers")
            into.add(batch, measured, number)

    def prior_batches(self, stream: str) -> Iterator[list[Graph]]:
        """Yield carriers of the prior without end, a few at a time, not measured."""
        carriers = self.carriers(stream, PriorSource(self.prior))
        while True:
            yield [next(carriers) for _ in range(_FEW)]

    def frozen(self) -> CarrierSamples:
        """Measure the separate set that only reports errors: carriers of the prior under a seed of their own."""
        carriers = self.carriers("frozen", PriorSource(self.prior))
        return self.fixed(next(carriers) for _ in range(self.settings.frozen_carriers))

    def fixed(self, graphs: Iterable[Graph]) -> CarrierSamples:
        """Measure given carriers once each, as far as there is time."""
        sampled = CarrierSamples()
        chosen = list(graphs)
        subjects = [Subject(g, profiled=True) for g in chosen]
        for graph, found in zip(chosen, self.bench.measure_in_time(subjects, description="fixed carriers"), strict=True):
            if found is not None:
                sampled.add([graph], [found], 0)
        return sampled

    def uniform(self, known: CarrierSamples) -> CarrierSamples:
        """Sample as the paper's random baseline does: uniformly over Table 5, with the same budget.

        Args:
            known: carriers that tell what such ones may take: a few of them can take all the time there is.
        """
        sampled = CarrierSamples()
        carriers = self.carriers("random", UniformSource())
        self.spend(sampled, carriers, self.settings.budget_seconds, "random", known=known)
        return sampled

    def beyond(self, seconds: float, known: CarrierSamples) -> CarrierSamples:
        """Sample convolutions beyond those of the prior's walks; `known` is as for `uniform`."""
        sampled = CarrierSamples()
        self.spend(sampled, beyond_carriers(self.prior, self.seed), seconds, "beyond", known=known)
        return sampled

    def adaptive(self) -> CarrierSamples:
        """Sample by Algorithm 2: an initial sample from the prior, then rounds around what is predicted badly."""
        budget, initial = self.settings.budget_seconds, self.settings.initial_share
        sampled = CarrierSamples()
        published = budget * initial * self.settings.published_share
        self.spend(sampled, self.carriers("published", PublishedSource(self.prior)), published, "published")
        self.spend(sampled, self.carriers("prior", PriorSource(self.prior)), budget * initial - published, "prior")
        test: set[str] = set()
        for number in range(1, self.settings.rounds + 1):
            rows = _conv_rows(sampled)
            test |= _pick_test(rows, test, self.settings.test_share, Random(f"{self.seed}/test/{number}"))  # noqa: S311
            held = [r for r in rows if r["subject"] in test]
            train = [r for r in rows if r["subject"] not in test]
            left = budget - sampled.seconds
            if len(train) < _LEAST_ROWS or len(held) < 2 or left <= 0:  # nothing to learn or test on
                break
            errors = _test_errors(train, held)
            rmspe = float(np.sqrt(np.mean(errors**2)))
            sampled.errors.append({"round": number, "rows": len(rows), "test_rows": len(held), "error": rmspe})
            log.info("adaptive round %d: %d rows, RMSPE %.1f %% on %d test rows", number, len(rows), 100 * rmspe, len(held))
            if rmspe <= self.settings.error_threshold:
                break
            worst = np.argsort(-np.abs(errors))[: max(1, int(len(errors) * self.settings.hard_share))]
            seconds = left / (self.settings.rounds - number + 1)
            carriers = self._around([held[i] for i in worst], number)
            if self.settings.selection == "disagreement":
                proposed = self._proposed(carriers, number, seconds * len(sampled.graphs) / sampled.seconds)
                carriers = iter(Committee(rows, self.rules, f"{self.seed}/committee/{number}").ranked(proposed))
            self.spend(sampled, carriers, seconds, f"round {number}", number)
        if sampled.seconds < budget:  # the rounds ended early: the rest of the budget goes to the prior
            rest = self.carriers("rest", PriorSource(self.prior))
            self.spend(sampled, rest, budget - sampled.seconds, "rest", self.settings.rounds + 1)
        return sampled

    def _around(self, hard: Sequence[Row], number: int) -> Iterator[Graph]:
        """Yield carriers whose convolutions are like badly predicted ones (Algorithm 2, lines 1-8), as often as it says."""
        shapes = list({shape_of(config_of(row)): None for row in hard}) * self.settings.fine_grained
        source = FocusSource(shapes, self.prior)
        drawn = self.carriers(f"round{number}", source)
        while not source.exhausted:
            yield next(drawn)

    def _proposed(self, around: Iterator[Graph], number: int, affordable: float) -> list[Graph]:
        """Draw the carriers that a round chooses from: those around badly predicted rows and, as many again, the prior's.

        The algorithm measures all that it draws around the worst rows of the test set. Those are the worst by chance as well,
        and of whole regions a small test set has none: with the prior's carriers beside them, nothing is out of reach.
        """
        half = math.ceil(affordable * _PROPOSED / 2)
        of_prior = self.carriers(f"round{number}-prior", PriorSource(self.prior))
        drawn = (*itertools.islice(around, half), *itertools.islice(of_prior, half))
        return [carrier for carrier in drawn if weight_bytes(carrier) <= _MOST_PROPOSED_BYTES]

    def prior_only(self, adaptive: CarrierSamples) -> CarrierSamples:
        """Sample the prior for the whole budget, a baseline that shares the initial sample of the adaptive one."""
        sampled = CarrierSamples()
        initial = [i for i, number in enumerate(adaptive.rounds) if number == 0]
        sampled.add([adaptive.graphs[i] for i in initial], [adaptive.measurements[i] for i in initial], 0)
        more = self.carriers("more-prior", PriorSource(self.prior))
        self.spend(sampled, more, self.settings.budget_seconds - sampled.seconds, "more prior", 1)
        return sampled


def _weights(carrier: Graph) -> list[int]:
    """Return the sizes of a carrier's weights, bytes."""
    return [carrier.tensors[w].size_bytes for op in carrier.operators for w in op.weights]


def _affordable(
    carriers: Iterator[Graph], so_far: CarrierSamples, seconds: float, most: int, known: CarrierSamples | None = None
) -> list[Graph]:
    """Return carriers that take about so many seconds, judged by the multiply-adds of those measured; the first are a try.

    What the try takes is judged by the carriers `known` of another sampler, if there are any: by the whole of their time for
    each multiply-add, since carriers of another kind may have many times as many.
    """
    if so_far.graphs:
        judge, least, share = so_far, 2, 0.5
    elif known is not None:
        judge, least, most, share = known, 1, min(most, _FIRST_BATCH), 1.0
    else:
        return list(itertools.islice(carriers, max(2, min(_FIRST_BATCH, round(seconds / _LIKELY_SECONDS)))))
    batch = list(itertools.islice(carriers, least))
    each = judge.seconds / len(judge.graphs) / 2
    per_mac = judge.seconds / max(sum(graph_macs(graph) for graph in judge.graphs), 1) * share
    planned = sum(each + per_mac * graph_macs(graph) for graph in batch)
    while len(batch) < most and planned < seconds and (carrier := next(carriers, None)):
        batch.append(carrier)
        planned += each + per_mac * graph_macs(carrier)
    return batch


def _conv_rows(sampled: CarrierSamples) -> list[Row]:
    counters = fit_counters(sampled.measurements)
    plain = plain_layouts(sampled.graphs, sampled.measurements)
    return [r for r in sampled.rows(counters, plain, "adaptive") if r["kind"] in CONVOLUTIONS]


def _pick_test(rows: Sequence[Row], known: set[str], share: float, rng: Random) -> set[str]:
    """Draw whole carriers that join the test set: `share` of those not in it that are new since the last round."""
    fresh = sorted({str(r["subject"]) for r in rows if r["round"] == max(int(str(x["round"])) for x in rows)} - known)
    return set(rng.sample(fresh, max(1, round(share * len(fresh))))) if fresh else set()


def _design(rows: Sequence[Row]) -> npt.NDArray[np.float64]:
    implementations = sorted({str(r["implementation"]) for r in rows})
    code = np.array([[implementations.index(str(r["implementation"]))] for r in rows], dtype=float)
    inputs = design([config_of(r) for r in rows])
    # of columns that serve alike the first is taken: in another order the stored rows would not do
    return np.hstack([inputs[:, :-1], code, inputs[:, -1:]])


def _test_errors(train: Sequence[Row], test: Sequence[Row]) -> npt.NDArray[np.float64]:
    """Return errors, beyond those of the labels, of a model (f of Algorithm 2) on test rows that it was not trained on."""
    rows = [*train, *test]
    both, work = _design(rows), log_work([config_of(r) for r in rows])
    latency = np.log([latency_of(r) for r in rows])
    cut = len(train)
    model = lgb.train(MODEL, lgb.Dataset(both[:cut], latency[:cut] - work[:cut]), _TREES)
    predicted = np.asarray(model.predict(both[cut:])) + work[cut:]
    return errors_beyond_labels(np.exp(predicted), np.exp(latency[cut:]))


def errors_beyond_labels(predicted_us: npt.NDArray[np.float64], labels_us: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the relative errors of predictions (n,), less what the labels themselves are likely to be off by.

    With it, rounds would go to kernels of a microsecond, whose labels say how the engine rounds: more of them teach nothing. An
    engine that counts finer is treated alike.
    """
    off = predicted_us - labels_us
    beyond = np.maximum(np.abs(off) - _LIKELY * standard_error_us(labels_us), 0.0)
    return np.asarray(np.sign(off) * beyond / labels_us)
