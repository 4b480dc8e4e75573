"""Models to cost documents: what the predictors of a pair say of every step, whole and split."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeplan.chapters.partition.layers import LayerShape, layer_of, splits
from edgeplan.chapters.partition.learning.predictors import OURS, Floats, PairPredictors, refused
from edgeplan.chapters.partition.settings import SIDES
from edgeplan.errors import ModelError
from edgeplan.graph.steps import Lowered, Step
from edgeplan.planning.partition.costs import PairCosts
from edgeplan.planning.partition.document import parse_costs
from edgeplan.planning.partition.planner import PartitionPlan
from edgeplan.runtime.layouts import NCHW, same_bytes
from edgeplan.runtime.partitioned.program import Assignment, Split, preceding
from edgeplan.runtime.partitioned.sections import Dimension, extent
from edgeplan.runtime.ranges import channels_of, why_not_split

#: Channels between two splits that a plan may choose from.
GRID = 16
_US = 1e3
#: An option as the cost document says it, and where it runs.
Priced = tuple[dict[str, Any], Assignment]


def whole(lane: int, ms: float) -> Priced:
    """An operator whole on a processor."""
    return {"on": SIDES[lane], f"{SIDES[lane]}_ms": ms}, lane


def split(at: Split, size: int, cpu_ms: float, gpu_ms: float) -> Priced:
    """An operator on both, cut where so much of a size is the CPU's."""
    share = {"cpu_share": at.end / size, "dimension": at.dimension.value}
    return {"on": "split", "cpu_ms": cpu_ms, "gpu_ms": gpu_ms, **share}, at


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """A cost document, JSON in UTF-8, and where each option of it runs, by step and position among the options."""

    content: bytes
    costs: PairCosts
    block: int
    assigned: tuple[Sequence[Assignment], ...]

    def assignments(self, choice: Sequence[int]) -> list[Assignment]:
        """Return where each step runs by a choice of options."""
        chosen = zip(self.costs.steps, self.assigned, choice, strict=True)
        return [of_options[step.options[k].index] for step, of_options, k in chosen]


def costs_of(
    lowered: Lowered,
    layouts: Mapping[str, str],
    block: int,
    priced: Sequence[tuple[Sequence[Priced], Mapping[str, Any]]],
    *,
    names: tuple[str, str],
    handshake_ms: float,
    error: float = 0.0,
    step_ms: tuple[float, float] = (0.0, 0.0),
) -> ModelCosts:
    """Write the cost document of a model, and read it; of each step its options, and what else the document says of it."""
    earlier = preceding(lowered, layouts, block)
    operators = [
        {
            "name": step.name,
            "inputs": [lowered.steps[k].name for k in before],
            "options": [entry for entry, _ in options],
            **more,
        }
        for step, before, (options, more) in zip(lowered.steps, earlier, priced, strict=True)
    ]
    document = {
        "format_version": 1,
        "model": lowered.name or "model",
        "processors": dict(zip(SIDES, names, strict=True)),
        "cpu_to_gpu_ms": handshake_ms,
        "gpu_to_cpu_ms": handshake_ms,
        "cpu_step_ms": step_ms[0],
        "gpu_step_ms": step_ms[1],
        "error": error,
        "operators": operators,
    }
    content = (json.dumps(document, indent=1) + "\n").encode()
    costs = parse_costs(content, f"costs of {document['model']}")
    return ModelCosts(content, costs, block, tuple([place for _, place in options] for options, _ in priced))


def model_costs(
    lowered: Lowered, layouts: Mapping[str, str], predictors: PairPredictors, *, names: tuple[str, str], synchronisation: str
) -> ModelCosts:
    """The costs of a model on a pair."""
    return costs_of(
        lowered,
        layouts,
        predictors.dispatcher.block,
        [_operator(lowered, layouts, step, predictors) for step in lowered.steps],
        names=names,
        handshake_ms=predictors.card.handshake_us[synchronisation] / _US,
    )


def _operator(
    lowered: Lowered, layouts: Mapping[str, str], step: Step, predictors: PairPredictors
) -> tuple[list[Priced], dict[str, Any]]:
    layer, dispatcher = layer_of(step, lowered.shapes), predictors.dispatcher
    if step.kind == "reshape" and _is_view(step, lowered, layouts, dispatcher.block):
        return [whole(0, 0.0), whole(1, 0.0)], {"unsplittable": "a view"}
    lacking = dispatcher.refusal(step, lowered.shapes, layouts)
    why = why_not_split(lowered, layouts, dispatcher.block, step)
    if layer is None or (not lacking and refused(layer, dispatcher)):
        lanes = (0,) if lacking else (0, 1)
        return [whole(k, predictors.other_us(k, step, lowered.shapes) / _US) for k in lanes], {"unsplittable": why}
    error = {"error": predictors.margin(layer.kind)}
    if lacking:
        why = why or f"the {SIDES[1].upper()} has no kernel of it: {lacking}"
        return [whole(0, float(predictors.us(0, [layer])[0]) / _US)], {**error, "unsplittable": why}
    found, outputs = predicted(predictors, layer, GRID), channels_of(lowered, step)
    options = [whole(lane, us / _US) for lane, us in enumerate(found.whole_us)]
    if not why:
        parts_ms = (found.parts_us / _US).tolist()
        options += [split(Split(c), outputs, *both) for c, both in zip(found.channels, parts_ms, strict=True)]
        why = "" if found.channels else f"its {outputs} channels are too few to be split in steps of {GRID}"
    return options, {**error, "unsplittable": why}


def _is_view(step: Step, lowered: Lowered, layouts: Mapping[str, str], block: int) -> bool:
    """Tell whether nothing is moved."""
    return all(same_bytes(lowered.shapes[t], layouts[t], NCHW, block) for t in (step.inputs[0], step.outputs[0]))


def assignments(plan: PartitionPlan, lowered: Lowered) -> tuple[Assignment, ...]:
    """Where each step of a model runs by a plan of it."""
    names = [step.name for step in lowered.steps]
    if [step.name for step in plan.steps] != names:
        raise ModelError("the plan is of other steps than the model has", where=lowered.name, next_step="plan the model again")
    found: list[Assignment] = []
    for step, planned in zip(lowered.steps, plan.steps, strict=True):
        if planned.on == "split":
            dimension = Dimension(planned.dimension)
            found.append(Split(round(planned.cpu_share * extent(lowered, 1, step, dimension).size), dimension))
        else:
            found.append(SIDES.index(planned.on))
    return tuple(found)


#: More splits than these are narrowed down in two passes.
_FIRST_PASS = 24


@dataclass(frozen=True, slots=True)
class Predicted:
    """Predictions of a layer: whole on each lane alone, and of splits the channels of lane 0 and both parts (splits, 2), us."""

    whole_us: tuple[float, float]
    channels: tuple[int, ...]
    parts_us: Floats

    @property
    def spans_us(self) -> Floats:
        """Return the time of the slower part of each split."""
        return np.asarray(self.parts_us.max(axis=1, initial=0.0))


def predicted(predictors: PairPredictors, layer: LayerShape, step: int, variant: str = OURS) -> Predicted:
    """Predict all splits in steps of channels; of many, a coarse pass and then those around the best two of it."""
    every = splits(layer.outputs, step)
    stride = -(-len(every) // _FIRST_PASS) if every else 1
    chosen = every[stride - 1 :: stride] if stride > 1 else every
    first, second = _times(predictors, layer, chosen, variant)
    if stride > 1:
        best = np.argsort(np.maximum(first[1:], second[1:]))[:2]
        near = {at for k in best for at in every if abs(at - chosen[k]) < stride * step} - {*chosen}
        more = tuple(sorted(near))
        further = _times(predictors, layer, more, variant)
        order = np.argsort([*chosen, *more])
        first = np.concatenate([first[:1], np.concatenate([first[1:], further[0][1:]])[order]])
        second = np.concatenate([second[:1], np.concatenate([second[1:], further[1][1:]])[order]])
        chosen = tuple(sorted((*chosen, *more)))
    parts = np.column_stack([first[1:], second[1:]]) * predictors.card.beside.get(layer.kind, 1.0)
    return Predicted((float(first[0]), float(second[0])), chosen, parts)


def split_span_us(predictors: PairPredictors, layer: LayerShape, channels: int) -> float:
    """Predict the time of the slower part of one split, without its handshake."""
    parts = [times[1] for times in _times(predictors, layer, (channels,), OURS)]
    return float(max(parts) * predictors.card.beside.get(layer.kind, 1.0))


def _times(predictors: PairPredictors, layer: LayerShape, channels: Sequence[int], variant: str) -> tuple[Floats, Floats]:
    """Return the times of the whole layer, then of each split, on both lanes."""
    first = predictors.us(0, [layer.part(c) for c in (layer.outputs, *channels)])
    second = predictors.us(1, [layer.part(layer.outputs - c) for c in (0, *channels)], variant)
    return first, second


def choose(found: Predicted, outputs: int, handshake_us: float, margin: float) -> int:
    """Channels of lane 0, 0 or all for one processor: a split costs a handshake, and has to gain more than the margin."""
    whole = min(found.whole_us)
    single = outputs if found.whole_us[0] == whole else 0
    if not found.channels:
        return single
    spans = found.spans_us + handshake_us
    best = int(np.argmin(spans))
    return found.channels[best] if spans[best] < whole * (1 - margin) else single


def at_share(outputs: int, share: float, step: int) -> int:
    """Channels of lane 0 nearest to a share of a layer, in whole steps and with something for both where that can be."""
    every = splits(outputs, step)
    return min(every, key=lambda c: abs(c - share * outputs)) if every else outputs


def fixed_share(predictors: PairPredictors, layers: Sequence[LayerShape], step: int, handshake_us: float) -> float:
    """The one share of lane 0 that is best for training layers: least mean of span over the better single processor."""
    shares = np.linspace(0.05, 0.95, 19)
    split = [layer for layer in layers if splits(layer.outputs, step)]
    if not split:
        return 0.5
    whole = np.minimum(*(predictors.us(lane, split) for lane in (0, 1)))
    means = []
    for share in shares:
        channels = [at_share(layer.outputs, float(share), step) for layer in split]
        first = predictors.us(0, [layer.part(c) for layer, c in zip(split, channels, strict=True)])
        second = predictors.us(1, [layer.part(layer.outputs - c) for layer, c in zip(split, channels, strict=True)])
        spans = np.maximum(first, second) * [predictors.card.beside.get(layer.kind, 1.0) for layer in split] + handshake_us
        means.append(float(np.mean(spans / whole)))
    return float(shares[int(np.argmin(means))])
