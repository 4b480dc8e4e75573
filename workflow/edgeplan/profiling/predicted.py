"""Makes profiles without measuring the model: execution from the predictors, preparation from steps of other models.

Execution is what the predictors of the device say about each implementation, plus the conversions around it. Preparation is
fitted over profiled steps of other models, never of the planned one (`preparation_costs.py`); where too few were profiled here,
the shipped fit stands for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path

import numpy as np

from edgeplan.errors import PredictionError, StoreError
from edgeplan.graph.cost import footprint_bytes
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import KernelConfig, make_kernel
from edgeplan.graph.steps import Step
from edgeplan.planning.profile import Profile
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.kernel_tables import reorder_config
from edgeplan.predictors.latency import Evaluator
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.stand_ins import stand_ins
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
    predictor: DevicePredictor,
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
        rows[group.digest] = [
            _row(costs, cores, group, position, time) for position, time in enumerate(times_ms) if np.isfinite(time)
        ]
        if not rows[group.digest]:
            raise PredictionError(
                f"no implementation of {step.kind} {step.name!r} has a predictor",
                where=f"model {name}, home layout {found.program.home}",
                next_step="train the predictors on kernels of this kind, or plan with --costs profiled",
            )
    digest = {index: group.digest for group in found.groups for index in group.steps}
    named = [(step, digest[i], pages[i] * constants.touch_ms_per_page) for i, step in enumerate(steps)]
    return profile_of(
        name, found.program.home, named, found.program.shapes, found.program.types, rows, cores,
        costs.start.contention, touch_ms_per_byte=constants.touch_ms_per_byte, start_ms=costs.start_ms(len(steps)),
        once_ms=costs.once_ms, fresh=costs.start.fresh,
    )  # fmt: skip


class _Execution:
    """An execution asks the predictors for one implementation, not the one that an engine would dispatch."""

    def __init__(self, dnnl: Dnnl, graph: Graph, predictor: DevicePredictor) -> None:
        card, forest = predictor.card, predictor.packed
        assert forest is not None  # noqa: S101  loaded from a folder
        self._dnnl, self._graph = dnnl, graph
        self._evaluator = Evaluator(card, forest)
        self._code = {name: code for code, name in enumerate(card.implementations)}
        self._states = self._evaluator.states
        self._known: dict[str, list[str]] = {}
        for regressor in card.regressors:
            self._known.setdefault(regressor.kind, []).append(regressor.implementation)

    def _code_of(self, kind: str, name: str) -> int:
        """Return the code of an implementation, or of the one most like it that the kind has a predictor for.

        An implementation is named after the instructions that it uses, which another processor of the same kind may lack, and a
        kind that one implementation alone was seen of has no predictor of the whole kind.
        """
        known = self._known.get(kind, [])
        if not known or "" in known or name in known:
            return self._code.get(name, -1)
        return self._code[max(known, key=lambda other: _alike(name, other))]

    def times_ms(self, found: ProfilingSubject, step: Step, implementations: Sequence[Implementation]) -> list[float]:
        """Predict each implementation's execution on one core, ms, conversions included; NaN without a predictor."""
        if step.kind == "reshape" or not step.members:
            return [0.0] * len(implementations)
        kernel = make_kernel(self._graph, step.members).config
        config = replace(kernel, model_bytes=footprint_bytes(self._graph))
        home = found.program.home
        asked: list[tuple[int, KernelConfig, str, str]] = []
        for position, choice in enumerate(implementations):
            moving = step.kind in MOVING_KINDS
            reads = home if moving else choice.variant.source
            asked.append((position, config, f"{step.kind}.{choice.kernel}", reads))
            if not moving:
                asked += [(position, *c) for c in self._conversions(found, step, choice)]
        table = stand_ins(ConfigTable.of(c for _, c, _, _ in asked), self._evaluator.kinds).table
        kinds = (table.word("kind", row) for row in range(len(asked)))
        named = zip(kinds, (name for _, _, name, _ in asked), strict=True)
        codes = np.array([self._code_of(kind, name) for kind, name in named], dtype=np.int64)
        states = np.array([self._states.get(state, 0) for _, _, _, state in asked], dtype=np.int64)
        latency_us, _ = self._evaluator.latency(table, codes, states)
        if (fit := self._evaluator.card.bandwidth) is not None:
            for integers in (False, True):
                moved_us = fit.latency_us(table, integers=integers)
                latency_us = np.where(np.isnan(latency_us), moved_us, latency_us)
        total = [0.0] * len(implementations)
        for (position, _, _, _), time_us in zip(asked, latency_us.tolist(), strict=True):
            total[position] += time_us / 1e3
        return total

    def _conversions(
        self, found: ProfilingSubject, step: Step, choice: Implementation
    ) -> Iterable[tuple[KernelConfig, str, str]]:
        program, block = found.program, self._dnnl.info.block
        sides = [(t, program.layouts[t], choice.variant.source) for t in step.reads]
        sides += [(t, choice.variant.output, program.layouts[t]) for t in step.outputs]
        for tensor, before, after in sides:
            shape = program.shapes[tensor]
            if tensor in self._graph.tensors and not same_bytes(shape, before, after, block):
                yield reorder_config(self._graph.tensors[tensor]), f"{before}>{after}", before


def _alike(one: str, other: str) -> int:
    """Count the characters that two names begin with alike."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


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
