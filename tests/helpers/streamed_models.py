"""Small models that are streamed, sessions of them, and plan folders of a made-up profile: nothing hangs on the machine."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.chapters.memory.folders import PlanWriter, RunCores, made_for, write_memory_plan
from edgeplan.chapters.memory.settings import MemorySettings
from edgeplan.engines.base import random_inputs
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.graph.steps import Lowered
from edgeplan.planning.memory.document import MemoryPlan, memory_document
from edgeplan.planning.memory.planner import greedy_layout, plan_streaming
from edgeplan.planning.memory.quick import Mode
from edgeplan.planning.memory.workload import Reader, Workload, least_bytes
from edgeplan.profiling.streaming import StreamProfile
from edgeplan.runtime.bands import Region
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import WEIGHTS_NAME, PlanFolder, read_folder
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.packed_programs import Budgeted, TapedProgram
from edgeplan.runtime.streaming.build import Built, build
from edgeplan.runtime.streaming.measured import MeasuredStream
from edgeplan.runtime.streaming.schedules import BACK_TO_BACK, MemoryPrediction, MemorySchedule, Schedule
from edgeplan.runtime.streaming.weights_file import halvable, write_weights
from edgeplan.runtime.streaming.workloads import all_resident, workload_of
from edgeplan.workloads.exported import Exported
from edgeplan.workloads.registry import save_workload
from edgeplan.workloads.sequences import gpt2, vit

Array = npt.NDArray[np.float32]


def memory_settings(**more: Any) -> MemorySettings:
    """Settings of the chapter on memory by which little is measured."""
    return MemorySettings(
        devices=["cpu-onednn"], models=("vgg19",), settings=("onnxruntime",), shares=(0.5,), threads=1, runs=3, **more
    )


def plain_model() -> Graph:
    """Convolutions, poolings and fully connected layers, as VGG has them."""
    b = GraphBuilder("plain", (1, 3, 32, 32))
    x = "input"
    for channels in (16, 32):
        x = b.relu(b.conv(x, channels, 3))
        x = b.relu(b.conv(x, channels, 3))
        x = b.maxpool(x, 2, 2)
    x = b.relu(b.fc(b.flatten(x), 64))
    return b.build(b.fc(x, 24))


def residual_model() -> Graph:
    """Inverted residuals and a plain residual block, with strides and odd sizes."""
    b = GraphBuilder("residual", (1, 3, 37, 29))
    x = b.conv_bn("input", 16, 3, 2)
    for stride in (1, 2):
        y = b.conv_bn(x, 48, 1)
        y = b.conv_bn(y, 48, 3, stride, groups=48)
        y = b.conv_bn(y, 16, 1, act="")
        x = b.add(x, y) if stride == 1 else y
    y = b.conv_bn(b.conv_bn(x, 16, 3), 16, 3, act="")
    x = b.relu(b.add(x, y))
    x = b.concat([b.conv_bn(x, 32, 1), b.conv_bn(x, 32, 3)])
    return b.build(b.fc(b.flatten(b.gap(x)), 10))


MODELS: Mapping[str, Callable[[], Graph | Exported]] = {
    "plain": plain_model,
    "residual": residual_model,
    # words of a table, and layers of several rows whose columns no block divides
    "tokens": partial(gpt2, "tokens", tokens=5, layers=1, width=64, heads=4, vocabulary=523),
    # layers of three axes, an image in front of them, heads as views
    "patches": partial(vit, "patches", image=32, patch=8, layers=1, width=64, heads=4, hidden=96, classes=10),
}


@dataclass(frozen=True)
class Streamed:
    """A model cut in some way, in a folder with its weights."""

    graph: Graph
    model: Path
    lowered: Lowered
    built: Built
    folder: Path
    inputs: Mapping[str, Array]

    @property
    def workload(self) -> Workload:
        """Each step takes as long."""
        return workload_of(self.built.program, [0.1] * len(self.built.program.step_names))

    @property
    def weights(self) -> Path:
        return self.folder / WEIGHTS_NAME

    def planned(self, budget: int, mode: Mode, bytes_per_ms: float = 1e6) -> dict[str, Any]:
        """A plan for a budget, as a document."""
        return self.document(budget, mode, bytes_per_ms).model_dump()

    def document(self, budget: int, mode: Mode, bytes_per_ms: float = 1e6) -> MemoryPlan:
        program = self.built.program
        reader = Reader(bytes_per_ms, 2)
        made = plan_streaming(self.workload, reader, budget, mode)
        return memory_document(made, self.workload, reader, program.step_names, program.buffer_names)

    def resident(self) -> dict[str, Any]:
        """All weights in memory."""
        return all_resident(self.built.program)

    def session(self, dnnl: Dnnl, schedule: Mapping[str, Any], **how: Any) -> MeasuredStream:
        """A session that fills freed memory with NaN, unless it is told otherwise."""
        return MeasuredStream(self.folder, dnnl.info.path, schedule, **{"debug": True, **how})


def streamed(
    dnnl: Dnnl, name: str, folder: Path, limit: int, regions: tuple[Region, ...] = (), *, halved: bool = False
) -> Streamed:
    """A model, cut; its weights are stored in half their bytes if that is asked for."""
    model = folder / f"{name}.onnx"
    if not model.exists():
        save_workload(MODELS[name](), model)
    graph = simplify(load_onnx(model))
    lowered = lower(graph)
    built = build(dnnl, lowered, "blocked16", limit, 1, regions, halved=halvable(model, lowered) if halved else frozenset())
    own = folder / f"{name}-{limit}-{len(regions)}-{abs(hash(regions))}-{halved}"
    own.mkdir(exist_ok=True)
    write_weights(dnnl, model, lowered, built, own / WEIGHTS_NAME)
    PlanWriter(model, dnnl, 1, RunCores((), ())).program(own, TapedProgram(built.program))
    return Streamed(graph, model, lowered, built, own, random_inputs(graph))


def ran(session: MeasuredStream, inputs: Mapping[str, Array], times: int = 1) -> list[dict[str, bytes]]:
    """Outputs of inferences that follow each other."""
    session.expect(times)
    return [session.run_taking(inputs, lambda _name, view: bytes(view)) for _ in range(times)]


def outputs_of(found: Mapping[str, bytes], streamed_model: Streamed) -> dict[str, Array]:
    borders = streamed_model.built.program.outputs
    return {b.name: np.frombuffer(found[b.name], np.float32).reshape(b.shape) for b in borders}


#: Of reading: it takes a good part of what the steps take, so that memory is worth time.
BYTES_PER_MS = 5e4
#: Bytes beside the arena.
OBJECTS = 1 << 20


def least(model: Streamed) -> int:
    """The smallest budget of the plan."""
    return _bound(model) + 8192


def middle(model: Streamed) -> int:
    """The largest budget that a schedule is stored for: some weights stay."""
    return _bound(model) + int(model.workload.weight_bytes.sum()) // 3


def more(model: Streamed) -> int:
    """A budget between the largest stored one and all weights in memory."""
    return _bound(model) + int(model.workload.weight_bytes.sum()) * 2 // 3


def _bound(model: Streamed) -> int:
    return least_bytes(model.workload) + OBJECTS


def write_streamed_plan(dnnl: Dnnl, model: Streamed, folder: Path, others: float = 0.0) -> PlanFolder:
    """Write a plan with schedules for the smallest and for the middle budget, and read it."""
    program, rows = model.built.program, []
    folder.mkdir()
    for budget in (least(model), middle(model)):
        made = model.document(budget - OBJECTS, Mode.back_to_back, BYTES_PER_MS)
        rows.append(Budgeted(budget, made.predicted_ms, made.lower_bound_ms, Schedule.of(made.model_dump())))
    shutil.copyfile(model.weights, folder / WEIGHTS_NAME)
    profile = StreamProfile(
        compute_ms=(0.1,) * len(program.step_names), bytes_per_ms=BYTES_PER_MS, lanes=2, objects_bytes=OBJECTS, idle_bytes=0,
        run_ms=(), lowest=tuple(greedy_layout(model.workload).tolist()), others=others,
    )  # fmt: skip
    schedule = MemorySchedule(BACK_TO_BACK, rows[0].budget_bytes, 8192, (), (), (), rows[0].placed)
    prediction = MemoryPrediction(rows[0].predicted_ms, rows[0].lower_bound_ms, 0, profile.model_dump())
    made_here, taped = made_for(model.model, dnnl, 1), TapedProgram(program)
    write_memory_plan(folder, taped, made_here, schedule, prediction, [rows[0], *rows], profile)
    return read_folder(folder)
