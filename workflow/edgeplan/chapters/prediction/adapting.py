"""Adapts predictors to this machine: `edgeplan device adapt` measures for seconds and writes predictors that `predict` finds.

Another device's predictor is the prior: nodes that it was trained on are measured here, some of each key, then small whole
models, a family after another. All of it is one training with that prior.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgeplan.chapters.prediction.api import SETTINGS
from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.engines.registry import engine_class
from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Graph
from edgeplan.graph.nodes import ExecutedModel
from edgeplan.graph.onnx.write import weight_bytes
from edgeplan.graph.simplify import batched, simplify
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.kernel_labels import label_us
from edgeplan.measurement.records import CALLS, NodeSubject, Subject, call_us
from edgeplan.predictors.nodes.features import Table
from edgeplan.predictors.nodes.learner import Samples
from edgeplan.predictors.nodes.predictor import NodePredictor
from edgeplan.predictors.nodes.storing import Kernel, read_kernels, save_predictor, write_kernels, write_measured
from edgeplan.predictors.nodes.training import MeasuredModel, refitted, train
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.predictors.source import Source, devices_with_predictors, find_predictors
from edgeplan.predictors.teller import Teller
from edgeplan.support.files import write_json
from edgeplan.workspace import RULES, workspace
from edgeplan.zoo import FAMILIES, build_variant, variants

#: Share of the seconds that whole models take.
_MODELS_SHARE = 1 / 3
#: Small models: no more bytes of weights, and no more predicted milliseconds.
_SMALL_BYTES, _SMALL_MS = 60_000_000, 60.0
_VARIANTS, _SEED, _BATCH = 3, 1959, 48
#: Models of which overheads are fitted on half and errors told of the others.
_FEWEST_MODELS = 8
#: For how long the references are timed alone before anything else.
_QUIET_S = 1.0
_TRAINING = TrainingSettings(trials=0, folds=3, seeds=(7,))


@dataclass(frozen=True)
class Adapted:
    """Names the predictors that adapting gave, and tells how good they are.

    Attributes:
        spread: standard deviation of the log errors of whole models, by what was learnt without them; NaN for too few.
    """

    device: str
    old: str
    folder: Path
    seconds: float
    kernels: int
    models: int
    spread: float

    @property
    def expected_within_10pct(self) -> float:
        """Return the share of models that errors of this spread leave within 10 %; NaN where it is not known."""
        return math.erf(math.log(1.1) / (self.spread * math.sqrt(2))) if self.spread > 0 else math.nan


def adapt_device(name: str, old: str = "", *, seconds: float = 60.0, batch: int = 1, results: Path | None = None) -> Adapted:
    """Measure a device of this machine for some seconds, and write its predictors.

    The prior are the predictors of `old`, without a name those of a device of the same engine; `batch` are images of a model.
    """
    device, space, began = load_device(name), workspace(), time.monotonic()
    device.require_local("kernels are measured")
    source = find_predictors(old or _of_same_engine(device))
    _require_its_nodes(device, source)
    folder = (results or space.results) / device.name
    teller = Teller(device, source.rules)
    small = _small_models(teller, source, batch)
    with Bench(device, SETTINGS, space.rows / device.name / "adaptation", quiet_seconds=_QUIET_S) as bench:
        calls = bench.measure(CALLS, description="the call")
        call, slowness = call_us(calls), [m.slowness for m in calls]
        kernels = _nodes(bench, source, call, began + seconds * (1 - _MODELS_SHARE), slowness)
        usual = float(np.median(slowness))  # times as the machine has them now
        kernels, call = [(config, context, us * usual) for config, context, us in kernels], call * usual
        known = {config.key: us for config, _, us in kernels}
        models = _models(bench, small, known, began + seconds)
        identity, cache = dict(bench.identity), float(bench.cache_bytes)
    spent = time.monotonic() - began
    samples = Samples.of(
        [config for config, _, _ in kernels],
        [context for _, context, _ in kernels],
        [us for *_, us in kernels],
        [str(number) for number in range(len(kernels))],
    )
    found, _ = train(samples, models, call, cache, _TRAINING, source.predictor)
    version = str(identity["engine_version"])
    today = time.strftime("%Y-%m-%d", time.gmtime())
    predictor = replace(found, device=device.name, engine=device.engine, engine_version=version, measured_at=today)
    save_predictor(predictor, folder / "predictors")
    write_measured(folder / "predictors", known)
    write_kernels(folder / "predictors", kernels)
    source.rules.write(folder / "fusion" / RULES)
    write_json(folder / "evaluation" / "environment.json", {**identity.pop("environment", {}), **identity})
    spread = _spread(predictor, models)
    return Adapted(device.name, source.device, folder / "predictors", spent, len(known), len(models), spread)


def _spread(predictor: NodePredictor, models: Sequence[MeasuredModel]) -> float:
    """Return the deviation of log errors of models by overheads that others alone tell; NaN for too few."""
    if len(models) < _FEWEST_MODELS:
        return math.nan
    off = []
    for part in range(2):
        alone = refitted(predictor, models[1 - part :: 2])
        off += [float(np.log(alone.predict(one.model, one.known).latency_us / one.us)) for one in models[part::2]]
    return float(np.std(off))


def _of_same_engine(device: DeviceFile) -> str:
    names = [name for name in devices_with_predictors(workspace().results, device.engine) if name != device.name]
    if names:
        return names[0]
    raise DeviceError(
        f"no device of engine {device.engine} has predictors to adapt",
        where=device.name,
        next_step=f"name one of another engine by --from, or measure the device in full: make reproduce DEVICE={device.name}",
    )


def _require_its_nodes(device: DeviceFile, source: Source) -> None:
    """Refuse a prior whose nodes are of files where the device's engine runs those of graphs, or the other way round."""
    theirs = source.predictor.engine
    if engine_class(device.engine).reads_files != engine_class(theirs).reads_files:
        raise DeviceError(
            f"{device.engine} cannot run the nodes that {theirs} tells, which the predictors of {source.device} learnt from",
            where=device.name,
            next_step=f"name a device of another engine, or measure in full: make reproduce DEVICE={device.name}",
        )


def _nodes(bench: Bench, source: Source, call: float, until: float, slowness: list[float]) -> list[Kernel]:
    """Measure nodes of the prior while the time lasts, each as it is executed here; `slowness` learns how slow it was."""
    found: dict[str, Kernel] = {}
    waiting = iter(_by_key(source))
    while time.monotonic() < until and (batch := list(itertools.islice(waiting, _BATCH))):
        subjects = [NodeSubject(config, context) for config, context, _ in batch]
        measured = bench.measure_in_time(subjects, description="kernels")
        for (config, context, _), one, m in zip(batch, subjects, measured, strict=True):
            slowness += [m.slowness] if m is not None else []
            if m is not None and (label := label_us(config, m, call, one.copies)):
                found[label[0].key] = (label[0], context, label[1])
    return list(found.values())


def _by_key(source: Source) -> list[Kernel]:
    """Order nodes of the prior: of each key in turn, as the square root of its number."""
    kernels = read_kernels(source.folder)
    table = Table.of([config for config, _, _ in kernels])
    of_key: dict[str, list[Kernel]] = defaultdict(list)
    for place, kernel in zip(table.place.tolist(), kernels, strict=True):
        of_key[table.keys[place]].append(kernel)
    placed = []
    rng = np.random.default_rng(_SEED)
    for key, those in of_key.items():
        order = rng.permutation(len(those)).tolist()
        placed += [(rank / len(those) ** 0.5, key, rank, those[i]) for rank, i in enumerate(order)]
    return [one for *_, one in sorted(placed, key=lambda place: place[:3])]


def _small_models(teller: Teller, source: Source, batch: int) -> Iterator[tuple[Graph, ExecutedModel]]:
    """Yield small variants of each family in turn, under a seed that no evaluated one has."""
    for turn in zip(*(variants(family, _VARIANTS, _SEED) for family in FAMILIES.values()), strict=True):
        for spec in turn:
            graph = simplify(build_variant(spec))
            graph = graph if batch == 1 else batched(graph, f"{graph.name}-batch{batch}", batch)
            if weight_bytes(graph) > _SMALL_BYTES:
                continue
            model = teller.of_graph(graph)
            if source.predictor.predict(model).latency_us <= 1e3 * _SMALL_MS * batch**0.5:
                yield graph, model


def _models(
    bench: Bench, small: Iterator[tuple[Graph, ExecutedModel]], known: dict[str, float], until: float
) -> Sequence[MeasuredModel]:
    found = []
    while time.monotonic() < until and (batch := list(itertools.islice(small, 4))):
        measured = bench.measure([Subject(graph) for graph, _ in batch], description="small whole models")
        found += [
            MeasuredModel(model, float(np.median(m.median_us)), known) for (_, model), m in zip(batch, measured, strict=True)
        ]
    return found
