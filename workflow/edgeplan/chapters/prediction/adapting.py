"""Adapts predictors to this machine: `edgeplan device adapt` measures for seconds and writes predictors that `predict` finds.

The seconds count from the first line that measures: the engine's start, the references' quiet times and discarded batches are
among them. Carriers come first, drawn at random over strata of kernels (`predictors.strata`), then small whole models, a family
after another. It ends when the seconds are spent, or as soon as models are predicted as well as asked for.
"""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from random import Random

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction.sampling.carriers import build_carrier
from edgeplan.chapters.prediction.sampling.labels import call_is_fitted, fit_counters, label_rows, plain_layouts
from edgeplan.chapters.prediction.sampling.prior import ConvPrior, conv_shapes
from edgeplan.chapters.prediction.sampling.sources import PriorSource, PublishedSource
from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.engines.registry import engine_class
from edgeplan.errors import DeviceError
from edgeplan.graph.batches import batched
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import weight_bytes
from edgeplan.graph.simplify import simplify
from edgeplan.graph.splitting import split
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Measurement, Subject
from edgeplan.measurement.settings import MeasurementSettings, ReferenceExponents
from edgeplan.predictors.adapted import AdaptedPredictor, errors_left_out
from edgeplan.predictors.adapting import NewDevice, adapt, from_scratch, rows_of, strata_of
from edgeplan.predictors.calibration_line import held_out_us
from edgeplan.predictors.card import ADAPTED
from edgeplan.predictors.kernel_tables import KernelTables, ModelKernels, kernel_table
from edgeplan.predictors.labels import read_labels
from edgeplan.predictors.source import Source, find_predictors
from edgeplan.predictors.strata import drawn
from edgeplan.support.files import write_json
from edgeplan.workspace import RULES, SHIPPED, workspace
from edgeplan.zoo import FAMILIES, build_variant, prior_models, variants

#: Blocks as the pipeline's, with shorter pauses: what is met at one moment only costs accuracy, waiting costs seconds.
_SETTINGS = MeasurementSettings(
    blocks=3,
    min_runs=3,
    max_runs=40,
    block_ms=10.0,
    reference_runs=4,
    batch_size=8,
    batch_weight_mb=1000,
    min_gap_seconds=0.1,
    max_noise=0.05,
    extra_blocks=0,
    max_noisy_share=1.0,
    retries=0,
    reference_exponents=ReferenceExponents(compute=0.8, bandwidth=0.05),
)
#: Share of the seconds that whole models take; least seconds with the predictors of which the old device is chosen.
_MODELS_SHARE, _CHOOSING_S = 1 / 3, 5.0
#: Carriers and models that are drawn from, by how many fit into a second and no more than these.
_CARRIERS_A_SECOND, _MOST_CARRIERS, _MODELS = 3, 600, 6
#: Carriers of the first batch, which tells what one takes.
_FIRST = 2
#: Small models: no more bytes of weights, and no more predicted milliseconds; of a batch its root as often: few would be left.
_SMALL_BYTES, _SMALL_MS = 60_000_000, 60.0
_NETWORK_KERNELS = 14
#: An error that nine models have to show before measuring ends early.
_LEAST_MODELS = 9
_SEED, _MODELS_SEED = 7, 1959
#: For how long the references are timed alone before anything else.
_QUIET_S = 1.0


@dataclass(frozen=True)
class Adapted:
    """Names the predictors that adapting gave, and tells how good they are.

    Attributes:
        device, old: names; several old ones where none is of the same engine.
        folder: folder that the predictors were written to.
        seconds: time that was measured.
        carriers, kernels, models: how many of each were measured.
        spread: standard deviation of the log errors of whole models that no factor was fitted on; NaN for too few.
        spread_kernels: of kernels, out of fold, from all carriers and from half of them.
        interval: half width of the interval of a typical model, relative.
    """

    device: str
    old: tuple[str, ...]
    folder: Path
    seconds: float
    carriers: int
    kernels: int
    models: int
    spread: float
    spread_kernels: tuple[float, float]
    interval: float

    @property
    def expected_within_10pct(self) -> float:
        """Return the share of models that errors of this spread leave within 10 %; NaN where it is not known."""
        return math.erf(math.log(1.1) / (self.spread * math.sqrt(2))) if self.spread > 0 else math.nan

    @property
    def expected_at_four_times(self) -> float:
        """Return that share for four times the seconds, if errors go on to fall as from half of the carriers to all."""
        whole, half = self.spread_kernels
        power = max(0.0, math.log(half / whole) / math.log(2)) if min(whole, half) > 0 else 0.0
        return replace(self, spread=self.spread * 4**-power).expected_within_10pct


def adapt_device(
    name: str,
    old: str = "",
    *,
    seconds: float = 60.0,
    share: float = 1.0,
    batch: int = 1,
    results: Path | None = None,
) -> Adapted:
    """Measure here for some seconds, and write predictors of a device.

    Args:
        name: name of the device, or path of its file; its engine is installed here.
        old: device whose predictors are adapted; "" finds the one of the same engine that errs least on what the first seconds
            measured, or takes all that are known where none is of the engine.
        seconds: time to measure.
        share: share of models within 10 %; measuring ends early once as many are expected.
        batch: images of each carrier and whole model.
        results: folder of the results; without, the workspace's.
    """
    device = load_device(name)
    if not engine_class(device.engine).reports_nodes:
        raise DeviceError(
            f"engine {device.engine} tells no times of kernels, so none can be adapted",
            where=device.name,
            next_step=f"measure the device in full: make reproduce DEVICE={device.name}",
        )
    sources = _sources(device, old)
    space = workspace()
    folder = (results or space.results) / device.name
    live = _Live(device, sources, seconds, share, batch)
    live.prepare()
    began = time.monotonic()
    with Bench(device, _SETTINGS, space.rows / device.name / "adaptation", quiet_seconds=_QUIET_S) as bench:
        live.measure(bench, began)
        identity = dict(bench.identity)
    predictor, told = live.result(str(identity["engine_version"]))
    predictor.save(folder / "predictors")
    live.rules.write(folder / "fusion" / RULES)
    write_json(folder / "evaluation" / "environment.json", {**identity.pop("environment", {}), **identity})
    return replace(told, folder=folder / "predictors")


def known_devices(engine: str, but: str) -> list[str]:
    """List devices with predictors, of this workspace and shipped, whose engine is this one; "" for any engine."""
    space = workspace()
    names = [
        p.parent.parent.name for p in sorted(space.results.glob("*/predictors/card.json")) if not (p.parent / ADAPTED).is_file()
    ]
    names += [p.parent.name for p in sorted(SHIPPED.glob("*/card.json"))]
    return [n for n in dict.fromkeys(names) if n != but and (not engine or find_predictors(n).predictor.card.engine == engine)]


def _sources(device: DeviceFile, old: str) -> list[Source]:
    """Return the old devices: the one that is named, those of the same engine, or all."""
    if old:
        source = find_predictors(old)
        if isinstance(source.predictor, AdaptedPredictor):
            others = ", ".join(known_devices("", old))
            raise DeviceError(f"{old} is adapted itself", where="--from", next_step=f"name one that was measured: {others}")
        return [source]
    names = known_devices(device.engine, device.name) or known_devices("", device.name)
    if not names:
        raise DeviceError(
            "no device has predictors to adapt", where="the package and this workspace", next_step="measure one: make reproduce"
        )
    return [find_predictors(name) for name in names]


class _Live:
    """Measures and learns for one device while the time lasts."""

    def __init__(self, device: DeviceFile, sources: list[Source], seconds: float, share: float, batch: int) -> None:
        self.device, self.sources, self.seconds, self.share, self.batch = device, sources, seconds, share, batch
        self.graphs: list[Graph] = []
        self.measured: list[Measurement] = []
        self.models: list[ModelKernels] = []
        self.model_ms: list[float] = []
        self.spent = 0.0

    @property
    def rules(self) -> FusionRules:
        """Return the fusion rules of the first old device: those of the engine, if it is of the same one."""
        return self.sources[0].rules

    def prepare(self) -> None:
        """Draw what may be measured: none of it takes the device's time."""
        self.carriers, self.small_models  # noqa: B018  kept

    def measure(self, bench: Bench, began: float) -> None:
        """Measure carriers, then whole models, while there are seconds.

        Args:
            bench: where to measure.
            began: when the seconds began to count, by the monotonic clock.
        """
        carriers = iter(self.carriers)
        until = began + self.seconds * (1 - _MODELS_SHARE)
        while time.monotonic() < until and (batch := list(itertools.islice(carriers, self._fitting(until)))):
            found = bench.measure([Subject(g, profiled=True) for g in batch], description="carriers")
            self.graphs += batch
            self.measured += found
            if len(self.sources) > 1 and self._same_engine and time.monotonic() - began > _CHOOSING_S:
                self._choose()
        if len(self.sources) > 1 and self._same_engine:
            self._choose()
        until = began + self.seconds
        models = iter(self.small_models)
        while time.monotonic() < until and (found_models := list(itertools.islice(models, self._fitting(until, 4)))):
            measured = bench.measure([Subject(g) for g, _ in found_models], description="small whole models")
            self.models += [kernels for _, kernels in found_models]
            self.model_ms += [m.latency_us / 1e3 for m in measured]
            if self.share < 1 and self._good_enough():
                break
        self.spent = time.monotonic() - began

    def _fitting(self, until: float, most: int = _SETTINGS.batch_size) -> int:
        """Return how many subjects the next batch has: as many as the time left holds, by the mean of those before."""
        left = until - time.monotonic()
        done = [m.seconds for m in self.measured]
        if not done:
            return _FIRST
        return max(1, min(most, int(left / float(np.mean(done)))))

    @cached_property
    def _same_engine(self) -> bool:
        return all(s.predictor.card.engine == self.device.engine for s in self.sources)

    @cached_property
    def carriers(self) -> list[Graph]:
        """Draw carriers of published and of scaled convolutions, in the order of the strata that they fill."""
        prior = ConvPrior(conv_shapes(build() for build in prior_models().values()))
        count = min(_MOST_CARRIERS, max(30, round(_CARRIERS_A_SECOND * self.seconds)))
        guide = self.sources[0].predictor
        drawn_from: list[Graph] = []
        for number in range(count):
            kind = PublishedSource if number % 3 == 0 else PriorSource
            carrier = self._of_batch(build_carrier(f"adapt-{number}", f"{_SEED}/adapt-{number}", kind(prior), _NETWORK_KERNELS))
            if weight_bytes(carrier) <= 4 * _SMALL_BYTES:
                drawn_from.append(carrier)
        strata = strata_of(guide, [kernels for _, kernels in self.zoo])
        samples = []
        for carrier in drawn_from:
            lines = guide.predict(kernel_table(carrier, split(carrier, self.rules)), allow_partial=True).kernels
            samples.append(strata.counts([line.kind for line in lines], np.array([line.latency_us for line in lines])))
        return [drawn_from[i] for i in drawn(strata, samples, np.random.default_rng(_SEED))]

    @cached_property
    def zoo(self) -> list[tuple[Graph, ModelKernels]]:
        """Build variants of each family in turn, under a seed that no evaluated one has."""
        drawn_of = [list(variants(f, _MODELS, _MODELS_SEED)) for f in FAMILIES.values()]
        graphs = [self._of_batch(simplify(build_variant(spec))) for turn in zip(*drawn_of, strict=True) for spec in turn]
        return [(g, kernel_table(g, split(g, self.rules))) for g in graphs]

    @cached_property
    def small_models(self) -> list[tuple[Graph, ModelKernels]]:
        """Return small models, one of a family after one of another, the families in an order by chance."""
        guide, families, most_ms = self.sources[0].predictor, len(FAMILIES), _SMALL_MS * self.batch**0.5
        small = [
            weight_bytes(graph) <= _SMALL_BYTES and guide.predict(kernels, allow_partial=True).latency_ms <= most_ms
            for graph, kernels in self.zoo
        ]
        order = list(range(families))
        Random(_SEED).shuffle(order)  # noqa: S311  not cryptography
        numbers = [turn * families + family for turn in range(_MODELS) for family in order]
        return [self.zoo[number] for number in numbers if small[number]]

    def _of_batch(self, graph: Graph) -> Graph:
        """Return a graph for as many images as asked; for one it is as it was, with the rows that it has."""
        return graph if self.batch == 1 else batched(graph, f"{graph.name}-batch{self.batch}", self.batch)

    def _choose(self) -> None:
        """Keep the old device whose calibration errs least on held-out kernels."""
        new = self._new("")
        labels = read_labels(new.kernels)
        errors = []
        for source in self.sources:
            rows = rows_of(source.predictor, labels)
            errors.append(float(np.sqrt(np.nanmean((np.log(rows.latency) - np.log(held_out_us(rows, 0))) ** 2))))
        self.sources = [self.sources[int(np.nanargmin(errors))]]

    def _new(self, version: str) -> NewDevice:
        counters, plain = fit_counters(self.measured), plain_layouts(self.graphs, self.measured)
        rows = [row for g, m in zip(self.graphs, self.measured, strict=True) for row in label_rows(g, m, counters, plain)]
        frame = pd.DataFrame(rows).assign(sampler="adaptive")
        call = counters.call if call_is_fitted(counters.call) else self.sources[0].predictor.card.call_us
        today = time.strftime("%Y-%m-%d", time.gmtime())
        ms = np.array(self.model_ms)
        return NewDevice(self.device.name, self.device.engine, version, today, call, plain, frame, self.models, ms)

    def _good_enough(self) -> bool:
        if len(self.model_ms) < _LEAST_MODELS:
            return False
        _, told = self.result("", scratch=False)
        return told.expected_within_10pct >= self.share

    def result(self, version: str, *, scratch: bool = True) -> tuple[AdaptedPredictor, Adapted]:
        """Return the predictors from all that was measured so far, and what to expect of them."""
        new = self._new(version)
        olds = [s.predictor for s in self.sources]
        predictor = adapt(new, olds, from_scratch(new) if scratch else None, _SEED)
        spread, half_width = judged(predictor, new)
        told = Adapted(
            self.device.name,
            tuple(s.device for s in self.sources),
            Path(),
            self.spent,
            len(self.measured),
            len(new.kernels),
            len(self.models),
            spread,
            self._spreads(new),
            half_width,
        )
        return predictor, told

    def _spreads(self, new: NewDevice) -> tuple[float, float]:
        """Return the median log errors of held-out kernels, from all carriers and from half of them."""
        labels = read_labels(new.kernels)
        rows = rows_of(self.sources[0].predictor, labels)
        halves = rows.take(rows.group % 2 == 0)
        found = []
        for part in (rows, halves):
            error = np.abs(np.log(part.latency) - np.log(held_out_us(part, 0))) if len(part) else np.zeros(0)
            found.append(float(np.nanmedian(error)) if np.isfinite(error).any() else math.nan)
        return found[0], found[1]


def judged(predictor: AdaptedPredictor, new: NewDevice) -> tuple[float, float]:
    """Return the spread of whole models' errors by factors of others, and the half width of a typical model's interval."""
    if len(new.measured_ms) < 3:
        return math.nan, math.nan
    models = KernelTables.of(new.models)
    error = errors_left_out(predictor, models, new.measured_ms)
    width = predictor.card.interval.half_width(predictor.without_factors_of(models)[0].effective_kernels)
    return float(np.sqrt(np.mean(error**2))), float(np.expm1(np.median(width)))
