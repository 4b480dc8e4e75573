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
from edgeplan.planning.partition.costs import PairCosts
from edgeplan.planning.partition.document import parse_costs
from edgeplan.planning.partition.plan import PartitionPlan
from edgeplan.runtime.layouts import NCHW, same_bytes
from edgeplan.runtime.partitioned.program import Assignment, Split, preceding
from edgeplan.runtime.partitioned.sections import Dimension, extent
from edgeplan.runtime.ranges import channels_of, why_not_split

#: Channels between two splits that a plan may choose from.
GRID = 16
_US = 1e3
_DIMENSION = "channels"


#: What the cost document says of an operator, and where each of its options runs.
Priced = tuple[dict[str, Any], Sequence[Assignment]]


@dataclass(frozen=True, slots=True)
class ModelCosts:
    """A model's costs are a document and what executes each option of it.

    Attributes:
        content: the cost document, JSON in UTF-8.
        costs: the same, read.
        block: channels of a block of the layout `blocked16`.
        assigned: by step and position among its options, where it runs.
    """

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
    priced: Sequence[Priced],
    *,
    names: tuple[str, str],
    handshake_ms: float,
    error: float = 0.0,
    step_ms: tuple[float, float] = (0.0, 0.0),
) -> ModelCosts:
    """Write the cost document of a model, and read it."""
    earlier = preceding(lowered, layouts, block)
    operators = [
        {"name": step.name, "inputs": [lowered.steps[k].name for k in before], **entry}
        for step, before, (entry, _) in zip(lowered.steps, earlier, priced, strict=True)
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
    return ModelCosts(content, costs, block, tuple(assigned for _, assigned in priced))


def model_costs(
    lowered: Lowered,
    layouts: Mapping[str, str],
    predictors: PairPredictors,
    *,
    names: tuple[str, str],
    synchronisation: str,
    variant: str = OURS,
) -> ModelCosts:
    """The costs of a model on a pair."""
    return costs_of(
        lowered,
        layouts,
        predictors.dispatcher.block,
        [_operator(lowered, layouts, step, predictors, variant) for step in lowered.steps],
        names=names,
        handshake_ms=predictors.card.handshake_us[synchronisation] / _US,
    )


def _operator(lowered: Lowered, layouts: Mapping[str, str], step: Step, predictors: PairPredictors, variant: str) -> Priced:
    layer, dispatcher = layer_of(step, lowered.shapes), predictors.dispatcher
    if step.kind == "reshape" and _is_view(step, lowered, layouts, dispatcher.block):
        return {"options": [_whole(0, 0.0), _whole(1, 0.0)], "unsplittable": "a view"}, (0, 1)
    lacking = dispatcher.refusal(step, lowered.shapes, layouts)
    why = why_not_split(lowered, layouts, dispatcher.block, step)
    if layer is None or (not lacking and refused(layer, dispatcher)):
        options = [_whole(lane, predictors.other_us(lane, step, lowered.shapes)) for lane in ((0,) if lacking else (0, 1))]
        return {"options": options, "unsplittable": why}, (0, 1)[: len(options)]
    why = why or (f"the {SIDES[1].upper()} has no kernel of it: {lacking}" if lacking else "")
    return _layer(layer, channels_of(lowered, step), predictors, variant, why=why, on_both=not lacking)


def _whole(lane: int, us: float) -> dict[str, Any]:
    return {"on": SIDES[lane], f"{SIDES[lane]}_ms": us / _US}


def _is_view(step: Step, lowered: Lowered, layouts: Mapping[str, str], block: int) -> bool:
    """Tell whether nothing is moved."""
    return all(same_bytes(lowered.shapes[t], layouts[t], NCHW, block) for t in (step.inputs[0], step.outputs[0]))


def _layer(layer: LayerShape, outputs: int, predictors: PairPredictors, variant: str, *, why: str, on_both: bool) -> Priced:
    error = predictors.margin(layer.kind)
    if not on_both:
        options = [_whole(0, float(predictors.us(0, [layer])[0]))]
        return {"options": options, "error": error, "unsplittable": why}, (0,)
    found = predicted(predictors, layer, GRID, variant)
    options = [_whole(lane, us) for lane, us in enumerate(found.whole_us)]
    assigned: list[Assignment] = [0, 1]
    for c, parts_us in zip(found.channels, found.parts_us.tolist(), strict=True) if not why else ():
        both = _whole(0, parts_us[0]) | _whole(1, parts_us[1])
        options.append({**both, "on": "split", "cpu_share": c / outputs, "dimension": _DIMENSION})
        assigned.append(Split(c))
    few = "" if why or found.channels else f"its {outputs} channels are too few to be split in steps of {GRID}"
    return {"options": options, "error": error, "unsplittable": why or few}, assigned


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
