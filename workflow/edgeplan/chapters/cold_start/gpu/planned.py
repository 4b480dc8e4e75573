"""Plans the cold start of a model on a GPU: measures its costs there, finds a plan with a proven bound, writes its folder."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from edgeplan.chapters.cold_start.gpu.costs import CostMeter
from edgeplan.chapters.cold_start.planners.gpu import GPU_PLANNERS, OPTIMAL, GpuCosts, GpuOutcome
from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.engines.registry import PROCESSORS, face
from edgeplan.errors import ParamsError, require_known
from edgeplan.gpu_start.build import StepChoice, write_gpu_folder
from edgeplan.gpu_start.model import GpuModel, gpu_model
from edgeplan.gpu_start.opened import gpu_class, host_processors, open_gpu, without_driver_caches
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.opencl.processor import DispatchingProcessor
from edgeplan.planning.optimal import Search
from edgeplan.profiling.forms import require_exact
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import GPU_START, PlanFolder, read_folder
from edgeplan.runtime.gpu_program import DeviceSpec, GpuPrediction, GpuSchedule
from edgeplan.writable import require_writable

#: Threads that prepare, at most: more wait for each other in the interpreter, and the bound of their plans is looser.
MOST_THREADS = 2
_MS_PER_S = 1e3


@dataclass(frozen=True)
class GpuPlan:
    """Holds a plan of a cold start on a GPU that was written, and what it was made from.

    Attributes:
        folder: the plan folder that `run` executes.
        outcome: what the planner decided.
        costs: what it was made from.
        prediction: as the folder tells it.
    """

    folder: Path
    outcome: GpuOutcome
    costs: GpuCosts
    prediction: GpuPrediction

    @property
    def schedule(self) -> GpuSchedule:
        """Return who prepares what, as the folder tells it."""
        return self.plan.scheduled(GpuSchedule)

    @property
    def plan(self) -> PlanFolder:
        """Read the plan folder that was written."""
        return read_folder(self.folder, GPU_START)


class GpuPlanning:
    """A planning of one model holds its costs, from which any plan is made.

    Args:
        device: the device file.
        model: ONNX file.
        processor: of the device, opened late, with profiling.
        block: channels of a block of activations.
    """

    def __init__(
        self,
        device: DeviceFile,
        model: Path,
        processor: DispatchingProcessor,
        block: int,
    ) -> None:
        began = time.perf_counter()
        graph = simplify(load_onnx(model))
        require_exact(graph, str(model))
        numbers = processor.device_numbers
        spec = DeviceSpec(device.engine, dict(device.options), block, numbers.vector)
        self._processor = processor
        self.model: GpuModel = gpu_model(Dnnl(), model, graph, spec, numbers)
        threads = min(MOST_THREADS, len(host_processors(processor)))
        self.costs = CostMeter(self.model, processor).costs(threads)
        self._seconds = time.perf_counter() - began

    def write(self, planner: str, folder: Path, search: Search | None = None) -> GpuPlan:
        """Make a plan and write its folder.

        Args:
            planner: a name in `GPU_PLANNERS`.
            folder: to write, where another plan may lie.
            search: how hard to search.
        """
        require_known("planner", [planner], GPU_PLANNERS, "--planner")
        began = time.perf_counter()
        found = GPU_PLANNERS[planner](self.costs, search or Search())
        taken = time.perf_counter() - began
        prediction = GpuPrediction(
            found.makespan_ms,
            min(found.lower_bound_ms, found.makespan_ms),
            self._seconds + taken,
            taken * _MS_PER_S,
            found.note,
        )
        schedule = GpuSchedule(found.queues, found.in_sequence, found.at_once, found.code, planner)
        choices = [StepChoice(one.kernel, one.cached) for one in found.choice]
        write_gpu_folder(self.model, choices, schedule, prediction, self._processor, folder)
        return GpuPlan(folder, found, self.costs, prediction)


@contextmanager
def planning_on(device: DeviceFile) -> Iterator[tuple[DispatchingProcessor, int]]:
    """Open the processor of a device for planning; hand over with it how many channels a block of activations has."""
    device.require_local("plans are made and run")
    without_driver_caches()
    block = Dnnl().info.block
    opened = open_gpu(DeviceSpec(device.engine, dict(device.options), block), profiling=True)
    try:
        yield opened.processor, block
    finally:
        opened.processor.close()


def gpu_device(name: str) -> DeviceFile | None:
    """Return the device file of that name or path if cold starts on it are those of a GPU; None of any other."""
    found = load_device(name)
    if found.engine not in PROCESSORS:
        return None
    return found if issubclass(face(PROCESSORS, found.engine, "processor", "processor"), DispatchingProcessor) else None


def refuse_for_gpu(given: Mapping[str, bool]) -> None:
    """Refuse options of a plan that those of a GPU do not have.

    Args:
        given: option -> whether it was given.
    """
    if wrong := [option for option, is_given in given.items() if is_given]:
        what = f"a plan of a GPU has no {', '.join(wrong)}"
        raise ParamsError(what, where=wrong[0], next_step="leave it out, or name a device of the engine onednn")


def plan_gpu_start(
    model: Path, output: Path, device: DeviceFile, planner: str = OPTIMAL, preparation: Preparation | None = None
) -> GpuPlan:
    """Plan the fastest first inference of a model on a GPU, and write what executes it.

    Args:
        model: ONNX file.
        output: folder to write the plan to.
        device: its file; the engine is opencl or cuda.
        planner: a name in `GPU_PLANNERS`.
        preparation: as for `predict`. A model that had to be prepared is written beside the plan, as `<output>.onnx`.
    """
    require_known("planner", [planner], GPU_PLANNERS, "--planner")
    require_writable(output, instead="choose another folder with -o")
    gpu_class(device.engine)
    prepared = prepare_file(model, preparation or Preparation(), output.with_name(f"{output.name}.onnx"))
    with planning_on(device) as (processor, block):
        return GpuPlanning(device, prepared, processor, block).write(planner, output)
