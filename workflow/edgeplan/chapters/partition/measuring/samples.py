"""Samples to learn from: layers and other steps, each on both processors alone, in chains (LiPG, section 5.2).

Anchors in every chain (`layers.ANCHORS`) say how fast each processor was meanwhile; times are divided by that.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import pandas as pd
from msgspec.structs import replace

from edgeplan.chapters.partition import layers as drawing
from edgeplan.chapters.partition.layers import ANCHORS, KINDS, LayerShape, layer_of, layouts, lowered
from edgeplan.chapters.partition.learning.predictors import Floats, augmented, family, refused, step_amounts
from edgeplan.chapters.partition.learning.training import LAYER, OTHER, SAMPLE, empty_dispatch
from edgeplan.chapters.partition.measuring.opened import Opened, ends_of_runs
from edgeplan.chapters.partition.measuring.rows import PartitionRows
from edgeplan.chapters.partition.settings import SIDES, PartitionSettings
from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import Assignment, Split, partition
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation
from edgeplan.runtime.processor import Dispatcher, Host
from edgeplan.runtime.program import activation_layouts
from edgeplan.zoo.registry import FAMILIES

_POOL, _POSITIVE, _CARRIER = "pool.bin", "positive.bin", "carrier.onnx"
_POOL_ELEMENTS, _POSITIVE_ELEMENTS = 48 << 20, 1 << 16
_SPREAD = 0.05
_FLOAT_BYTES = 4
_ALIGNMENT = 4096
_FENCE_LAYER = LayerShape.linear(1, 64, 16)
_US = 1e3


@dataclass(frozen=True, slots=True)
class ChainPlace:
    """A layer at a place in a chain, and the channels of it of lane 0: 0 for lane 1 alone, all for lane 0 alone."""

    layer: LayerShape
    channels: int

    @property
    def assignment(self) -> Assignment:
        """Tell where the layer runs."""
        if self.channels == 0:
            return 1
        return 0 if self.channels >= self.layer.outputs else Split(self.channels)


_FENCE = ChainPlace(_FENCE_LAYER, _FENCE_LAYER.outputs)


@dataclass(frozen=True, slots=True)
class ChainTimes:
    """Times of the steps of a chain, us (runs, steps), and their implementations on both processors, "" where there is no part.

    Of a whole step it is its own time, of a split one from the start of both parts until the CPU knows that the GPU is done.
    """

    us: Floats
    implementations: tuple[tuple[str, str], ...]

    @property
    def typical_us(self) -> Floats:
        """Return of each step the lower quartile of its runs, since what disturbs a run makes it longer only (steps,)."""
        return np.asarray(np.quantile(self.us, 0.25, axis=0), np.float64)


def write_pool(folder: Path) -> None:
    """The file that all weights are parts of, and one for variances, which are positive."""
    path = folder / _POOL
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        rng = np.random.default_rng(0)
        with path.open("wb") as file:
            (folder / _POSITIVE).write_bytes((rng.random(_POSITIVE_ELEMENTS, dtype=np.float32) + np.float32(0.5)).tobytes())
            for _ in range(16):
                values = rng.random(_POOL_ELEMENTS // 16, dtype=np.float32)
                file.write(((values - np.float32(0.5)) * np.float32(2 * _SPREAD)).tobytes())


def write_carrier(steps: Lowered, folder: Path) -> Path:
    """A model file that holds nothing but where in the pool the weights of steps lie, one after the other."""
    graph = onnx.GraphProto(name=steps.name)
    size, at = _FLOAT_BYTES * _POOL_ELEMENTS, 0
    for step in steps.steps:
        for role, name in step.weights.items():
            shape = steps.shapes[name]
            length = _FLOAT_BYTES * int(np.prod(shape))
            at = at if at + length <= size else 0
            file, offset = (_POSITIVE, 0) if role == "bn_variance" else (_POOL, at)
            tensor = onnx.TensorProto(name=name, dims=shape, data_type=onnx.TensorProto.FLOAT)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            for key, value in (("location", file), ("offset", offset), ("length", length)):
                tensor.external_data.add(key=key, value=str(value))
            graph.initializer.append(tensor)
            at += -(-length // _ALIGNMENT) * _ALIGNMENT
    path = folder / _CARRIER
    path.write_bytes(onnx.ModelProto(graph=graph).SerializeToString())
    return path


def timed(
    pair: Opened,
    places: Sequence[ChainPlace],
    folder: Path,
    runs: int,
    *,
    cpu: Host | None = None,
    synchronisation: Synchronisation | None = None,
) -> ChainTimes:
    """Run a chain; the processors note times (`opened` with `profiling` where a step runs on the GPU alone)."""
    fenced = [*places, _FENCE]  # behind the splits, so that the CPU sees the end of each
    order = sorted(range(len(fenced)), key=lambda k: (_rank(fenced[k]), k != len(places), k))
    layers = [fenced[k].layer for k in order]
    assigned = [fenced[k].assignment for k in order]
    found = _times(pair, lowered("chain", layers), layouts(layers), assigned, folder, runs, cpu, synchronisation)
    at = np.argsort(order)[:-1]
    return ChainTimes(found.us[:, at], tuple(found.implementations[k] for k in at))


def _rank(place: ChainPlace) -> int:
    """Splits come first, then the CPU's layers, then the GPU's."""
    return 0 if isinstance(place.assignment, Split) else 1 + place.assignment


@contextmanager
def anchor_session(pair: Opened, lane: int, folder: Path) -> Iterator[PairSession]:
    """A session of `sampling.ANCHORS` on one processor."""
    steps = lowered("anchors", ANCHORS)
    parts = partition(steps, layouts(ANCHORS), pair.block, [lane] * len(ANCHORS))
    with pair.session(parts, write_carrier(steps, folder)) as session:
        _fill(session)
        yield session


def _fill(session: PairSession) -> None:
    """Values in place of what nobody writes."""
    arena = session.arena.tensor(0, (session.placed.arena_bytes // _FLOAT_BYTES,), "float32")
    arena[:] = np.random.default_rng(0).random(len(arena), dtype=np.float32)


def _times(
    pair: Opened,
    steps: Lowered,
    where: Mapping[str, str],
    assigned: Sequence[Assignment],
    folder: Path,
    runs: int,
    cpu: Host | None = None,
    synchronisation: Synchronisation | None = None,
) -> ChainTimes:
    """Run any steps, none of which reads what another wrote; behind a split one runs on the CPU."""
    parts, carrier = partition(steps, where, pair.block, assigned), write_carrier(steps, folder)
    names = [["", ""] for _ in assigned]
    with PairSession.of(cpu or pair.host, pair.other, parts, carrier, synchronisation or pair.synchronisation) as session:
        _fill(session)
        for lane, origin, kernel in zip(parts.lanes, parts.ranged.origin, session.kernels, strict=True):
            names[origin][lane] = kernel.implementation
        first, last = ends_of_runs(session, parts, session.execute, runs)
    on_cpu, on_gpu = np.isfinite(first)
    if (np.minimum(first, last)[1][~on_cpu] < 0).any():
        raise DeviceError(
            f"{pair.names[1]} does not tell when its kernels ran",
            where="a chain of layers",
            next_step="plan for such a pair from times of your own: edgeplan plan partition --costs costs.json",
        )
    starts = np.where(on_cpu, first[0], 0.0)
    own = np.where(on_cpu, last[0] - starts, last[1] - first[1])
    us = np.where(on_cpu & on_gpu, np.diff(starts, append=0.0), own) / _US
    return ChainTimes(us, tuple((on_one, on_other) for on_one, on_other in names))


_MIB = 1 << 20
#: One other step is sampled for so many layers of a kind.
_LAYERS_PER_OTHER = 8
#: Variants of each family that other steps are taken from.
_VARIANTS = 2
#: Views take no time; the rest has no kernel that a plan could choose.
_LEFT_OUT = ("reshape",)


@dataclass(frozen=True, slots=True)
class Samples:
    """All samples (`training.SAMPLE`), as on a machine at its median speed; by processor the median time of each anchor, us."""

    frame: pd.DataFrame
    anchors_us: dict[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class OtherStep:
    """A step of a model that is no layer, and what it reads and writes."""

    step: Step
    shapes: MappingProxyType[str, Shape]
    layouts: MappingProxyType[str, str]


def samples(
    rows: PartitionRows, pair: Opened | None, dispatcher: Dispatcher, settings: PartitionSettings, seed: int, folder: Path
) -> Samples:
    """Measure all samples, or find them stored."""
    found: list[pd.DataFrame] = []
    finish: list[Callable[[pd.DataFrame], pd.DataFrame]] = []
    for kind in KINDS:
        drawn = drawing.sampled(kind, settings.samples, settings.sample_flops, seed)
        kept = [layer for layer in drawn if not refused(layer, dispatcher)]
        for chain in drawing.chains(kept, settings.chain, settings.chain_mib * _MIB):
            key = [[asdict(layer) for layer in chain], settings.sample_runs]
            found.append(rows.found("samples", key, partial(_chain, pair, chain, settings.sample_runs, folder)))
            finish.append(partial(_layers, chain, dispatcher=dispatcher))
    others = _others(dispatcher, max(1, settings.samples // _LAYERS_PER_OTHER), seed)
    for at in range(0, len(others), settings.chain):
        chain_of = others[at : at + settings.chain]
        key = [[_described(one) for one in chain_of], settings.sample_runs]
        found.append(rows.found("samples", key, partial(_steps, pair, chain_of, settings.sample_runs, folder)))
        finish.append(partial(_other_rows, chain_of, dispatcher=dispatcher))
    rows.merge("samples")
    scaled, anchors_us = at_median_speed(found)
    parts = [end(frame) for end, frame in zip(finish, scaled, strict=True)]
    return Samples(pd.concat(parts, ignore_index=True)[list(SAMPLE)], anchors_us)


def at_median_speed(chains: Sequence[pd.DataFrame]) -> tuple[list[pd.DataFrame], dict[str, tuple[float, ...]]]:
    """Chains without their anchors, times divided by how much longer than usual these took; and what is usual.

    Anchor k has the place -1 - k; what is usual is the median time of each, by processor.
    """
    count = len(drawing.ANCHORS)
    layers, factors, usual = [], [], {}
    for side in SIDES:
        us = np.array([c.set_index("place")[f"{side}_us"].reindex([-1 - k for k in range(count)]) for c in chains], np.float64)
        usual[side] = tuple(np.median(us, axis=0).tolist())
        factors.append(np.exp(np.median(np.log(us / usual[side]), axis=1)))
    for chain, *by_lane in zip(chains, *factors, strict=True):
        own = chain[chain["place"] >= 0].reset_index(drop=True)
        times = {f"{side}_us": own[f"{side}_us"] / factor for side, factor in zip(SIDES, by_lane, strict=True)}
        layers.append(own.assign(**times))
    return layers, usual


def _chain(pair: Opened | None, chain: Sequence[LayerShape], runs: int, folder: Path) -> pd.DataFrame:
    """Every layer on lane 0, then every layer on lane 1; both in each run."""
    assert pair is not None  # noqa: S101  or nothing may be measured
    layers, at = drawing.anchored(chain)
    places = [*(ChainPlace(layer, layer.outputs) for layer in layers), *(ChainPlace(layer, 0) for layer in layers)]
    found = timed(pair, places, folder, runs)
    us, count = found.typical_us, len(layers)
    names = found.implementations
    return _table(at, (us[:count], us[count:]), (names[:count], names[count:]))


def _table(at: Sequence[int], us: Sequence[object], names: Sequence[Sequence[tuple[str, str]]]) -> pd.DataFrame:
    """Times and implementations of the same steps on each lane."""
    times = {f"{side}_us": us[lane] for lane, side in enumerate(SIDES)}
    kernels = {f"{side}_implementation": [one[lane] for one in names[lane]] for lane, side in enumerate(SIDES)}
    return pd.DataFrame({"place": np.array(at), **times, **kernels})


def _layers(chain: Sequence[LayerShape], found: pd.DataFrame, dispatcher: Dispatcher) -> pd.DataFrame:
    _, matrix = augmented(chain, dispatcher)
    made = pd.DataFrame([asdict(layer) for layer in chain])
    names = dispatcher.features
    features = [json.dumps(dict(zip(names, row.tolist(), strict=True))) for row in matrix[:, matrix.shape[1] - len(names) :]]
    about: dict[str, Any] = {"name": [layer.name for layer in chain], "family": "", "dispatch": features, "terms": ""}
    return pd.concat([made.assign(**about), found.drop(columns="place").reset_index(drop=True)], axis=1)


# Steps that are no layers


def _others(dispatcher: Dispatcher, count: int, seed: int) -> list[OtherStep]:
    """Different steps of variants of the zoo's families, as many of each family of steps as there may be."""
    rng = random.Random(f"{seed} other steps")  # noqa: S311  no secrets
    by_family: dict[str, list[OtherStep]] = {}
    seen: set[object] = set()
    for one in _steps_of_zoo(seed):
        key = tuple(_described(one).items())
        if str(key) in seen or dispatcher.refusal(one.step, one.shapes, one.layouts):
            continue
        seen.add(str(key))
        by_family.setdefault(family(one.step), []).append(one)
    for some in by_family.values():
        rng.shuffle(some)
    found: list[OtherStep] = []
    while len(found) < count and any(by_family.values()):
        for name in sorted(by_family):
            if by_family[name] and len(found) < count:
                found.append(by_family[name].pop())
    return found


def _steps_of_zoo(seed: int) -> Iterator[OtherStep]:
    for zoo in FAMILIES.values():
        for index in range(_VARIANTS):
            lowered = lower(zoo.build(zoo.variant(seed, index)))
            layouts = activation_layouts(lowered, BLOCKED)
            for step in lowered.steps:
                tensors = (*step.reads, *step.outputs, *step.weights.values())
                if step.kind in _LEFT_OUT or layer_of(step, lowered.shapes) or any(t in lowered.types for t in tensors):
                    continue
                shapes = {name: lowered.shapes[name] for name in tensors}
                own = {name: layouts[name] for name in (*step.reads, *step.outputs)}
                yield OtherStep(step, MappingProxyType(shapes), MappingProxyType(own))


def _described(one: OtherStep) -> dict[str, object]:
    """Describe what decides the time of a step, its names left out."""
    step = one.step
    return {
        "kind": step.kind,
        "settings": {key: step.settings[key] for key in sorted(step.settings)},
        "reads": [(one.shapes[t], one.layouts[t]) for t in step.reads],
        "writes": [(one.shapes[t], one.layouts[t]) for t in step.outputs],
        "weights": [(role, one.shapes[name]) for role, name in sorted(step.weights.items())],
        "post": [(p.kind, p.algorithm, p.alpha, p.beta) for p in step.post_ops],
    }


def _renamed(k: int, one: OtherStep) -> tuple[Step, dict[str, Shape], dict[str, str]]:
    """A step whose tensors no other one names."""
    step = one.step
    name = {tensor: f"{k}.{tensor}" for tensor in one.shapes}
    moved = replace(
        step,
        name=str(k),
        inputs=tuple(name[t] for t in step.inputs),
        outputs=tuple(name[t] for t in step.outputs),
        weights=MappingProxyType({role: name[w] for role, w in step.weights.items()}),
        post_ops=tuple(replace(p, tensor=name[p.tensor]) if p.tensor else p for p in step.post_ops),
    )
    shapes = {name[t]: shape for t, shape in one.shapes.items()}
    return moved, shapes, {name[t]: layout for t, layout in one.layouts.items()}


def _steps(pair: Opened | None, some: Sequence[OtherStep], runs: int, folder: Path) -> pd.DataFrame:
    assert pair is not None  # noqa: S101  or nothing may be measured
    steps: list[Step] = []
    shapes: dict[str, Shape] = {}
    layouts: dict[str, str] = {}
    for k, one in enumerate(some):
        step, own_shapes, own_layouts = _renamed(k, one)
        steps.append(step)
        shapes |= own_shapes
        layouts |= own_layouts
    for k, layer in enumerate(drawing.ANCHORS):
        name = f"anchor{k}"
        steps.append(layer.step(name))
        shapes |= layer.shapes(name)
        layouts |= layer.layouts(name)
    at = [*range(len(some)), *(-1 - k for k in range(len(drawing.ANCHORS)))]
    lowered = Lowered("steps", tuple(steps), (), (), MappingProxyType(shapes))
    found = [_times(pair, lowered, layouts, [lane] * len(steps), folder, runs) for lane in (0, 1)]
    return _table(at, [one.typical_us for one in found], [one.implementations for one in found])


def _other_rows(some: Sequence[OtherStep], found: pd.DataFrame, dispatcher: Dispatcher) -> pd.DataFrame:
    about: dict[str, Any] = {
        **dict.fromkeys(LAYER, 0),
        "kind": OTHER,
        "name": [one.step.kind for one in some],
        "family": [family(one.step) for one in some],
        "dispatch": empty_dispatch(dispatcher.features),
        "terms": [json.dumps(step_amounts(one.step, one.shapes)) for one in some],
    }
    return found.drop(columns="place").reset_index(drop=True).assign(**about)
