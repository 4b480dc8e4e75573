"""Plans from a model file: profile or predict, then plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from edgeplan.chapters.cold_start.planners.registry import EVICTED, Options, plan
from edgeplan.devices.config import DeviceFile
from edgeplan.graph.ir import Graph
from edgeplan.graph.model_file import model_files
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.graph.steps import Lowered
from edgeplan.planning.document import Plan
from edgeplan.planning.profile import Disk, Profile
from edgeplan.predictors.source import Source
from edgeplan.profiling.disk import glance_at_disk, measure_disk
from edgeplan.profiling.forms import require_exact
from edgeplan.profiling.predicted import predicted_profiles
from edgeplan.profiling.preparation_costs import PreparationCosts
from edgeplan.profiling.profiler import LOCK_SECONDS, is_known, profile_model
from edgeplan.profiling.settings import FAST, Cores, ProfileSettings, cores_of
from edgeplan.profiling.store import ProfileStore, alternatives, identity
from edgeplan.profiling.subjects import signatures
from edgeplan.profiling.target import target_of
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.lowering import lower

_PROBES = 3  # of the disk, for one plan


@dataclass(frozen=True, slots=True)
class Request:
    """A request says how a model is to be planned.

    Attributes:
        device: the device to plan for.
        costs: "profiled" or "predicted".
        planner: a name in `PLANNERS`.
        layouts: home layouts to plan.
        rows: folder of profiled rows.
        shared: folder of the pipeline's, which are read, too.
        predictors: predictors of the device, for predicted costs.
        settings: settings of the profile.
    """

    device: DeviceFile
    costs: str
    planner: str
    layouts: tuple[str, ...]
    rows: Path
    shared: Path
    predictors: Source | None = None
    settings: ProfileSettings = FAST


@dataclass(frozen=True, slots=True)
class Planned:
    """Holds a plan with what it was made from.

    Attributes:
        plan: the plan.
        profiles: the costs.
        dnnl: the library.
        about: lines on the machine that predicted costs are of, where it is another one.
    """

    plan: Plan
    profiles: tuple[Profile, ...]
    dnnl: Dnnl
    about: tuple[str, ...] = ()


def plan_model(model: Path, request: Request) -> Planned:
    """Plan the cold start of a model."""
    graph, _ = read_model(model)
    return _plan(model, graph, request)


def read_model(model: Path) -> tuple[Graph, Lowered]:
    """Read the graph of a model file and its steps; what the runtime cannot compute is refused before any work."""
    graph = simplify(load_onnx(model))
    require_exact(graph, str(model))
    return graph, lower(graph)


def _plan(model: Path, graph: Graph, request: Request) -> Planned:
    cores, dnnl = cores_of(request.device), Dnnl()
    settings, store = _stored(request, dnnl, graph, cores)
    target = target_of(model, dnnl, len(cores.big))
    name, predicted = model.stem, request.costs == "predicted"
    about: tuple[str, ...] = ()
    if predicted:
        source = request.predictors
        assert source is not None  # noqa: S101  predicted costs are asked for with predictors
        profiles, preparation = predicted_profiles(
            dnnl, model, graph,
            cores=cores, name=name, store=store, predictor=source.predictor,
            shipped=PreparationCosts.shipped(request.device.name), layouts=request.layouts,
        )  # fmt: skip
        lines = [source.about()]
        if not (
            source.shipped and preparation.fingerprint and source.processor == preparation.cpu
        ):  # of one machine, said already
            lines.append(preparation.about())
        about = tuple(filter(None, lines))
    else:
        profiles = profile_model(
            dnnl, model, graph, settings,
            cores=cores, name=name, store=store, layouts=request.layouts, lock_timeout_seconds=LOCK_SECONDS,
        )  # fmt: skip
    options = Options(disk=_disk(model, predicted=predicted) if request.planner == EVICTED else None)
    costs = cast("Literal['profiled', 'predicted']", request.costs)
    return Planned(plan(profiles, request.planner, target, costs=costs, options=options), profiles, dnnl, about)


def _stored(request: Request, dnnl: Dnnl, graph: Graph, cores: Cores) -> tuple[ProfileSettings, ProfileStore]:
    """Find the rows to plan from, and the settings of the profile that they are of.

    A profile of this model that is there already is taken, the most thorough one, whatever settings it was measured by; so are
    the rows that predictions are learnt from. Who refuses noise gets rows that were measured so.
    """
    settings, own = request.settings, identity(dnnl.info, request.settings, cores)
    requested = settings, ProfileStore(request.rows, own, request.shared)
    if settings.strict:
        return requested
    stored = [
        (
            settings.model_validate({**settings.model_dump(), "thorough": True, **what["settings"]}),
            ProfileStore(request.rows, what, request.shared),
        )
        for what in alternatives((request.rows, request.shared), own)
    ]
    if request.costs == "predicted":
        return max([requested, *stored], key=lambda found: len(found[1].all_rows()))
    signed = [signatures(dnnl, lower(graph), home) for home in request.layouts]
    whole = (found for found in stored if found[1].constants() and all(is_known(found[1], s) for s in signed))
    return next(whole, requested)


def _disk(model: Path, *, predicted: bool) -> Disk:
    """Measure the disk that weights come from: by a glance alone where nothing may be waited for."""
    files = model_files(model)
    return glance_at_disk(files) if predicted else measure_disk(files, lock_timeout_seconds=LOCK_SECONDS, probes=_PROBES)
