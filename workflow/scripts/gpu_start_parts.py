"""Where the milliseconds of a cold start on a GPU go: medians of starts of the optimal plan, each in a fresh process.

    python workflow/scripts/gpu_start_parts.py MODEL [MODEL ...] [--device cuda-h200] [--planner optimal] [--starts 5]

Models are names of `zoo.cold_start_models`. `code` is the loading of machine code and the making of launches, `wait` what the
executing thread waits for others, `run` the GPU's time after the last launch, and `rest` what is in none of them: the plan is
opened, memory taken, and what was made is enqueued. `upload` goes on beside where weights go up in one go.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path

import numpy as np

from edgeplan.chapters.cold_start.gpu.planned import plan_gpu_start
from edgeplan.chapters.cold_start.planners.gpu import GPU_PLANNERS, OPTIMAL
from edgeplan.devices.config import load_device
from edgeplan.gpu_start.session import STAGES
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.gpu_starts import GpuStartJob, GpuStartResult, start_gpu
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.runtime.gpu_program import GpuProgram, GpuSchedule
from edgeplan.terminal import say
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

_WARM_RUNS = 10


def main() -> None:
    """Plan and start the models, and print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", choices=sorted(COLD_START_MODELS), metavar="MODEL")
    parser.add_argument("--device", default="cuda-h200")
    parser.add_argument("--planner", default=OPTIMAL, choices=sorted(GPU_PLANNERS))
    parser.add_argument("--starts", type=int, default=5)
    given = parser.parse_args()
    names = ("library", "context", "cold", "rest", *STAGES, "later")
    say(f"{'ms':<20}" + "".join(f"{name:>9}" for name in names))
    for model in given.models:
        found, told = parts(model, given.device, given.planner, given.starts)
        say(f"{model:<20}" + "".join(f"{found[name]:>9.2f}" for name in names) + f"  {told}")


def parts(model: str, device: str, planner: str, starts: int) -> tuple[dict[str, float], str]:
    """Return the median of each part (ms), and how the plan prepares.

    Args:
        model: its name.
        device: name or path of a device file.
        planner: a name in `GPU_PLANNERS`.
        starts: fresh processes.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = save_onnx(COLD_START_MODELS[model](), folder / f"{model}.onnx", 0)
        made = plan_gpu_start(path, folder / "made.plan", load_device(device), planner)
        program, schedule = made.plan.program_of(GpuProgram), made.plan.scheduled(GpuSchedule)
        inputs = folder / "inputs.npz"
        np.savez(inputs, allow_pickle=False, **random_inputs({one.name: one.shape for one in program.inputs}, 0))
        job = GpuStartJob(str(made.folder), str(inputs), warm_runs=_WARM_RUNS)
        rows = [_row(start_gpu(job), schedule) for _ in range(starts)]
    how = "at once" if schedule.at_once else "in sequence" if schedule.in_sequence else f"{len(schedule.queues)} threads"
    told = f"{how}, predicted {made.prediction.makespan_ms:.2f}, {program.packed_bytes / 1e6:.1f} MB kept"
    return {key: statistics.median(row[key] for row in rows) for key in rows[0]}, told


def _row(found: GpuStartResult, schedule: GpuSchedule) -> dict[str, float]:
    stages = {stage: found.stages_ms.get(stage, 0.0) for stage in STAGES}
    here = ("wait", "run", *(("code", "read", "pack") if schedule.at_once or schedule.in_sequence else ()))
    others = (*here, "upload") if schedule.in_sequence else here
    return {
        "library": found.library_ms,
        "context": found.context_ms,
        "cold": found.cold_ms,
        "rest": found.cold_ms - sum(stages[stage] for stage in others),
        **stages,
        "later": statistics.median(found.warm_ms),
    }


if __name__ == "__main__":
    main()
