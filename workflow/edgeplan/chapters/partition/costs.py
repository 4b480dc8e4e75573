"""Models to cost documents: what the predictors of a pair say of every step, whole and split."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgeplan.chapters.partition.choosing import predicted
from edgeplan.chapters.partition.layers import LayerShape, layer_of
from edgeplan.chapters.partition.learning.predictors import OURS, PairPredictors, refused
from edgeplan.chapters.partition.names import SIDES
from edgeplan.errors import ModelError
from edgeplan.graph.steps import Lowered, Step
from edgeplan.planning.partition.costs import KINDS, SPLIT, PairCosts
from edgeplan.planning.partition.document import parse_costs
from edgeplan.planning.partition.plan import PartitionPlan
from edgeplan.planning.partition.simulate import whole_queues
from edgeplan.runtime.layouts import NCHW, same_bytes
from edgeplan.runtime.partitioned.program import Assignment, Split, preceding
from edgeplan.runtime.partitioned.sections import Dimension, extent
from edgeplan.runtime.ranges import channels_of, why_not_split

#: Channels between two splits that a plan may choose from.
GRID = 16
_US = 1e3
_DIMENSION = "channels"
_COMPUTE, _BANDWIDTH = "compute", "bandwidth"


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """A model's costs.

    Attributes:
        content: the cost document, JSON in UTF-8.
        costs: the same, read.
        channels: by step and position among its options, channels of lane 0; 0 or all of a whole one.
    """

    content: bytes
    costs: PairCosts
    channels: tuple[tuple[int, ...], ...]


def model_costs(
    lowered: Lowered,
    layouts: Mapping[str, str],
    predictors: PairPredictors,
    *,
    names: tuple[str, str],
    synchronisation: str,
    variant: str = OURS,
) -> ModelCosts:
    """The costs of a model on a pair.

    Args:
        lowered: its steps.
        layouts: layout of every activation.
        predictors: of the pair.
        names: of the processors, as people read them.
        synchronisation: "polling" or "events".
        variant: of the predictors of lane 1.
    """
    handshake_ms = predictors.card.handshake_us[synchronisation] / _US
    operators, channels = [], []
    earlier = preceding(lowered, layouts, predictors.dispatcher.block)
    for step, before in zip(lowered.steps, earlier, strict=True):
        entry, of_options = _operator(lowered, layouts, step, predictors, variant)
        operators.append({"name": step.name, "inputs": [lowered.steps[k].name for k in before], **entry})
        channels.append(of_options)
    document = {
        "format_version": 1,
        "model": lowered.name or "model",
        "processors": dict(zip(SIDES, names, strict=True)),
        "cpu_to_gpu_ms": handshake_ms,
        "gpu_to_cpu_ms": handshake_ms,
        "contention": _contention(predictors),
        "operators": operators,
    }
    content = (json.dumps(document, indent=1) + "\n").encode()
    return ModelCosts(content, parse_costs(content, "costs of the model"), tuple(channels))


def _contention(predictors: PairPredictors) -> list[dict[str, Any]]:
    """Different steps side by side are taken to slow each other as both parts of a split do."""
    factor = max(predictors.card.beside.values(), default=1.0)
    loads = (_COMPUTE, _BANDWIDTH)
    return [{"cpu_load": a, "gpu_load": b, "cpu_factor": factor, "gpu_factor": factor} for a in loads for b in loads]


def _operator(
    lowered: Lowered, layouts: Mapping[str, str], step: Step, predictors: PairPredictors, variant: str
) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Options of a step, and the channels of lane 0 of each."""
    layer, dispatcher = layer_of(step, lowered.shapes), predictors.dispatcher
    if step.kind == "reshape" and _is_view(step, lowered, layouts, dispatcher.block):
        return {"options": [_whole(0, 0.0), _whole(1, 0.0)], "unsplittable": "a view"}, (1, 0)
    lacking = dispatcher.refusal(step, lowered.shapes, layouts)
    why = why_not_split(lowered, layouts, dispatcher.block, step)
    if layer is None or (not lacking and refused(layer, dispatcher)):
        options = [_whole(lane, predictors.other_us(lane, step, lowered.shapes)) for lane in ((0,) if lacking else (0, 1))]
        return {"options": options, "load": _BANDWIDTH, "unsplittable": why}, (1, 0)[: len(options)]
    why = why or (f"the {SIDES[1].upper()} has no kernel of it: {lacking}" if lacking else "")
    return _layer(layer, channels_of(lowered, step), predictors, variant, why=why, on_both=not lacking)


def _whole(lane: int, us: float) -> dict[str, Any]:
    return {"on": SIDES[lane], f"{SIDES[lane]}_ms": us / _US}


def _is_view(step: Step, lowered: Lowered, layouts: Mapping[str, str], block: int) -> bool:
    """Whether nothing is moved."""
    return all(same_bytes(lowered.shapes[t], layouts[t], NCHW, block) for t in (step.inputs[0], step.outputs[0]))


def _layer(
    layer: LayerShape, outputs: int, predictors: PairPredictors, variant: str, *, why: str, on_both: bool
) -> tuple[dict[str, Any], tuple[int, ...]]:
    error = predictors.margin(layer.kind)
    if not on_both:
        options = [_whole(0, float(predictors.us(0, [layer])[0]))]
        return {"options": options, "error": error, "unsplittable": why}, (outputs,)
    found = predicted(predictors, layer, GRID, variant)
    options = [_whole(lane, us) for lane, us in enumerate(found.whole_us)]
    channels = [outputs, 0]
    for c, parts_us in zip(found.channels, found.parts_us.tolist(), strict=True) if not why else ():
        both = _whole(0, parts_us[0]) | _whole(1, parts_us[1])
        options.append({**both, "on": "split", "cpu_share": c / outputs, "dimension": _DIMENSION})
        channels.append(c)
    few = "" if why or found.channels else f"its {outputs} channels are too few to be split in steps of {GRID}"
    return {"options": options, "error": error, "unsplittable": why or few}, tuple(channels)


def assignments(plan: PartitionPlan, lowered: Lowered) -> tuple[Assignment, ...]:
    """Where each step of a model runs by a plan of it.

    Raises:
        ModelError: the plan is of other steps.
    """
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


def orders(plan: PartitionPlan) -> tuple[Sequence[int], Sequence[int]] | None:
    """The order of each processor's steps, where the plan runs different ones side by side."""
    if not plan.cpu and not plan.gpu:
        return None
    return whole_queues([step.start_ms for step in plan.steps], [KINDS.index(step.on) for step in plan.steps])


def chosen_assignments(costs: ModelCosts, choice: Sequence[int]) -> tuple[Assignment, ...]:
    """Where each step runs by a choice of options."""
    found: list[Assignment] = []
    for step, of_options, k in zip(costs.costs.steps, costs.channels, choice, strict=True):
        option = step.options[k]
        found.append(Split(of_options[option.index]) if option.kind == SPLIT else option.kind)
    return tuple(found)
