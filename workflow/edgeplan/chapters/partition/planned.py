"""A model planned on a pair, and the folder that holds the plan."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from edgeplan.chapters.partition.costs import ModelCosts, assignments, model_costs, orders
from edgeplan.chapters.partition.learning.predictors import OURS, PairPredictors
from edgeplan.chapters.partition.measuring.opened import Opened
from edgeplan.devices.pairs import PairFile
from edgeplan.errors import FormatError, ModelError
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.steps import Lowered
from edgeplan.planning.partition.parallel import Search
from edgeplan.planning.partition.plan import ABOUT_NAME, PartitionPlan, read_plan, write_plan
from edgeplan.planning.partition.planner import Mode, plan
from edgeplan.profiling.target import model_sha256
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import Partitioned, partition
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation
from edgeplan.runtime.program import activation_layouts
from edgeplan.support.files import read_json, write_atomically, write_json
from edgeplan.support.machine import fingerprint

PLAN_NAME, COSTS_NAME = "plan.json", "costs.json"
_AGAIN = "plan the model again on this machine: edgeplan plan partition MODEL.onnx --pair {pair} -o {folder}"


class About(BaseModel):
    """What a plan is for.

    Attributes:
        format_version: version of this document.
        model: path of the ONNX file.
        model_sha256: of its contents.
        costs_sha256: of the cost document.
        pair: the pair file, as it was.
        machine: fingerprint of the machine.
        versions: of both processors' libraries, by lane.
        synchronisation: how the processors wait for each other.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = 1
    model: str
    model_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    costs_sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    pair: PairFile
    machine: str
    versions: tuple[str, str]
    synchronisation: Synchronisation


@dataclass(frozen=True)
class PlannedModel:
    """A model with its costs and its plan.

    Attributes:
        model: the ONNX file.
        lowered: its steps.
        layouts: layout of every activation.
        costs: of all its options.
        plan: of them.
        seconds: taken to predict and to plan.
    """

    model: Path
    lowered: Lowered
    layouts: Mapping[str, str]
    costs: ModelCosts
    plan: PartitionPlan
    seconds: float

    def partitioned(self, block: int) -> Partitioned:
        """The plan as sub-steps on two lanes."""
        return partition(self.lowered, self.layouts, block, assignments(self.plan, self.lowered), orders(self.plan))


def plan_model(
    model: Path,
    predictors: PairPredictors,
    names: tuple[str, str],
    synchronisation: Synchronisation,
    variant: str = OURS,
    mode: Mode = "sequential",
    search: Search | None = None,
) -> PlannedModel:
    """Plan a model.

    Args:
        model: an ONNX file of static shape.
        predictors: of the pair.
        names: of its processors, as people read them.
        synchronisation: how they wait.
        variant: of the predictors of lane 1.
        mode: one step at a time, or different ones side by side.
        search: how hard to search side by side.

    Raises:
        ModelError: the model cannot be read, or an operator is not supported.
    """
    lowered, layouts = steps_of(model)
    began = time.perf_counter()
    costs = model_costs(lowered, layouts, predictors, names=names, synchronisation=synchronisation.value, variant=variant)
    made = plan(costs.costs, mode, search)
    return PlannedModel(model, lowered, layouts, costs, made, time.perf_counter() - began)


def steps_of(model: Path) -> tuple[Lowered, Mapping[str, str]]:
    """The steps of a model, and the layouts of activations on a pair.

    Raises:
        ModelError: the model cannot be read, or an operator is not supported.
    """
    lowered = lower(load_onnx(model))
    return lowered, activation_layouts(lowered, BLOCKED)


def write_folder(planned: PlannedModel, pair: Opened, folder: Path) -> About:
    """Write the plan, its costs and what both are for.

    Raises:
        StoreError: the folder cannot be written.
        ModelError: the model cannot be read.
    """
    about = About(
        model=str(planned.model.resolve()),
        model_sha256=model_sha256(planned.model),
        costs_sha256=planned.costs.costs.sha256,
        pair=pair.pair,
        machine=fingerprint(),
        versions=pair.versions,
        synchronisation=pair.synchronisation,
    )
    write_atomically(folder / COSTS_NAME, lambda temporary: temporary.write_bytes(planned.costs.content))
    write_plan(planned.plan, folder / PLAN_NAME)
    write_json(folder / ABOUT_NAME, about.model_dump(mode="json"))
    return about


def read_folder(folder: Path) -> tuple[About, PartitionPlan]:
    """The plan of a folder; refused on another machine.

    Raises:
        FormatError: it is damaged, or for another machine.
    """
    about = read_json(folder / ABOUT_NAME, About, "what the plan is for")
    found = read_plan(folder / PLAN_NAME)
    if found.costs_sha256 != about.costs_sha256:
        raise _misfit("its plan is of other costs", folder, about)
    if about.machine != fingerprint():
        raise _misfit(f"machine is {fingerprint()}, the plan is for {about.machine}", folder, about)
    return about, found


def require_own(predictors: PairPredictors, pair: Opened) -> None:
    """Refuse predictors of another machine, library or driver.

    Raises:
        FormatError: names the difference.
    """
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


def check_opened(about: About, pair: Opened, folder: Path) -> None:
    """Refuse other libraries or another way of waiting than the plan is for.

    Raises:
        FormatError: names every difference.
    """
    wrong = [
        f"the library or driver of {side.name} is {there}, the plan is for {planned}"
        for side, there, planned in zip(pair.pair.processors, pair.versions, about.versions, strict=True)
        if there != planned
    ]
    if pair.synchronisation != about.synchronisation:
        wrong.append(f"the processors wait by {pair.synchronisation}, the plan is for {about.synchronisation}")
    if wrong:
        raise _misfit("; ".join(wrong), folder, about)


def model_of(about: About, moved: Path | None, folder: Path) -> Path:
    """The model of a plan, where it lies now.

    Raises:
        ModelError: it is not there, or another one.
    """
    path = moved or Path(about.model)
    if not path.is_file():
        raise ModelError("the model of the plan is not there", where=str(path), next_step="say where it is: --model PATH")
    if model_sha256(path) != about.model_sha256:
        again = _AGAIN.format(pair=about.pair.name, folder=folder)
        raise ModelError("the model has changed since it was planned", where=str(path), next_step=again)
    return path


def session_of(pair: Opened, model: Path, found: PartitionPlan) -> PairSession:
    """A plan ready to run.

    Raises:
        ModelError: the model cannot be read, or the plan is of another one.
        DeviceError: a processor fails.
    """
    lowered, layouts = steps_of(model)
    made = partition(lowered, layouts, pair.block, assignments(found, lowered), orders(found))
    return PairSession(*pair.processors, made, model, pair.synchronisation)


def _misfit(what: str, folder: Path, about: About) -> FormatError:
    again = _AGAIN.format(pair=about.pair.name, folder=folder)
    return FormatError(f"the plan cannot be run: {what}", where=str(folder), next_step=again)
