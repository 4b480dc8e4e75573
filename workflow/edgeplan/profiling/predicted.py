"""Makes profiles without measuring the model: execution from the predictors, preparation from steps of other models.

Execution is what the predictors of the device say about each implementation, plus the conversions around it. Preparation is
fitted over profiled steps of other models, never of the planned one (`preparation_costs.py`); where too few were profiled here,
the shipped fit stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from edgeplan.errors import StoreError
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernel_nodes import node_config, reorder_config
from edgeplan.graph.nodes import NodeConfig
from edgeplan.graph.onnx.write import weight_bytes
from edgeplan.graph.steps import Step
from edgeplan.planning.profile import Profile
from edgeplan.predictors.nodes.predictor import NodePredictor
from edgeplan.profiling.fresh_process_factors import start_signature
from edgeplan.profiling.preparation_costs import STAGES, PreparationCosts
from edgeplan.profiling.profiles import profile_of
from edgeplan.profiling.settings import Cores
from edgeplan.profiling.store import ProfileStore, Row
from edgeplan.profiling.subjects import Group, ProfilingSubject, signatures, subject, touched_pages
from edgeplan.runtime.creation import MOVING_KINDS, Implementation
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES, same_bytes
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import locate_weights


def predicted_profiles(
    dnnl: Dnnl,
    model: Path,
    graph: Graph,
    *,
    cores: Cores,
    name: str,
    store: ProfileStore,
    predictor: NodePredictor,
    shipped: PreparationCosts | None = None,
    layouts: Sequence[str] = HOMES,
) -> tuple[tuple[Profile, ...], PreparationCosts]:
    """Predict a model's profiles, and tell from which costs of preparation.

    Args:
        dnnl: the library.
        model: the model file.
        graph: its graph.
        cores: cores of the device.
        name: name of the model.
        store: profiled rows; those of steps that the model itself has are left out.
        predictor: predictor of the device.
        shipped: costs of preparation to take where too few steps of other models have been profiled.
        layouts: home layouts.
    """
    lowered = lower(graph)
    weights = locate_weights(model, lowered)
    subjects = [subject(dnnl, lowered, home, weights, len(cores.big)) for home in layouts]
    own = {group.digest for found in subjects for group in found.groups}
    own |= {start_signature(signatures(dnnl, lowered, home)) for home in layouts}
    try:
        costs = PreparationCosts.of_store(store, frozenset(own), cores)
    except StoreError:
        if shipped is not None:
            shipped.require_classes(cores)
            costs = shipped
        else:
            costs = PreparationCosts.of_store(store, frozenset(own), cores, disturbed=True)
    execution, constants = _Execution(dnnl, graph, predictor), costs.constants
    return tuple(
        _profile(
            found,
            name,
            execution,
            costs,
            cores,
            touched_pages(dnnl, lowered, found.program.home, constants.page_bytes),
        )
        for found in subjects
    ), costs


def _profile(
    found: ProfilingSubject,
    name: str,
    execution: _Execution,
    costs: PreparationCosts,
    cores: Cores,
    pages: Sequence[int],
) -> Profile:
    constants = costs.constants
    steps = found.program.steps
    rows: dict[str, list[Row]] = {}
    for group in found.groups:
        step = steps[group.steps[0]]
        times_ms = execution.times_ms(found, step, group.implementations)
        rows[group.digest] = [_row(costs, cores, group, position, time) for position, time in enumerate(times_ms)]
    digest = {index: group.digest for group in found.groups for index in group.steps}
    named = [(step, digest[i], pages[i] * constants.touch_ms_per_page) for i, step in enumerate(steps)]
    return profile_of(
        name, found.program.home, named, found.program.shapes, found.program.types, rows, cores,
        costs.start.contention, touch_ms_per_byte=constants.touch_ms_per_byte, start_ms=costs.start_ms(len(steps)),
        once_ms=costs.once_ms, fresh=costs.start.fresh,
    )  # fmt: skip


class _Execution:
    """An execution asks the predictor for one implementation, not the one that an engine would dispatch."""

    def __init__(self, dnnl: Dnnl, graph: Graph, predictor: NodePredictor) -> None:
        self._dnnl, self._graph, self._predictor = dnnl, graph, predictor

    def times_ms(self, found: ProfilingSubject, step: Step, implementations: Sequence[Implementation]) -> list[float]:
        """Predict each implementation's execution on one core, ms, conversions included."""
        if step.kind == "reshape" or not step.members:
            return [0.0] * len(implementations)
        home = found.program.home
        asked: list[tuple[int, NodeConfig]] = []
        for position, choice in enumerate(implementations):
            moving = step.kind in MOVING_KINDS
            reads, writes = (home, home) if moving else (choice.variant.source, choice.variant.output)
            name = f"{step.kind}.{choice.kernel}"
            asked.append((position, node_config(self._graph, step.members, reads, writes, name)))
            if not moving:
                asked += [(position, config) for config in self._conversions(found, step, choice)]
        us = self._predictor.nodes_us([config for _, config in asked], weight_bytes(self._graph))
        total = [0.0] * len(implementations)
        for (position, _), time_us in zip(asked, us.tolist(), strict=True):
            total[position] += time_us / 1e3
        return total

    def _conversions(self, found: ProfilingSubject, step: Step, choice: Implementation) -> Iterable[NodeConfig]:
        program, block = found.program, self._dnnl.info.block
        sides = [(t, program.layouts[t], choice.variant.source) for t in step.reads]
        sides += [(t, choice.variant.output, program.layouts[t]) for t in step.outputs]
        for tensor, before, after in sides:
            shape = program.shapes[tensor]
            if tensor in self._graph.tensors and not same_bytes(shape, before, after, block):
                yield reorder_config(self._graph.tensors[tensor], before, after)


def _row(costs: PreparationCosts, cores: Cores, group: Group, position: int, execute_ms: float) -> Row:
    """Return a row of a candidate that was not measured.

    Args:
        costs: of preparation.
        cores: of the device.
        group: the candidate's steps.
        position: of the candidate.
        execute_ms: predicted on one core; on all cores the speed-up of profiled steps is taken.
    """
    sizes, name = group.sizes[position], group.implementations[position].name
    blank = Row(group.digest, name, position, sizes.raw, sizes.weights, sizes.scratch, {}, 0.0)
    stages = STAGES if sizes.weights else ("create", "create_again")
    samples = {f"{s}:{core}": (costs.stage_ms(s, blank, core),) for s in stages for core in cores.classes}
    wide = costs.wide_factor(name)
    for width in cores.widths:
        time = execute_ms * (wide if width > 1 else 1.0)
        samples |= {f"first:{width}": (time,), f"warm:{width}": (time,)}
    return replace(blank, samples_ms=samples)
