"""The library's own interface: what the command line does, as functions with typed results (docs/api.md).

`import edgeplan` hands these out on first use; each imports what it needs when it is called.
"""

# ruff: noqa: PLC0415  imported when called: `import edgeplan` and `edgeplan --help` should not wait for numpy and onnx

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgeplan.errors import DeviceError, ModelError, ParamsError, StoreError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from edgeplan.chapters.memory.plan import MemoryPlanned
    from edgeplan.chapters.partition.planned import PlannedModel
    from edgeplan.chapters.prediction.comparison import Measured
    from edgeplan.chapters.prediction.model_prediction import Prediction
    from edgeplan.devices.config import DeviceFile
    from edgeplan.graph.onnx.prepare import Preparation
    from edgeplan.planning.document import Plan
    from edgeplan.planning.profile import Profile
    from edgeplan.runtime.linked import LinkedProgram

    Array = npt.NDArray[np.float32]

__all__ = [
    "ColdStartPlan",
    "Prepared",
    "export",
    "measure",
    "plan_cold_start",
    "plan_memory",
    "plan_partition",
    "predict",
    "prepare",
]

log = logging.getLogger(__name__)
_Path = str | PathLike[str]
Shapes = Mapping[str, Sequence[int]]
_LARGEST_MB = 1_000_000  # whatever is above is a mistake
_BYTES_PER_MB = 1e6
_NEAR = 5  # names that are offered in place of a wrong one


@dataclass(frozen=True)
class ColdStartPlan:
    """A plan that was written.

    Attributes:
        folder: what `run` executes.
        plan: the plan document.
        profiles: the costs that it was made from, by layout.
        program: what was built from it.
        limit_bytes: most bytes of weights in the cache; None without a limit.
        about: lines that say which machine predicted costs are of, where it is another one than this.
    """

    folder: Path
    plan: Plan
    profiles: tuple[Profile, ...]
    program: LinkedProgram
    limit_bytes: int | None
    about: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """A model of static shape, as a file.

    Attributes:
        path: the file: the one that was written, or the given one where it was static as it was.
        inputs: shapes by name.
        operators: number of operators.
        difference: largest difference of outputs from the original's, relative to the largest magnitude of each output; None
            unless it was asked for and a file was written.
    """

    path: Path
    inputs: Mapping[str, tuple[int, ...]]
    operators: int
    difference: float | None = None


def _left_open(
    preparation: Preparation | None, shape: Shapes | None, values: Mapping[str, Any] | None, batch: int | None
) -> Preparation:
    """Collect what a file leaves open, given whole or by the names of the command line's options.

    Raises:
        ParamsError: it is given both ways, or a shape holds no sizes.
        ModelError: a size is below 1.
    """
    from edgeplan.graph.onnx.prepare import Preparation

    if preparation is None:
        try:
            sizes = {name: tuple(map(int, given)) for name, given in (shape or {}).items()}
        except (TypeError, ValueError) as error:
            how = "give sizes by input, as in {'x': (1, 3, 224, 224)}"
            raise ParamsError(f"{shape!r} holds no sizes", where="shape", next_step=how) from error
        return Preparation(sizes, {name: _text(value) for name, value in (values or {}).items()}, batch)
    if shape or values or batch is not None:
        what = "shapes, values and the batch are given twice"
        raise ParamsError(what, where="preparation", next_step="leave out preparation, or shape, set and batch")
    return preparation


def _text(value: Any) -> str:
    """Write a value, or a sequence of them, as the command line's --set takes it."""
    if isinstance(value, str):
        return value
    tolist = getattr(value, "tolist", None)  # of an array
    plain = value if tolist is None else tolist()
    return ",".join(map(str, plain)) if isinstance(plain, (list, tuple)) else str(plain)


def export(name: str, output: _Path | None = None) -> Path:
    """Write a published model with the weights of seed 0 as ONNX.

    Args:
        name: one of `edgeplan.workloads.models.named_models()`.
        output: file to write; `<name>.onnx` without.

    Raises:
        ModelError: there is no model of that name.
        StoreError: the file cannot be written; one that was there before is kept.
    """
    from difflib import get_close_matches

    from edgeplan.workloads.models import named_models

    known = named_models()
    if name not in known:
        near = get_close_matches(name, known, _NEAR)
        raise ModelError(
            f"there is no model {name!r} to export",
            where="edgeplan export",
            next_step=f"edgeplan export --list shows all{'; near: ' + ', '.join(near) if near else ''}",
        )
    path = Path(output or f"{name}.onnx")
    if path.is_dir():
        next_step = f"name a file: -o {path / (name + '.onnx')}"
        raise StoreError("cannot write: this is a folder", where=str(path), next_step=next_step)
    return known[name]().save(path)


def prepare(
    model: _Path,
    output: _Path,
    *,
    preparation: Preparation | None = None,
    shape: Shapes | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  as on the command line
    batch: int | None = None,
    check: bool = False,
) -> Prepared:
    """Write a model of static shape that computes the same.

    Args:
        model: ONNX file as it was exported.
        output: ONNX file to write; nothing is written where the model is static as it is.
        preparation: as for `predict`.
        shape: likewise.
        set: likewise.
        batch: likewise.
        check: compare outputs with the original's on ONNX Runtime.

    Raises:
        ModelError: the file cannot be read, or what it leaves open is not given.
        CheckError: outputs differ by more than rounding.
        StoreError: the file cannot be written; one that was there before is kept.
    """
    from edgeplan.graph.onnx.compare import largest_difference
    from edgeplan.graph.onnx.prepare import prepare_file
    from edgeplan.graph.onnx.read import load_onnx

    source, target = Path(model), Path(output)
    if target.exists() and target.resolve() == source.resolve():
        raise ModelError("a model is not written over itself", where=str(target), next_step="name another file with -o")
    wanted = _left_open(preparation, shape, set, batch)
    made = prepare_file(source, wanted, target)
    difference = largest_difference(source, made, wanted) if check and made != source else None
    graph = load_onnx(made)
    return Prepared(made, {name: graph.shape(name) for name in graph.inputs}, len(graph.operators), difference)


def predict(
    model: _Path,
    device: _Path = "cpu-onnxruntime",
    *,
    results: _Path | None = None,
    partial: bool = False,
    preparation: Preparation | None = None,
    shape: Shapes | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  as on the command line
    batch: int | None = None,
) -> Prediction:
    """Predict the latency of a model on a device that was measured.

    Args:
        model: ONNX file.
        device: name of the device, or path of its file.
        results: folder of the results, with the device's predictors; without, the workspace's, then the shipped ones.
        partial: predict what can be, where kernels have no predictor.
        preparation: what the file leaves open; or, in its place, the three that follow.
        shape: sizes of inputs with open axes, by name.
        set: values of inputs that steer the graph, by name: numbers, truth values, or sequences of them.
        batch: size of the open axis of examples.

    Raises:
        ModelError: the file cannot be read or holds what is not known.
        PredictionError: a kernel has no predictor, unless `partial`.
        FormatError, DeviceError: there are no predictors of that device.
    """
    from edgeplan.chapters.prediction.model_prediction import predict_graph
    from edgeplan.graph.onnx.prepare import load_prepared
    from edgeplan.graph.simplify import simplify
    from edgeplan.predictors.source import find_predictors

    source = find_predictors(str(device), None if results is None else Path(results))
    path = Path(model)
    return predict_graph(
        simplify(load_prepared(path, _left_open(preparation, shape, set, batch))), path.name, source, partial=partial
    )[0]


def measure(
    model: _Path,
    device: _Path = "cpu-onnxruntime",
    *,
    seconds: float = 20.0,
    results: _Path | None = None,
    rows: _Path | None = None,
    preparation: Preparation | None = None,
    shape: Shapes | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  as on the command line
    batch: int | None = None,
) -> Measured:
    """Measure a model on this machine, and predict it where the device has predictors.

    Noise never ends it: the answer says how noisy it is.

    Args:
        model: ONNX file.
        device: name of a device file, or a path to one.
        seconds: about how long to measure.
        results: folder of the results, with predictors; without, the workspace's, then the shipped ones.
        rows: folder of measured rows: how fast this machine is when it is quiet; without, that of the workspace.
        preparation: as for `predict`.
        shape: likewise.
        set: likewise.
        batch: likewise.

    Raises:
        ModelError: the file cannot be read, or the engine cannot load it.
        DeviceError: unknown device, engine not installed, or cores that may not be used.
        BusyError: another process is measuring.
    """
    from edgeplan.chapters.prediction.comparison import measure_model
    from edgeplan.graph.onnx.prepare import prepare_file
    from edgeplan.support.scratch import ScratchFolder
    from edgeplan.workspace import workspace

    path = Path(model)
    with ScratchFolder("prepared") as folder:
        return measure_model(
            prepare_file(path, _left_open(preparation, shape, set, batch), Path(folder) / path.name),
            Path(device) if isinstance(device, PathLike) else device,
            seconds=seconds,
            results=None if results is None else Path(results),
            rows=workspace().rows if rows is None else Path(rows),
        )


def plan_cold_start(
    model: _Path,
    output: _Path,
    device: _Path = "cpu-onednn",
    *,
    costs: Literal["profiled", "predicted"] = "profiled",
    planner: str = "optimal",
    layouts: Sequence[str] = (),
    continuous: bool = False,
    reprofile: bool = False,
    cache_limit: float | None = None,
    on_noise: Literal["keep", "refuse"] = "keep",
    budget_seconds: float | None = None,
    rows: _Path | None = None,
    results: _Path | None = None,
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
        reprofile: planner nnv12: measure what it tries again while it plans.
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
        EdgeplanError: see `edgeplan.chapters.cold_start.plan.plan_model` and `build_plan_folder`.
    """
    from edgeplan.chapters.cold_start.plan import Request, plan_model
    from edgeplan.chapters.cold_start.planners.later import with_warm_kernels
    from edgeplan.graph.onnx.prepare import prepare_file
    from edgeplan.profiling.settings import FAST, ProfileSettings
    from edgeplan.runtime.folder import PROGRAM_NAME
    from edgeplan.runtime.layouts import HOMES, LIKELY
    from edgeplan.runtime.linked_file import read_linked
    from edgeplan.runtime.plan_folder import build_plan_folder
    from edgeplan.support.files import state_folder
    from edgeplan.workspace import own_rows, workspace
    from edgeplan.writable import require_writable

    settings = FAST if on_noise == "keep" and budget_seconds != 0 else ProfileSettings()
    changes: dict[str, Any] = {"on_noise": on_noise}
    if budget_seconds is not None:
        changes["budget_seconds"] = budget_seconds
    settings = settings.model_validate({**settings.model_dump(), **changes})
    homes = tuple(layouts) or (HOMES if settings.thorough else LIKELY)
    if unknown := [home for home in homes if home not in HOMES]:
        raise ParamsError(f"there is no layout {unknown[0]!r}", where="--layouts", next_step=f"choose from {', '.join(HOMES)}")
    _check_cold_start(costs, planner, cache_limit, reprofile=reprofile)
    found = _planned_on(device)
    measured = Path(rows or own_rows()) / found.name / "cold"
    shared = Path(rows or workspace().rows) / found.name / "cold_start" / "profiles"
    predictors = None
    if costs == "predicted":
        from edgeplan.predictors.source import find_predictors

        predictors = find_predictors(str(device), None if results is None else Path(results), engine=found.engine)
    # before minutes of measuring, not after them
    require_writable(Path(output), instead="choose another folder with -o")
    require_writable(state_folder())
    require_writable(measured, instead="choose another folder with --rows")
    request = Request(found, costs, planner, homes, measured, shared, predictors, reprofile, settings)
    out = Path(output)
    source = prepare_file(Path(model), _left_open(preparation, shape, set, batch), out.with_name(f"{out.name}.onnx"))
    planned = plan_model(source, request)
    made = with_warm_kernels(planned.plan, planned.profiles) if continuous else planned.plan
    limit_bytes = None if cache_limit is None else int(cache_limit * _BYTES_PER_MB)
    folder = build_plan_folder(planned.dnnl, source, made, out, limit_bytes=limit_bytes)
    return ColdStartPlan(folder, made, planned.profiles, read_linked(folder / PROGRAM_NAME), limit_bytes, planned.about)


def _planned_on(device: _Path) -> DeviceFile:
    """Read the file of a device that executes plans.

    Raises:
        DeviceError: there is none, its engine executes no plans, or is not installed.
    """
    from edgeplan.devices.config import load_device
    from edgeplan.runtime.library import require_installed

    found = load_device(Path(device) if isinstance(device, PathLike) else device)
    if found.engine != "onednn":
        raise DeviceError(
            f"device {found.name!r} runs {found.engine}, which executes no plans",
            where="--device",
            next_step="take a device of the engine onednn, e.g. cpu-onednn",
        )
    require_installed()
    return found


def _check_cold_start(costs: str, planner: str, cache_limit: float | None, *, reprofile: bool) -> None:
    from edgeplan.chapters.cold_start.planners.registry import PLANNERS

    if costs not in ("profiled", "predicted"):
        raise ParamsError(f"there are no {costs!r} costs", where="--costs", next_step="choose profiled or predicted")
    if planner not in PLANNERS:
        raise ParamsError(
            f"there is no planner {planner!r}", where="--planner", next_step=f"choose one of {', '.join(PLANNERS)}"
        )
    if reprofile and planner != "nnv12":
        raise ParamsError(
            f"the planner {planner!r} does not profile again while it plans",
            where="--reprofile",
            next_step="leave the option out, or add --planner nnv12",
        )
    if reprofile and costs == "predicted":
        raise ParamsError(
            "predicted costs are measured neither before nor while planning",
            where="--reprofile",
            next_step="leave the option out, or plan from measured costs: --costs profiled",
        )
    if cache_limit is not None and not 0 <= cache_limit <= _LARGEST_MB:
        raise ParamsError(
            f"{cache_limit:g} MB is no limit for a cache",
            where="--cache-limit",
            next_step=f"name 0 to {_LARGEST_MB} MB, or leave it out",
        )


def plan_memory(
    model: _Path,
    output: _Path,
    budget: str | int = "",
    *,
    device: _Path = "cpu-onednn",
    max_slowdown: str = "",
    threads: int = 0,
    mode: Literal["isolated", "back-to-back"] = "back-to-back",
    total: bool = False,
    curve: _Path | None = None,
    memory_map: _Path | None = None,
    preparation: Preparation | None = None,
    shape: Shapes | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  as on the command line
    batch: int | None = None,
) -> MemoryPlanned:
    """Plan how a model runs within a budget of memory, and write what executes it.

    Args:
        model: ONNX file.
        output: folder to write the plan to; on the disk that weights are to be read from.
        budget: bytes over the idle process as a number, "64MB" or "64MiB", or a share of what ONNX Runtime takes as "10%".
        device: name of a device file of the engine onednn, or a path to one.
        max_slowdown: instead of a budget: the least one whose plan is at most so much slower, as "5%".
        threads: that compute; 0: all processors of the device but one.
        mode: memory is filled before each inference, or inferences follow each other.
        total: the budget, which has to be given then, is for the whole process.
        curve: file to draw latency against budget to, as SVG.
        memory_map: file to draw what the arena holds in each step to, as SVG.
        preparation: as for `predict`. A model that had to be prepared is written beside the plan, as `<output>.onnx`.
        shape: likewise.
        set: likewise.
        batch: likewise.

    Raises:
        ParamsError: an argument is none that there is.
        InfeasibleError: it does not fit; the message says what is the least.
        EdgeplanError: see `edgeplan.chapters.memory.plan.Planner`.
    """
    from edgeplan.chapters.memory.budget import Budget, require_free
    from edgeplan.chapters.memory.plan import planning
    from edgeplan.graph.onnx.prepare import prepare_file
    from edgeplan.measurement.process.stock import peak_bytes
    from edgeplan.planning.memory.quick import Mode
    from edgeplan.profiling.settings import cores_of
    from edgeplan.runtime.folder import require_replaceable
    from edgeplan.writable import require_writable

    slowdown = Budget.parsed(max_slowdown, "--max-slowdown", most_share=100.0).share if max_slowdown else 0.0
    if max_slowdown and not slowdown:
        raise ParamsError(f"{max_slowdown!r} is no share", where="--max-slowdown", next_step="give per cent, as in 5%")
    if total and not budget:
        what = "only a budget that is given can be for the whole process"
        raise ParamsError(what, where="--total", next_step="leave it out, or give --budget in place of --max-slowdown")
    wanted = Budget.parsed(str(budget)) if budget else None
    if wanted is not None:
        require_free(wanted, "--budget")
    if mode not in tuple(Mode):
        raise ParamsError(f"there is no mode {mode!r}", where="--mode", next_step=f"choose {' or '.join(Mode)}")
    found = _planned_on(device)
    processors = cores_of(found).all
    out = Path(output)
    require_writable(out, instead="choose another folder with -o")
    require_replaceable(out)
    source = prepare_file(Path(model), _left_open(preparation, shape, set, batch), out.with_name(f"{out.name}.onnx"))
    with planning(source, threads or max(1, len(processors) - 1), processors, out) as planner:
        if wanted is None:
            size = planner.least_for(slowdown, Mode(mode))
        elif wanted.share:
            size = int(wanted.share * peak_bytes(source, planner.cores.compute))
            require_free(Budget(size), "--budget")
        else:
            size = wanted.size
        planner.beside_bytes = planner.idle_bytes if total and wanted is not None else 0
        made = planner.write(size - planner.beside_bytes, Mode(mode), out, found=wanted is None)
        if curve is not None:
            from edgeplan.chapters.memory.pictures import write_curve

            write_curve(planner.curve(Mode(mode)), source.stem, Path(curve))
        if memory_map is not None:
            from edgeplan.chapters.memory.pictures import write_map

            write_map(made.document, made.candidate.program, Path(memory_map))
    return made


def plan_partition(
    model: _Path,
    output: _Path,
    pair: _Path,
    *,
    results: _Path | None = None,
    preparation: Preparation | None = None,
    shape: Shapes | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  as on the command line
    batch: int | None = None,
    mode: Literal["sequential", "parallel"] = "sequential",
    gap: float = 0.001,
    time_limit_s: float = 20.0,
) -> PlannedModel:
    """Plan which of two processors runs each operator of a model, whole or split, and write what executes it.

    Args:
        model: ONNX file.
        output: folder to write the plan to.
        pair: name of a pair file, or a path to one.
        results: folder of the results, with the pair's predictors; without, that of the workspace.
        preparation: as for `predict`. A model that had to be prepared is written beside the plan, as `<output>.onnx`.
        shape: likewise.
        set: likewise.
        batch: likewise.
        mode: one operator at a time, or different ones side by side.
        gap: to the bound, at which the search for a plan side by side ends.
        time_limit_s: of that search.

    Raises:
        ModelError: the file cannot be read or holds what is not known.
        DeviceError: unknown pair, or a processor of it that is not there.
        FormatError: there are no predictors of the pair, or those of another machine or driver.
        StoreError: the folder cannot be written.
    """
    from edgeplan.chapters.partition.learning.predictors import load
    from edgeplan.chapters.partition.measuring.opened import opened
    from edgeplan.chapters.partition.planned import plan_model, require_own, write_folder
    from edgeplan.devices.pairs import load_pair
    from edgeplan.graph.onnx.prepare import prepare_file
    from edgeplan.planning.partition.parallel import SearchLimits
    from edgeplan.workspace import workspace
    from edgeplan.writable import require_writable

    found = load_pair(Path(pair) if isinstance(pair, PathLike) else pair)
    out = Path(output)
    require_writable(out, instead="choose another folder with -o")
    predictors = load(Path(results or workspace().results) / found.name / "partition" / "predictors", found)
    source = prepare_file(Path(model), _left_open(preparation, shape, set, batch), out.with_name(f"{out.name}.onnx"))
    with opened(found) as both:
        require_own(predictors, both)
        search = SearchLimits(gap=gap, time_limit_s=time_limit_s)
        planned = plan_model(source, predictors, both.names, both.synchronisation, mode=mode, search=search)
        write_folder(planned, both, out)
    return planned
