"""Describes a model as a GPU can execute it, with the kernels that can run each step, and writes the folder of a plan of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgeplan.engines.gpu.dispatching import program_of
from edgeplan.errors import ModelError
from edgeplan.gpu_start.files import WeightFiles, packed_of, sources_of, write_codes
from edgeplan.gpu_start.session import library_version, sources_of_steps
from edgeplan.graph.ir import Graph
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.steps import Step
from edgeplan.opencl import dispatch as dispatcher
from edgeplan.opencl.launch import DeviceNumbers, Dispatch, Launch
from edgeplan.opencl.processor import OTHER_TYPES, DispatchingProcessor, has_other_types, planned_argument
from edgeplan.runtime.creation import aligned
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import GPU_START, PROGRAM_NAME, MadeFor, encoded, replacing, write_plan
from edgeplan.runtime.gpu_program import (
    CODE_NAME,
    PACKED_NAME,
    PAGE_BYTES,
    DeviceSpec,
    GpuPrediction,
    GpuProgram,
    GpuSchedule,
    GpuStep,
    ModelSource,
    PackedWeights,
    PlannedLaunch,
    WeightPlace,
)
from edgeplan.runtime.partitioned.program import is_view
from edgeplan.runtime.program import Program
from edgeplan.runtime.program_file import Border
from edgeplan.support.lazy import sha256
from edgeplan.support.machine import fingerprint

#: The name of the dispatcher's own choice among the kernels of a step.
OWN = "own"
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class GpuModel:
    """A model is ready to be planned for a GPU: a program lays out its steps and activations.

    For each step there are the kernels that can run it, by name, the dispatcher's own first; none for a view. The names are
    those of the files that weights lie in, relative to the model's folder, which the sources describe.
    """

    path: Path
    device: DeviceSpec
    program: Program
    kernels: tuple[dict[str, Dispatch], ...]
    names: tuple[str, ...]
    sources: tuple[ModelSource, ...]

    @property
    def steps(self) -> tuple[Step, ...]:
        """Return the steps in order of execution."""
        return self.program.steps

    def step(self, index: int, kernel: str) -> GpuStep:
        """Return a step with one of its kernels (a name in `kernels`, any for a view), its weights made from the model's."""
        step, program = self.steps[index], self.program
        if not self.kernels[index]:
            return GpuStep(step.name, "reshape.view")
        found = self.kernels[index][kernel]
        launches = tuple(_launch(program, step, launch) for launch in found.launches)
        weights = _weights(program, step, found, self.names)
        return GpuStep(step.name, found.implementation, launches, weights)

    def with_steps(self, steps: Sequence[GpuStep]) -> GpuProgram:
        """Return the program of a plan with these steps."""
        program = self.program
        workspace = max((d.workspace_elements for kernels in self.kernels for d in kernels.values()), default=0)
        inputs, outputs = (
            tuple(Border(name, tuple(program.shapes[name]), program.offsets[name]) for name in names)
            for names in (program.inputs, program.outputs)
        )
        size, room = max(1, program.scratch_offset), aligned(_FLOAT_BYTES * max(1, workspace))
        return GpuProgram(program.name, self.device, tuple(steps), inputs, outputs, size, room, self.sources)


def gpu_model(dnnl: Dnnl, model: Path, graph: Graph, device: DeviceSpec, numbers: DeviceNumbers) -> GpuModel:
    """Describe a model for a GPU with such numbers; the library lays activations out."""
    program = program_of(dnnl, model, graph, 1)
    kernels = _worth_compiling([_kernels(program, step, numbers) for step in program.steps])
    names = sorted({location.file for location in program.weights.values()})
    return GpuModel(model, device, program, kernels, tuple(names), sources_of(model, names))


def _worth_compiling(kernels: Sequence[dict[str, Dispatch]]) -> tuple[dict[str, Dispatch], ...]:
    """Leave out kernels that differ from the dispatcher's own by tiles alone which no step of the model is compiled for.

    Each of them would be one more source to compile and to load, for a step or two.
    """
    compiled = {source for found in kernels if found for source in _sources(found[OWN])}
    return tuple(
        {
            name: one
            for name, one in found.items()
            if name == OWN or one.implementation != found[OWN].implementation or _sources(one) <= compiled
        }
        for found in kernels
    )


def _sources(found: Dispatch) -> set[tuple[str, tuple[tuple[str, int], ...]]]:
    return {(launch.source, launch.defines) for launch in found.launches}


def _kernels(program: Program, step: Step, numbers: DeviceNumbers) -> dict[str, Dispatch]:
    if has_other_types(step, program.types):
        why = OTHER_TYPES
    elif is_view(step, program.shapes, program.layouts, program.offsets, numbers.block):
        return {}
    else:
        why = dispatcher.refusal(step, program.shapes, program.layouts, numbers)
    if why:
        raise ModelError(
            f"no kernel of the device runs {why}",
            where=f"step {step.name!r} of {program.name}",
            next_step="plan it for the CPU, or for a pair, which runs such steps on the CPU: edgeplan plan partition",
        )
    given = (step, program.shapes, program.layouts, numbers)
    return {OWN: dispatcher.dispatch(*given), **dispatcher.alternative_dispatches(*given)}


def _launch(program: Program, step: Step, launch: Launch) -> PlannedLaunch:
    arguments = tuple(planned_argument(program, step, argument) for argument in launch.arguments)
    return PlannedLaunch(launch.source, launch.kernel, launch.defines, launch.global_size, launch.local_size, arguments)


def _weights(program: Program, step: Step, found: Dispatch, files: Sequence[str]) -> PackedWeights | None:
    packing = found.packing
    if not packing.elements:
        return None
    places = []
    for role, name in step.weights.items():
        at = program.weights[name]
        shape = tuple(program.shapes[name])
        places.append(WeightPlace(role, files.index(at.file), at.offset, at.size, at.stride, shape, at.dtype))
    settings = dict(step.settings)
    return PackedWeights(packing.transform, dict(packing.sizes), packing.elements, step.kind, settings, tuple(places))


def write_gpu_folder(
    model: GpuModel,
    choices: Sequence[tuple[str, bool]],
    schedule: GpuSchedule,
    prediction: GpuPrediction,
    processor: DispatchingProcessor,
    folder: Path,
) -> None:
    """Write a plan folder at once, where another plan may lie.

    A choice says how a step is prepared: a name in `GpuModel.kernels`, and whether its weights are kept packed. The processor
    was opened late, and these kernels have run on it: it gives their machine code.
    """
    steps = [model.step(index, kernel) for index, (kernel, _) in enumerate(choices)]
    made_for = MadeFor(
        str(model.path.resolve()), model_sha256(model.path), fingerprint(), library_version(), "", 1,
        processor.capabilities.version,
    )  # fmt: skip
    with replacing(folder) as work:
        kept = [cached for _, cached in choices]
        program = model.with_steps(_packed(model, steps, kept, work / PACKED_NAME))
        (work / PROGRAM_NAME).write_bytes(encoded(program))
        if schedule.code:
            sources = sources_of_steps(processor, program.steps)
            if schedule.at_once and (whole := processor.merged(sources)) is not None:
                sources = (whole,)
            codes = {source: processor.code_of(source) for source in sources}
            write_codes(work / CODE_NAME, processor.code_identity, codes)
        names = (PROGRAM_NAME, PACKED_NAME) if program.packed_bytes else (PROGRAM_NAME,)
        write_plan(work, GPU_START, made_for, schedule, prediction, names)


def _packed(model: GpuModel, steps: Sequence[GpuStep], kept: Sequence[bool], path: Path) -> list[GpuStep]:
    """Write the packed weights that are kept; return the steps, which say where theirs lie."""
    if not any(keep and step.weights is not None for keep, step in zip(kept, steps, strict=True)):
        return list(steps)
    files, found, at = WeightFiles(model.with_steps(steps), path.parent), [], 0
    try:
        with path.open("wb") as file:
            for step, keep in zip(steps, kept, strict=True):
                if step.weights is None or not keep:
                    found.append(step)
                    continue
                content = packed_of(step.weights, files.read_raw(step.weights)).tobytes()
                file.write(content + b"\0" * (-len(content) % PAGE_BYTES))
                weights = msgspec.structs.replace(step.weights, offset=at, sha256=str(sha256(content).hexdigest()))
                found.append(msgspec.structs.replace(step, weights=weights))
                at += -(-len(content) // PAGE_BYTES) * PAGE_BYTES
    finally:
        files.close()
    return found
