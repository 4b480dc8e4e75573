"""Samples to learn from: layers and other steps, each on both processors alone, in chains (LiPG, section 5.2).

Anchors in every chain (`layers.ANCHORS`) say how fast each processor was meanwhile; times are divided by that.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import replace

from edgeplan.chapters.partition import layers as drawing
from edgeplan.chapters.partition.layers import KINDS, LayerShape, layer_of
from edgeplan.chapters.partition.learning.features import family, terms
from edgeplan.chapters.partition.learning.predictors import augmented, refused
from edgeplan.chapters.partition.learning.training import LAYER, OTHER, SAMPLE, empty_dispatch
from edgeplan.chapters.partition.measuring.chains import ChainPlace, timed, timed_steps
from edgeplan.chapters.partition.measuring.opened import Opened
from edgeplan.chapters.partition.measuring.rows import PartitionRows
from edgeplan.chapters.partition.names import SIDES
from edgeplan.chapters.partition.settings import PartitionSettings
from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.processor import Dispatcher
from edgeplan.runtime.program import activation_layouts
from edgeplan.zoo.registry import FAMILIES

_MIB = 1 << 20
#: One other step is sampled for so many layers of a kind.
_LAYERS_PER_OTHER = 8
#: Variants of each family that other steps are taken from.
_VARIANTS = 2
#: Views take no time; the rest has no kernel that a plan could choose.
_LEFT_OUT = ("reshape",)


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples are layers and other steps with their times.

    Attributes:
        frame: all samples, with the columns `training.SAMPLE`; times as on a machine at its median speed.
        anchors_us: median over chains of the time of each of `layers.ANCHORS`, by processor.
    """

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

    Args:
        chains: place (of anchor k it is -1 - k), cpu_us, gpu_us.

    Returns:
        The chains, and the median time of each anchor, by processor.
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
    found = [timed_steps(pair, lowered, layouts, lane, folder, runs) for lane in (0, 1)]
    return _table(at, [one.typical_us for one in found], [one.implementations for one in found])


def _other_rows(some: Sequence[OtherStep], found: pd.DataFrame, dispatcher: Dispatcher) -> pd.DataFrame:
    about: dict[str, Any] = {
        **dict.fromkeys(LAYER, 0),
        "kind": OTHER,
        "name": [one.step.kind for one in some],
        "family": [family(one.step) for one in some],
        "dispatch": empty_dispatch(dispatcher.features),
        "terms": [json.dumps(terms(one.step, one.shapes)) for one in some],
    }
    return found.drop(columns="place").reset_index(drop=True).assign(**about)
