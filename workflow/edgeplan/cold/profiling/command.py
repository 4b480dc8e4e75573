"""From a model file to a plan: profile or predict, then plan."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, cast

from edgeplan.cold.baselines.base import model_files
from edgeplan.cold.profiling.disk import measure_disk
from edgeplan.cold.profiling.forms import require_exact, require_exact_steps
from edgeplan.cold.profiling.predicted import predicted_profiles
from edgeplan.cold.profiling.profiler import profile_model
from edgeplan.cold.profiling.reprofile import Reprofiler
from edgeplan.cold.profiling.settings import Cores, ProfileSettings, cores_of
from edgeplan.cold.profiling.store import ProfileStore, identity
from edgeplan.cold.profiling.target import target_of
from edgeplan.devices.config import DeviceFile
from edgeplan.devices.engines.base import random_inputs
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx_import import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.planning.cold_start.plan import Plan
from edgeplan.planning.cold_start.planner import EVICTED, Options, plan
from edgeplan.planning.cold_start.profile import Profile
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import locate_weights


@dataclass(frozen=True, slots=True)
class Request:
    """How a model is to be planned.

    Attributes:
        device: where.
        costs: "profiled" or "predicted".
        planner: a name in `PLANNERS`.
        layouts: home layouts to plan.
        rows: folder of profiled rows.
        shared: folder of the pipeline's, which are read, too.
        predictors: folder of the device's predictors.
        reprofile: whether the planner nnv12 measures again what it tries.
        settings: of the profile.
    """

    device: DeviceFile
    costs: str
    planner: str
    layouts: tuple[str, ...]
    rows: Path
    shared: Path
    predictors: Path
    reprofile: bool = False
    settings: ProfileSettings = field(default_factory=ProfileSettings)


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan with what it was made from."""

    plan: Plan
    profiles: tuple[Profile, ...]
    dnnl: Dnnl


def plan_model(model: Path, request: Request) -> Planned:
    """Plan the cold start of a model.

    Raises:
        ModelError: the file cannot be read, or holds operators that the runtime lacks or forms of them that it would
            compute wrongly; nothing is measured then.
        DeviceError: oneDNN is not installed, or the device's cores do not exist.
        EdgeplanError: see `profile_model`, `predicted_profiles` and `planner.plan`.
    """
    graph = simplify(load_onnx(model))
    require_exact(graph, str(model))
    require_exact_steps(lower(graph), str(model))  # operators that the runtime lacks are named before any work
    cores, settings = cores_of(request.device), request.settings
    dnnl = Dnnl()
    store = ProfileStore(request.rows, identity(dnnl.info, settings, cores), request.shared)
    name = model.stem
    if request.costs == "predicted":
        profiles = predicted_profiles(
            dnnl, model, graph, settings,
            cores=cores, name=name, store=store, predictors=request.predictors, layouts=request.layouts,
        )  # fmt: skip
    else:
        profiles = profile_model(dnnl, model, graph, settings, cores=cores, name=name, store=store, layouts=request.layouts)
    target = target_of(model, dnnl, len(cores.big))
    with ExitStack() as stack:
        options = Options(disk=measure_disk(model_files(model)) if request.planner == EVICTED else None)
        if request.reprofile:
            options = replace(options, reprofile=stack.enter_context(_reprofiler(dnnl, model, graph, settings, cores, store)))
        costs = cast("Literal['profiled', 'predicted']", request.costs)
        return Planned(plan(profiles, request.planner, target, costs=costs, options=options), profiles, dnnl)


def _reprofiler(
    dnnl: Dnnl, model: Path, graph: Graph, settings: ProfileSettings, cores: Cores, store: ProfileStore
) -> Reprofiler:
    lowered = lower(graph)
    weights, inputs = locate_weights(model, lowered), random_inputs(graph)
    return Reprofiler(dnnl, model, lowered, weights, inputs, settings=settings, cores=cores, store=store)
