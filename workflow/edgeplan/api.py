"""The library's own interface: what the command line does, as functions with typed results (docs/api.md).

`import edgeplan` hands these out on first use; each imports what it needs when it is called.
"""

# ruff: noqa: PLC0415  imported when called: `import edgeplan` and `edgeplan --help` should not wait for numpy and onnx

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from edgeplan.errors import CheckError, DeviceError, InputError, ModelError, ParamsError, StoreError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from edgeplan.chapters.memory.inference import MemoryRun
    from edgeplan.chapters.memory.plan import MemoryPlanned
    from edgeplan.chapters.partition.inference import PartitionRun
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
    "Run",
    "export",
    "measure",
    "plan_cold_start",
    "plan_memory",
    "plan_partition",
    "predict",
    "prepare",
    "run",
    "run_memory",
    "run_partition",
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
class Run:
    """Inferences of a plan.

    Attributes:
        program: what was run.
        outputs: of the last inference in this process, by name; empty if all ran in fresh ones.
        cold_ms: time of each cold start, opening the plan included.
        warm_ms: time of each later inference.
        stages_ms: of the cold start in this process, sums over all cores; empty if all ran in fresh ones.
        continuous: whether the plan has kernels of its own for later inferences.
        difference: largest difference from ONNX Runtime's outputs on the same inputs, relative to the largest magnitude of each
            output; None unless it was asked for.
        not_finite: names of the inputs that held infinities or what is no number.
    """

    program: LinkedProgram
    outputs: Mapping[str, Array]
    cold_ms: tuple[float, ...]
    warm_ms: tuple[float, ...]
    stages_ms: Mapping[str, float]
    continuous: bool
    difference: float | None = None
    not_finite: tuple[str, ...] = ()

    def require_checked(self) -> None:
        """Refuse outputs that differ from ONNX Runtime's by more than rounding, if they were compared.

        Raises:
            CheckError: they do.
        """
        if self.difference is not None:
            require_checked(self.difference, self.program.model, self.not_finite)


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


def require_checked(difference: float, model: str, not_finite: Sequence[str] = ()) -> None:
    """Refuse outputs that differ from ONNX Runtime's by more than rounding.

    Args:
        difference: of the outputs, see `Run.difference`.
        model: its name, for the message.
        not_finite: inputs that held infinities or what is no number: then the plan is not what the message blames.

    Raises:
        CheckError: they do.
    """
    from edgeplan.support.tensors import OUTPUT_TOLERANCE

    if not difference <= OUTPUT_TOLERANCE and not_finite:
        raise CheckError(
            f"outputs differ from ONNX Runtime's, on inputs that are not finite ({', '.join(map(repr, not_finite))}): oneDNN's "
            "activations do not pass on what is no number",
            where=f"model {model}",
            next_step="check the plan on finite inputs; what this run gave is no answer",
        )
    if not difference <= OUTPUT_TOLERANCE:
        by = f"by {difference:.1e} of the largest magnitude" if isfinite(difference) else "in what is not finite"
        raise CheckError(
            f"outputs differ from ONNX Runtime's {by}, more than the {OUTPUT_TOLERANCE:.0e} of rounding",
            where=f"model {model}",
            next_step="plan the model again; do not use this plan if that changes nothing",
        )


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
    from edgeplan.runtime.layouts import HOMES, LIKELY
    from edgeplan.runtime.linked_file import read_linked
    from edgeplan.runtime.plan_folder import PROGRAM_NAME, build_plan_folder
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
    from edgeplan.chapters.memory.plan import planning, require_replaceable
    from edgeplan.graph.onnx.prepare import prepare_file
    from edgeplan.measurement.process.stock import peak_bytes
    from edgeplan.planning.memory.quick import Mode
    from edgeplan.profiling.settings import cores_of
    from edgeplan.writable import require_writable

    slowdown = Budget.parsed(max_slowdown, "--max-slowdown").share if max_slowdown else 0.0
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


def run(
    plan: _Path | ColdStartPlan,
    inputs: Mapping[str, npt.ArrayLike] | npt.ArrayLike | _Path | None = None,
    *,
    repeat: int = 1,
    device: _Path = "",
    check: bool = False,
    model: _Path | None = None,
    cold: bool = False,
    evicted: bool = False,
) -> Run:
    """Run a plan: its cold start, and warm runs after it; or cold starts only, each in a fresh process.

    Args:
        plan: a plan folder, or what `plan_cold_start` returned.
        inputs: arrays by name, of the types of the model's inputs, the array alone for a model of one input, or a file of them
            (.npz, .npy); seeded random ones without. Fresh processes take random ones.
        repeat: how many inferences.
        device: the device it was planned for, whose cores to take; without, the first processors this process may use.
        check: compare outputs with ONNX Runtime's on the same inputs (`Run.difference`; `Run.require_checked` raises).
        model: the ONNX file to check against, where it has moved since it was planned.
        cold: a fresh process for each inference.
        evicted: with `cold`, the plan's files are dropped from the page cache before each.

    Raises:
        InputError: inputs do not fit the model.
        ParamsError: arguments contradict each other.
        FormatError: no plan, or one for another machine, library or model.
        DeviceError: too few cores for the plan.
        ColdRunError: a fresh process failed.
        ModelError: with `check`, the model is not found or changed, or ONNX Runtime cannot run it.
    """
    from edgeplan.chapters.cold_start.inference import kept_on, processors, require_sorted, run_here, start_apart
    from edgeplan.measurement.process.inputs import random_inputs_of, relative_error
    from edgeplan.planning.document import read_plan
    from edgeplan.runtime.linked_file import read_linked
    from edgeplan.runtime.plan_folder import PLAN_NAME, PROGRAM_NAME
    from edgeplan.support.tensors import checked_inputs, read_inputs

    folder = plan.folder if isinstance(plan, ColdStartPlan) else Path(plan)
    _check_run(given=inputs is not None, repeat=repeat, check=check, cold=cold, evicted=evicted)
    program = read_linked(folder / PROGRAM_NAME)
    continuous = bool(read_plan(folder / PLAN_NAME).later)
    values: dict[str, Any]
    if inputs is None:
        values = random_inputs_of(program.inputs)
    elif isinstance(inputs, (str, PathLike)):
        values = read_inputs(Path(inputs), program.inputs)
    else:
        values = checked_inputs(inputs, program.inputs)
    named = str(device)
    cores = processors(program, named)
    if cold:
        require_sorted(cores, named)
        with kept_on(cores):
            times = [start_apart(folder, program, values, cores, evicted=evicted, continuous=continuous) for _ in range(repeat)]
        return Run(program, {}, tuple(times), (), {}, continuous)
    source = None
    if check:
        from edgeplan.chapters.cold_start.reference import model_of
        from edgeplan.engines.onnxruntime.reference import reference_outputs

        source = model_of(program, folder, None if model is None else Path(model))
    difference = None
    with kept_on(cores):
        found = run_here(folder, program, values, repeat, cores, continuous=continuous)
        if source is not None:  # behind the run, whose time it would change
            reference = reference_outputs(source, values)
            expected = [reference[name] for name in found.first]
            difference = max(relative_error(list(outputs.values()), expected) for outputs in (found.first, found.last))
    odd = _not_finite(values)
    return Run(program, found.last, found.times_ms[:1], found.times_ms[1:], found.stages_ms, continuous, difference, odd)


def _not_finite(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of inputs that hold infinities or what is no number, with a warning: outputs may look as if they held numbers."""
    from edgeplan.measurement.process.inputs import not_finite

    found = not_finite(values)
    if found:
        log.warning("not finite everywhere: %s; activations may make numbers of it, so outputs may hide it", ", ".join(found))
    return found


def _check_run(*, given: bool, repeat: int, check: bool, cold: bool, evicted: bool) -> None:
    if evicted and not cold:
        raise ParamsError(
            "only a cold start can begin with an evicted page cache", where="--evicted", next_step="add --cold, or leave it out"
        )
    _check_repeat(repeat)
    if cold and given:
        raise InputError("a fresh process takes random inputs", where="--input", next_step="leave out --cold, or --input")
    if cold and check:
        raise ParamsError(
            "the outputs of a fresh process stay there", where="--check", next_step="leave out --cold, or --check"
        )


def _check_repeat(repeat: int) -> None:
    if repeat < 1:
        raise ParamsError(f"{repeat} runs are none", where="--repeat", next_step="name 1 or more")


def run_memory(
    plan: _Path | MemoryPlanned,
    inputs: Mapping[str, npt.ArrayLike] | npt.ArrayLike | _Path | None = None,
    *,
    repeat: int = 1,
    budgets: Sequence[str] = (),
    check: bool = False,
    model: _Path | None = None,
) -> MemoryRun:
    """Run a plan of `plan_memory`, by one budget after the other.

    Args:
        plan: a plan folder, or what `plan_memory` returned.
        inputs: float32 arrays by name, the array alone for a model of one input, or a file of them (.npz, .npy); seeded random
            ones without.
        repeat: inferences of each budget.
        budgets: as "64MiB"; without, the one that it was planned for. The session plans again from one to the next.
        check: compare outputs with ONNX Runtime's on the same inputs.
        model: the ONNX file to check against, where it has moved since it was planned.

    Raises:
        InputError: inputs do not fit the model.
        ParamsError: a budget is no size or exceeds the memory that is free, or `repeat` is below 1.
        InfeasibleError: a budget is too small.
        FormatError: no plan, or one for another machine or library.
        ModelError: the weights cannot be read; with `check`, the model is not found or changed.
        CheckError: outputs differ from ONNX Runtime's.
    """
    from dataclasses import replace

    from edgeplan.chapters.memory.budget import Budget, require_free
    from edgeplan.chapters.memory.inference import model_of, read_about, run_plan
    from edgeplan.engines.onnxruntime.reference import reference_outputs
    from edgeplan.measurement.process.inputs import random_inputs_of, relative_error
    from edgeplan.runtime.streaming.program import read_program
    from edgeplan.support.tensors import checked_inputs, read_inputs

    _check_repeat(repeat)
    folder = Path(plan) if isinstance(plan, (str, PathLike)) else plan.folder
    about = read_about(folder)
    program = read_program(folder)
    values: dict[str, Any]
    if inputs is None:
        values = random_inputs_of(program.inputs)
    elif isinstance(inputs, (str, PathLike)):
        values = read_inputs(Path(inputs), program.inputs)
    else:
        values = checked_inputs(inputs, program.inputs)
    parsed = [Budget.parsed(text, "--budgets") for text in budgets]
    if any(not budget.size for budget in parsed):
        raise ParamsError("a budget of a run is a size, not a share", where="--budgets", next_step="give sizes: 300MB,100MB")
    for budget in parsed:
        require_free(budget, "--budgets")
    source = model_of(about, None if model is None else Path(model)) if check else None
    found = replace(run_plan(folder, values, repeat, [budget.size for budget in parsed]), not_finite=_not_finite(values))
    if source is not None:
        expected = reference_outputs(source, values)
        difference = relative_error(list(found.outputs.values()), [expected[name] for name in found.outputs])
        found = replace(found, difference=difference)
    return found


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
    from edgeplan.planning.partition.parallel import Search
    from edgeplan.workspace import workspace
    from edgeplan.writable import require_writable

    found = load_pair(Path(pair) if isinstance(pair, PathLike) else pair)
    out = Path(output)
    require_writable(out, instead="choose another folder with -o")
    predictors = load(Path(results or workspace().results) / found.name / "partition" / "predictors", found)
    source = prepare_file(Path(model), _left_open(preparation, shape, set, batch), out.with_name(f"{out.name}.onnx"))
    with opened(found) as both:
        require_own(predictors, both)
        search = Search(gap=gap, time_limit_s=time_limit_s)
        planned = plan_model(source, predictors, both.names, both.synchronisation, mode=mode, search=search)
        write_folder(planned, both, out)
    return planned


def run_partition(
    plan: _Path,
    inputs: Mapping[str, npt.ArrayLike] | npt.ArrayLike | _Path | None = None,
    *,
    repeat: int = 1,
    check: bool = False,
    model: _Path | None = None,
) -> PartitionRun:
    """Run a plan of `plan_partition`.

    Args:
        plan: a plan folder.
        inputs: as for `run_memory`.
        repeat: inferences.
        check: compare outputs with ONNX Runtime's on the same inputs.
        model: the ONNX file, where it has moved since it was planned.

    Raises:
        InputError: inputs do not fit the model.
        FormatError: no plan, or one for another machine, library or driver.
        ModelError: the model is not found or changed.
        DeviceError: a processor is not there, or fails.
    """
    from dataclasses import replace

    from edgeplan.chapters.partition.inference import inputs_of, run_plan
    from edgeplan.chapters.partition.planned import model_of, read_folder
    from edgeplan.engines.onnxruntime.reference import reference_outputs
    from edgeplan.measurement.process.inputs import random_inputs_of, relative_error
    from edgeplan.support.tensors import checked_inputs, read_inputs

    folder = Path(plan)
    about, _ = read_folder(folder)
    source = model_of(about, None if model is None else Path(model), folder)
    borders = inputs_of(source)
    values: dict[str, Any]
    if inputs is None:
        values = random_inputs_of(borders)
    elif isinstance(inputs, (str, PathLike)):
        values = read_inputs(Path(inputs), borders)
    else:
        values = checked_inputs(inputs, borders)
    found = replace(run_plan(folder, values, repeat, source), not_finite=_not_finite(values))
    if check:
        expected = reference_outputs(source, values)
        difference = relative_error([found.outputs[name] for name in expected], list(expected.values()))
        found = replace(found, difference=difference)
    return found
