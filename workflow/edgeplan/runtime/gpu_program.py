"""Holds a plan of a cold start on a GPU as documents: what is launched, what weights are made from, who prepares what."""

from __future__ import annotations

from typing import Annotated

import msgspec

from edgeplan.runtime.program_file import Border

#: Packed weights of the plan folder, and the machine code of its kernels.
PACKED_NAME, CODE_NAME = "weights.cache", "kernels.cache"
#: From one step's packed weights to the next: a page, so that each can be brought by itself and used in place.
PAGE_BYTES = 4096
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0)]
Digest = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class DeviceSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A device spec says on what a plan is executed: the engine that names the processor, and the options of its device file.

    Activations have blocks of so many channels, kernels vectors of so many floats; 0: as the options say.
    """

    engine: str
    options: dict[str, str]
    block: Positive
    vector: Count = 0


class PlannedLaunch(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A planned launch runs one kernel; see `opencl.launch.Launch`.

    An argument is an integer, the name of a memory (`opencl.launch.Memory`), or a float as `float.hex` writes it.
    """

    source: str
    kernel: str
    defines: tuple[tuple[str, int], ...]
    global_size: tuple[Positive, ...]
    local_size: tuple[Positive, ...]
    arguments: tuple[int | str, ...]


class WeightPlace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A weight place says where the values of one role of a step's weights lie in a file of the model.

    The file is a position in `GpuProgram.files`; the rest is as in `runtime.weights.WeightLocation`.
    """

    role: str
    file: Count
    offset: Count
    size: Count
    stride: Positive
    shape: tuple[Count, ...]
    dtype: str = "float32"


class PackedWeights(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Packed weights are what a step's kernels read; see `opencl.launch.Packing`.

    Kind and settings of the step say how values of the model's files, at their places, are folded before. The offset is in the
    file of packed weights, whose bytes there have the digest; -1 and "": they are made from the model's at every start.
    """

    transform: str
    sizes: dict[str, int]
    elements: Positive
    kind: str
    settings: dict[str, int | float | str | tuple[int, ...]]
    places: tuple[WeightPlace, ...]
    offset: int = -1
    sha256: str = ""

    @property
    def cached(self) -> bool:
        """Tell whether the plan folder holds them."""
        return self.offset >= 0


class GpuStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A step of the program runs its launches one after the other; a view has none."""

    name: str
    implementation: str
    launches: tuple[PlannedLaunch, ...] = ()
    weights: PackedWeights | None = None


class ModelSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A model source is a file of the model that weights are read from: where it was when that was planned, and its stamp."""

    path: str
    stamp: tuple[int, ...]
    sha256: Digest


class GpuProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A program says what a GPU executes, in order.

    Inputs and outputs are row-major activations at offsets of the arena, the memory of all activations; between the launches of
    one step the workspace is used.
    """

    model: str
    device: DeviceSpec
    steps: Annotated[tuple[GpuStep, ...], msgspec.Meta(min_length=1)]
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    arena_bytes: Positive
    workspace_bytes: Positive
    files: tuple[ModelSource, ...] = ()

    @property
    def files_read(self) -> tuple[int, ...]:
        """Return the positions in `files` of those that a start reads: weights that the plan folder does not hold packed."""
        weights = [step.weights for step in self.steps if step.weights is not None]
        return tuple(sorted({place.file for one in weights if not one.cached for place in one.places}))

    @property
    def packed_bytes(self) -> int:
        """Return the size of the weights that the plan folder holds."""
        return sum(4 * step.weights.elements for step in self.steps if step.weights is not None and step.weights.cached)


class GpuSchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A schedule says who prepares what, and when: each thread the steps of its queue, in order.

    Attributes:
        in_sequence: whether all is prepared before the first kernel runs, by one thread.
        at_once: whether kept weights go up in one go, by a thread of their own, while the one that asked for the inference
            loads all code as one program, where the driver can, and prepares the steps.
        code: whether the machine code of the kernels is kept in the folder; else they are compiled at every start.
    """

    queues: tuple[tuple[Count, ...], ...]
    in_sequence: bool = False
    at_once: bool = False
    code: bool = True
    planner: str = "optimal"


class GpuPrediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A prediction says what a plan takes by the costs that it was made from.

    The makespan is that of the cold start, from a processor that is open to the outputs; no plan beats the bound for these
    costs and this order of execution. `planning_s` are seconds from the model to the plan, profiling included, `search_ms` of
    them those of finding it, which the note is about.
    """

    makespan_ms: Milliseconds
    lower_bound_ms: Milliseconds
    planning_s: Milliseconds = 0.0
    search_ms: Milliseconds = 0.0
    note: str = ""

    @property
    def gap(self) -> float:
        """Return the relative distance of the makespan to the bound."""
        return self.makespan_ms / self.lower_bound_ms - 1 if self.lower_bound_ms > 0 else 0.0


def problem_of(program: GpuProgram, schedule: GpuSchedule) -> str:
    """Return what is wrong with a plan, or "": each step is prepared once, and all lies within its memory."""
    prepared = sorted(step for queue in schedule.queues for step in queue)
    if prepared != list(range(len(program.steps))):
        return "its queues do not prepare each step once"
    if schedule.in_sequence and schedule.at_once:
        return "it is prepared both in sequence and at once"
    if (schedule.in_sequence or schedule.at_once) and len(schedule.queues) != 1:
        return "it has several queues, and one thread that prepares"
    borders = (*program.inputs, *program.outputs)
    if any(border.offset + border.size > program.arena_bytes for border in borders):
        return "an input or output lies outside the memory of its activations"
    places = [place for step in program.steps if step.weights is not None for place in step.weights.places]
    if any(place.file >= len(program.files) for place in places):
        return "weights lie in a file that it does not name"
    return ""
