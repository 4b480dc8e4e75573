"""A model planned on a pair, and the folder that holds the plan."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import onnx
from msgspec.structs import replace

from edgeplan.chapters.partition.costs import ModelCosts, assignments, model_costs
from edgeplan.chapters.partition.learning.predictors import PairPredictors
from edgeplan.chapters.partition.measuring.opened import Opened, specs_of
from edgeplan.engines.serving import installed_version
from edgeplan.errors import FormatError
from edgeplan.graph.ir import Graph
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.read import from_onnx, load_onnx
from edgeplan.graph.onnx.write import seeded
from edgeplan.graph.shapes import FLOAT32
from edgeplan.graph.steps import Lowered
from edgeplan.measurement.process.inputs import job_inputs
from edgeplan.measurement.process.stock import prepared
from edgeplan.planning.partition.planner import PartitionPlan, plan
from edgeplan.runtime.folder import (
    ENGINE,
    ENGINE_FILES,
    PARTITION,
    PROGRAM_NAME,
    WEIGHTS_NAME,
    EnginePlan,
    MadeFor,
    encoded,
    replacing,
    write_plan,
)
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.build import PairCheck, PairPrediction, PairSchedule, build_pair
from edgeplan.runtime.partitioned.program import Assignment, Partitioned, partition
from edgeplan.runtime.program import activation_layouts
from edgeplan.runtime.program_file import Border
from edgeplan.runtime.streaming.weights_file import write_weights
from edgeplan.support.machine import fingerprint
from edgeplan.workloads.registry import Workload

#: What a partition document predicts: the rest is the schedule.
_PREDICTED = ("makespan_ms", "lower_bound_ms", "better_single", "better_single_ms", "admitted_splits", "planning_ms")


@dataclass(frozen=True)
class PlannedModel:
    """A model with its costs and its plan.

    Attributes:
        seconds: taken to predict and to plan.
        alone: cores of the first processor where it runs all steps; none: the pair's own, and both processors.
        check: what executing the plan beside other ways told; None where it was not executed.
        engine: setting of the stock engine that answers in its place, since it is faster; "": none.
    """

    model: Path
    lowered: Lowered
    layouts: Mapping[str, str]
    costs: ModelCosts
    plan: PartitionPlan
    seconds: float
    alone: tuple[int, ...] = ()
    check: PairCheck | None = None
    engine: str = ""

    def partitioned(self, block: int, assigned: Sequence[Assignment] = ()) -> Partitioned:
        """The plan, or other places of its steps, as sub-steps on two lanes."""
        return partition(self.lowered, self.layouts, block, assigned or assignments(self.plan, self.lowered))


def plan_model(model: Path, predictors: PairPredictors, names: tuple[str, str], synchronisation: str) -> PlannedModel:
    """Plan a model on a pair."""
    return plan_steps(model, lower(load_onnx(model), eight_bits=False), predictors, names, synchronisation)


def plan_steps(
    model: Path, lowered: Lowered, predictors: PairPredictors, names: tuple[str, str], synchronisation: str
) -> PlannedModel:
    """Plan the steps of a model on a pair; the file is only named."""
    layouts, began = activation_layouts(lowered, BLOCKED), time.perf_counter()
    costs = model_costs(lowered, layouts, predictors, names=names, synchronisation=synchronisation)
    made = plan(costs.costs)
    return PlannedModel(model, lowered, layouts, costs, made, time.perf_counter() - began)


def lowered_workload(workload: Workload) -> Lowered:
    """The steps of a model as `plan_model` reads them from its file, with no weights drawn and nothing written."""
    drawn = seeded(workload) if isinstance(workload, Graph) else workload.seeded()
    for tensor in drawn.model.graph.initializer:
        if tensor.name in drawn.draws:  # as if its values lay beside the model, where nobody looks
            tensor.data_location = onnx.TensorProto.EXTERNAL
            tensor.external_data.add(key="location", value="weights")
    return lower(from_onnx(drawn.model))


def write_folder(planned: PlannedModel, pair: Opened, folder: Path) -> None:
    """Write the plan, its program and its weights, or what a stock engine is told, which has to be installed."""
    if planned.engine:
        _write_for_engine(planned, folder)
        return
    host, names = pair.host, (PROGRAM_NAME, WEIGHTS_NAME)
    threads, specs = len(planned.alone) or host.threads, specs_of(pair.pair)
    driver, waits = pair.other.capabilities.version, str(pair.synchronisation)
    if planned.alone:
        driver = waits = ""
        specs = (replace(specs[0], cores=planned.alone),)
    made_for = MadeFor(
        str(planned.model.resolve()), model_sha256(planned.model), fingerprint(),
        host.dnnl.info.version, host.dnnl.info.isa, threads, driver,
    )  # fmt: skip
    built, placed = build_pair(host.dnnl, planned.partitioned(pair.block), threads)
    document = planned.plan.model_dump(mode="json")
    predicted = {name: document.pop(name) for name in _PREDICTED}
    schedule = PairSchedule(pair.pair.name, specs, waits, placed, document)
    prediction = PairPrediction(predicted, msgspec.Raw(planned.costs.content), planned.check)
    with replacing(folder) as building:
        write_weights(host.dnnl, planned.model, planned.lowered, built, building / WEIGHTS_NAME)
        (building / PROGRAM_NAME).write_bytes(encoded(built.program))
        write_plan(building, PARTITION, made_for, schedule, prediction, names)


def _write_for_engine(planned: PlannedModel, folder: Path) -> None:
    """Write the folder of a plan that a stock engine answers, with what it makes of the model beforehand."""
    lowered, version, threads = planned.lowered, installed_version(planned.engine), len(planned.alone)
    inputs, outputs = (
        tuple(Border(n, lowered.shapes[n], 0, lowered.types.get(n, FLOAT32), limits.get(n, 2)) for n in names)
        for names, limits in ((lowered.inputs, lowered.limits), (lowered.outputs, {}))
    )
    made_for = MadeFor(str(planned.model.resolve()), model_sha256(planned.model), fingerprint(), version, "", threads)
    with replacing(folder) as building:
        (building / ENGINE_FILES).mkdir()
        artefact = prepared(planned.engine, planned.model, job_inputs(inputs), building / ENGINE_FILES, threads)
        made = [path.relative_to(building).as_posix() for path in sorted((building / ENGINE_FILES).iterdir())]
        main = "" if artefact.main == planned.model else artefact.main.relative_to(building).as_posix()
        companions = {role: path.relative_to(building).as_posix() for role, path in artefact.companions.items()}
        told = EnginePlan(planned.engine, planned.alone, inputs, outputs, main, companions, artefact.outputs)
        write_plan(building, ENGINE, made_for, told, planned.check, made)


def require_own(predictors: PairPredictors, pair: Opened) -> None:
    """Refuse predictors of another machine, library or driver."""
    card = predictors.card
    there = {"machine": (fingerprint(), card.fingerprint), "library or driver": (pair.versions, card.versions)}
    wrong = [what for what, (own, theirs) in there.items() if own != theirs]
    if pair.synchronisation not in card.handshake_us:
        wrong.append(f"way of waiting ({pair.synchronisation})")
    if wrong:
        raise FormatError(
            f"the predictors of pair {card.pair!r} are of another {wrong[0]}",
            where="the predictors of the pair",
            next_step=f"measure the pair here: dvc repro partition@{card.pair}, or give times: --costs costs.json",
        )
