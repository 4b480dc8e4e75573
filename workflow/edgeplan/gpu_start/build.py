"""Writes the plan folder of a cold start on a GPU: program, packed weights that are kept, machine code of kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from edgeplan.gpu_start.code_cache import write_codes
from edgeplan.gpu_start.model import GpuModel
from edgeplan.gpu_start.session import library_version, sources_of_steps
from edgeplan.gpu_start.weights import WeightFiles, packed_of
from edgeplan.graph.model_file import model_sha256
from edgeplan.opencl.processor import DispatchingProcessor
from edgeplan.runtime.folder import GPU_START, PROGRAM_NAME, MadeFor, encoded, replacing, write_plan
from edgeplan.runtime.gpu_program import (
    CODE_NAME,
    PACKED_NAME,
    PAGE_BYTES,
    GpuPrediction,
    GpuProgram,
    GpuSchedule,
    GpuStep,
)
from edgeplan.support.digests import sha256
from edgeplan.support.machine import fingerprint


@dataclass(frozen=True, slots=True)
class StepChoice:
    """A choice says how a plan has a step prepared.

    Attributes:
        kernel: a name in `GpuModel.kernels`.
        cached: whether the folder holds its weights packed.
    """

    kernel: str
    cached: bool


def write_gpu_folder(
    model: GpuModel,
    choices: Sequence[StepChoice],
    schedule: GpuSchedule,
    prediction: GpuPrediction,
    processor: DispatchingProcessor,
    folder: Path,
) -> GpuProgram:
    """Write a plan folder, at once.

    Args:
        model: to be run.
        choices: by step.
        schedule: of the plan.
        prediction: likewise.
        processor: that it is for, opened late, on which these kernels have run: it gives their machine code.
        folder: to write, where another plan may lie.

    Returns:
        What the folder executes.
    """
    steps = [model.step(index, choice.kernel) for index, choice in enumerate(choices)]
    made_for = MadeFor(
        str(model.path.resolve()), model_sha256(model.path), fingerprint(), library_version(), "", 1,
        processor.capabilities.version,
    )  # fmt: skip
    with replacing(folder) as work:
        kept = [choice.cached for choice in choices]
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
    return program


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
