"""Offers the chapter on cold starts to programs: `edgeplan.plan_cold_start`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from edgeplan.chapters.cold_start.plan import Request, plan_model
from edgeplan.chapters.cold_start.planners.later import with_warm_kernels
from edgeplan.chapters.cold_start.planners.registry import PLANNERS
from edgeplan.errors import ParamsError, require_known
from edgeplan.graph.onnx.prepare import Preparation, Shapes, prepare_file
from edgeplan.planning.document import Plan
from edgeplan.planning.profile import Profile
from edgeplan.predictors.source import find_predictors
from edgeplan.profiling.settings import FAST, ProfileSettings, planning_device
from edgeplan.runtime.cold_program import ColdProgram
from edgeplan.runtime.layouts import HOMES, LIKELY
from edgeplan.runtime.plan_folder import write_linked
from edgeplan.support.files import FilePath, state_folder
from edgeplan.workspace import own_rows, workspace
from edgeplan.writable import require_writable

Costs = Literal["profiled", "predicted"]
OnNoise = Literal["keep", "refuse"]

_LARGEST_MB = 1_000_000  # whatever is above is a mistake
_BYTES_PER_MB = 1e6


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
        EdgeplanError: see `edgeplan.chapters.cold_start.plan.plan_model` and `write_linked`.
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
    planned = plan_model(source, request)
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
