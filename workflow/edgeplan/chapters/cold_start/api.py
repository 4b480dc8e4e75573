"""Offers the chapter on cold starts to programs: `edgeplan.plan_cold_start`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from edgeplan.chapters.cold_start.planners.registry import EVICTED, PLANNERS, Options, plan_start, with_warm_kernels
from edgeplan.devices.config import DeviceFile
from edgeplan.errors import ParamsError, require_known
from edgeplan.graph.ir import Graph
from edgeplan.graph.model_file import model_files
from edgeplan.graph.onnx.prepare import Preparation, Shapes, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.graph.steps import Lowered
from edgeplan.planning.document import Plan
from edgeplan.planning.profile import Disk, Profile
from edgeplan.predictors.source import Source, find_predictors
from edgeplan.profiling.disk import glance_at_disk, measure_disk
from edgeplan.profiling.predicted import PreparationCosts, predicted_profiles
from edgeplan.profiling.profiler import LOCK_SECONDS, is_known, profile_model
from edgeplan.profiling.settings import FAST, Cores, ProfileSettings, cores_of, planning_device
from edgeplan.profiling.store import ProfileStore, alternatives, identity
from edgeplan.profiling.subjects import require_exact, signatures, target_of
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES, LIKELY
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.packed_programs import ColdProgram
from edgeplan.runtime.plan_folder import write_linked
from edgeplan.support.files import FilePath, state_folder
from edgeplan.workspace import own_rows, workspace
from edgeplan.writable import require_writable

Costs = Literal["profiled", "predicted"]
OnNoise = Literal["keep", "refuse"]

_LARGEST_MB = 1_000_000  # whatever is above is a mistake
_BYTES_PER_MB = 1e6
_PROBES = 3  # of the disk, for one plan


@dataclass(frozen=True, slots=True)
class Request:
    """A request says how a model is to be planned: the device, costs ("profiled" or "predicted"), planner and layouts.

    Profiled rows lie in `rows`; those of the pipeline in `shared` are read, too. Predicted costs ask for predictors of the
    device.
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
    """Holds a plan with the profiles it was made from, and lines on the machine that predicted costs are of, if another one."""

    plan: Plan
    profiles: tuple[Profile, ...]
    dnnl: Dnnl
    about: tuple[str, ...] = ()


def _plan_model(model: Path, request: Request) -> Planned:
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
    return Planned(plan_start(profiles, request.planner, target, costs=costs, options=options), profiles, dnnl, about)


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


@dataclass(frozen=True)
class ColdStartPlan:
    """Holds a plan of a cold start that was written, and what it was made from.

    Attributes:
        folder: the plan folder that `run` executes.
        plan: the plan document.
        profiles: the costs that it was made from, by layout.
        program: what was built from it.
        limit_bytes: most bytes of weights in the cache; None without a limit.
        about: lines that say which machine predicted costs are of, where it is another one than this.
    """

    folder: Path
    plan: Plan
    profiles: tuple[Profile, ...]
    program: ColdProgram
    limit_bytes: int | None
    about: tuple[str, ...] = ()


def plan_cold_start(
    model: FilePath,
    output: FilePath,
    device: FilePath = "cpu-onednn",
    *,
    costs: Costs = "profiled",
    planner: str = "optimal",
    layouts: Sequence[str] = (),
    continuous: bool = False,
    cache_limit: float | None = None,
    on_noise: OnNoise = "keep",
    budget_seconds: float | None = None,
    rows: FilePath | None = None,
    results: FilePath | None = None,
    preparation: Preparation | None = None,
    shape: Shapes | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  as on the command line
    batch: int | None = None,
) -> ColdStartPlan:
    """Plan the fastest first inference of a model, and write what executes it.

    Args:
        model: ONNX file.
        output: folder to write the plan to.
        device: name of a device file of the engine onednn, or a path to one.
        costs: measure this model, or predict from others.
        planner: a name in `edgeplan.chapters.cold_start.planners.registry.PLANNERS`.
        layouts: home layouts to plan; without, those that may be best, and in a thorough profile all.
        continuous: more inferences follow the first: idle cores prepare the kernels that are fastest when warm.
        cache_limit: most MB of weights in the cache.
        on_noise: on a busy machine keep what is measured and say how noisy it is, or refuse to plan from it.
        budget_seconds: seconds of measuring, beyond which only what must be known is measured; 0: unbounded and thorough.
            Without, 20, or unbounded where noise is refused.
        rows: folder of measured rows; without, one of the user's, outside of any workspace; those of the workspace are read.
        results: folder of the results, with the device's predictors; without, the workspace's, then the shipped ones.
        preparation: as for `predict`. A model that had to be prepared is written beside the plan, as `<output>.onnx`.
        shape: likewise.
        set: likewise.
        batch: likewise.

    Raises:
        ParamsError: an argument is none that there is.
        FormatError: with predicted costs, there are no predictors of that device.
        EdgeplanError: see `_plan_model` and `write_linked`.
    """
    settings = FAST if on_noise == "keep" and budget_seconds != 0 else ProfileSettings()
    changes: dict[str, Any] = {"on_noise": on_noise}
    if budget_seconds is not None:
        changes["budget_seconds"] = budget_seconds
    settings = settings.model_validate({**settings.model_dump(), **changes})
    homes = tuple(layouts) or (HOMES if settings.thorough else LIKELY)
    require_known("layout", homes, HOMES, "--layouts")
    _check_cold_start(costs, planner, cache_limit)
    found = planning_device(device)
    measured = Path(rows or own_rows()) / found.name / "cold"
    shared = Path(rows or workspace().rows) / found.name / "cold_start" / "profiles"
    predictors = None
    if costs == "predicted":
        predictors = find_predictors(str(device), None if results is None else Path(results), engine=found.engine)
    # before minutes of measuring, not after them
    require_writable(Path(output), instead="choose another folder with -o")
    require_writable(state_folder())
    require_writable(measured, instead="choose another folder with --rows")
    request = Request(found, costs, planner, homes, measured, shared, predictors, settings)
    out = Path(output)
    source = prepare_file(Path(model), Preparation.given(preparation, shape, set, batch), out.with_name(f"{out.name}.onnx"))
    planned = _plan_model(source, request)
    made = with_warm_kernels(planned.plan, planned.profiles) if continuous else planned.plan
    limit_bytes = None if cache_limit is None else int(cache_limit * _BYTES_PER_MB)
    linked = write_linked(planned.dnnl, source, made, out, limit_bytes=limit_bytes)
    return ColdStartPlan(out, made, planned.profiles, linked, limit_bytes, planned.about)


def _check_cold_start(costs: str, planner: str, cache_limit: float | None) -> None:

    require_known("kind of costs", [costs], get_args(Costs), "--costs")
    require_known("planner", [planner], PLANNERS, "--planner")
    if cache_limit is not None and not 0 <= cache_limit <= _LARGEST_MB:
        raise ParamsError(
            f"{cache_limit:g} MB is no limit for a cache",
            where="--cache-limit",
            next_step=f"name 0 to {_LARGEST_MB} MB, or leave it out",
        )
