"""Describes a model as a GPU can execute it: its program, and for each step the kernels that can run it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgeplan.engines.opencl.dispatching import program_of
from edgeplan.errors import ModelError
from edgeplan.gpu_start.weights import sources_of
from edgeplan.graph.ir import Graph
from edgeplan.graph.steps import Step
from edgeplan.opencl import dispatch as dispatcher
from edgeplan.opencl.launch import ArenaOffset, Argument, DeviceNumbers, Dispatch, Launch, Memory
from edgeplan.opencl.processor import OTHER_TYPES, has_other_types
from edgeplan.opencl.spaces import tensor_of
from edgeplan.runtime.creation import aligned
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.gpu_program import (
    DeviceSpec,
    GpuProgram,
    GpuStep,
    ModelSource,
    PackedWeights,
    PlannedLaunch,
    WeightPlace,
)
from edgeplan.runtime.partitioned.crossing import is_view
from edgeplan.runtime.program import Program
from edgeplan.runtime.program_file import Border

#: The name of the dispatcher's own choice among the kernels of a step.
OWN = "own"
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class GpuModel:
    """A model is ready to be planned for a GPU.

    Attributes:
        path: of the ONNX file.
        device: that it is for.
        program: steps, shapes, and places of activations.
        kernels: for each step the kernels that can run it, by name, the dispatcher's own first; none for a view.
        names: of the files that weights lie in, relative to the model's folder.
        sources: these files.
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
        """Return a step with one of its kernels, its weights made from the model's.

        Args:
            index: of the step.
            kernel: a name in `kernels`; any for a view.
        """
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
    """Describe a model for a GPU.

    Args:
        dnnl: the library, which lays activations out.
        model: ONNX file.
        graph: its graph.
        device: that it is planned for.
        numbers: of the device.
    """
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
    elif is_view(program, step, numbers.block):
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
    return {OWN: dispatcher.dispatch(*given), **dispatcher.alternatives(*given)}


def _launch(program: Program, step: Step, launch: Launch) -> PlannedLaunch:
    arguments = tuple(_argument(program, step, argument) for argument in launch.arguments)
    return PlannedLaunch(launch.source, launch.kernel, launch.defines, launch.global_size, launch.local_size, arguments)


def _argument(program: Program, step: Step, argument: Argument) -> int | str:
    if isinstance(argument, Memory):
        return argument.value
    if isinstance(argument, ArenaOffset):
        return program.offsets[tensor_of(step, argument.role)] // _FLOAT_BYTES + argument.extra
    return float(argument).hex() if isinstance(argument, float) else int(argument)


def _weights(program: Program, step: Step, found: Dispatch, files: Sequence[str]) -> PackedWeights | None:
    packing = found.packing
    if not packing.elements:
        return None
    places = []
    for role, name in step.weights.items():
        at = program.weights[name]
        shape = tuple(program.shapes[name])
        places.append(WeightPlace(role, files.index(at.file), at.offset, at.size, at.stride, shape, at.dtype, at.rows))
    settings = dict(step.settings)
    return PackedWeights(packing.transform, dict(packing.sizes), packing.elements, step.kind, settings, tuple(places))
