"""Offers the chapter on cold starts to programs: `edgeplan.plan_cold_start`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

from edgeplan.chapters.cold_start.planners.registry import EVICTED, PLANNERS, Options, plan_start, with_warm_kernels
from edgeplan.devices.config import DeviceFile
from edgeplan.errors import ParamsError, require_known
from edgeplan.graph.ir import Graph
from edgeplan.graph.model_file import model_files
from edgeplan.graph.onnx.prepare import OpenParts, Preparation, prepare_file
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


def read_model(model: Path) -> tuple[Graph, Lowered]:
    """Read the graph of a model file and its steps; what the runtime cannot compute is refused before any work."""
    graph = simplify(load_onnx(model))
    require_exact(graph, str(model))
    return graph, lower(graph)


@dataclass(frozen=True, slots=True)
class _Costs:
    """Finds the costs of a model: measured where rows lack them, or predicted where predictors of the device are given.

    Rows lie in `rows`; those of the pipeline in `shared` are read, too.
    """

    device: DeviceFile
    layouts: tuple[str, ...]
    rows: Path
    shared: Path
    predictors: Source | None
    settings: ProfileSettings

    def of(self, model: Path, graph: Graph, dnnl: Dnnl) -> tuple[tuple[Profile, ...], tuple[str, ...]]:
        """Return profiles of a model, and lines on the machine that predicted ones are of, if another one."""
        cores = cores_of(self.device)
        settings, store = self._stored(dnnl, graph, cores)
        if (source := self.predictors) is None:
            return profile_model(
                dnnl, model, graph, settings,
                cores=cores, name=model.stem, store=store, layouts=self.layouts, lock_timeout_seconds=LOCK_SECONDS,
            ), ()  # fmt: skip
        profiles, preparation = predicted_profiles(
            dnnl, model, graph,
            cores=cores, name=model.stem, store=store, predictor=source.predictor,
            shipped=PreparationCosts.shipped(self.device.name), layouts=self.layouts,
        )  # fmt: skip
        said_already = source.shipped and preparation.fingerprint and source.processor == preparation.cpu
        return profiles, tuple(filter(None, (source.about(), "" if said_already else preparation.about())))

    def _stored(self, dnnl: Dnnl, graph: Graph, cores: Cores) -> tuple[ProfileSettings, ProfileStore]:
        """Find the rows to plan from, and the settings of the profile that they are of.

        A profile of this model that is there already is taken, the most thorough one, whatever settings it was measured by; so
        are the rows that predictions are learnt from. Who refuses noise gets rows that were measured so.
        """
        settings, own = self.settings, identity(dnnl.info, self.settings, cores)
        requested = settings, ProfileStore(self.rows, own, self.shared)
        if settings.strict:
            return requested
        stored = [
            (
                settings.model_validate({**settings.model_dump(), "thorough": True, **what["settings"]}),
                ProfileStore(self.rows, what, self.shared),
            )
            for what in alternatives((self.rows, self.shared), own)
        ]
        if self.predictors is not None:
            return max([requested, *stored], key=lambda found: len(found[1].all_rows()))
        signed = [signatures(dnnl, lower(graph), home) for home in self.layouts]
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
        profiles: the costs that it was made from, by layout.
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
    **given: Unpack[OpenParts],
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
        given: what the file leaves open (`OpenParts`). What had to be prepared is written beside the plan, as `<output>.onnx`.

    Raises:
        ParamsError: an argument is none that there is.
        FormatError: with predicted costs, there are no predictors of that device.
        EdgeplanError: see `read_model`, `profile_model` and `write_linked`.
    """
    wanted = Preparation.given(**given)
    settings = FAST if on_noise == "keep" and budget_seconds != 0 else ProfileSettings()
    changes: dict[str, Any] = {"on_noise": on_noise}
    if budget_seconds is not None:
        changes["budget_seconds"] = budget_seconds
    settings = settings.model_validate({**settings.model_dump(), **changes})
    homes = tuple(layouts) or (HOMES if settings.thorough else LIKELY)
    require_known("layout", homes, HOMES, "--layouts")
    require_known("kind of costs", [costs], get_args(Costs), "--costs")
    require_known("planner", [planner], PLANNERS, "--planner")
    if cache_limit is not None and not 0 <= cache_limit <= _LARGEST_MB:
        what, next_step = f"{cache_limit:g} MB is no limit for a cache", f"name 0 to {_LARGEST_MB} MB, or leave it out"
        raise ParamsError(what, where="--cache-limit", next_step=next_step)
    found, out, predicted = planning_device(device), Path(output), costs == "predicted"
    measured = Path(rows or own_rows()) / found.name / "cold"
    shared = Path(rows or workspace().rows) / found.name / "cold_start" / "profiles"
    folder = None if results is None else Path(results)
    predictors = find_predictors(str(device), folder, engine=found.engine) if predicted else None
    # before minutes of measuring, not after them
    require_writable(out, instead="choose another folder with -o")
    require_writable(state_folder())
    require_writable(measured, instead="choose another folder with --rows")
    source = prepare_file(Path(model), wanted, out.with_name(f"{out.name}.onnx"))
    graph, _ = read_model(source)
    dnnl = Dnnl()
    profiles, about = _Costs(found, homes, measured, shared, predictors, settings).of(source, graph, dnnl)
    target = target_of(source, dnnl, len(cores_of(found).big))
    options = Options(disk=_disk(source, predicted=predicted) if planner == EVICTED else None)
    made = plan_start(profiles, planner, target, costs=costs, options=options)
    made = with_warm_kernels(made, profiles) if continuous else made
    limit_bytes = None if cache_limit is None else int(cache_limit * _BYTES_PER_MB)
    linked = write_linked(dnnl, source, made, out, limit_bytes=limit_bytes)
    return ColdStartPlan(out, made, profiles, linked, limit_bytes, about)
