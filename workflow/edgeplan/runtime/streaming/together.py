"""Several plans of memory run as one program, in turns: one arena, one reader and one budget for all of their models.

The steps of one model follow those of the other, so activations of both have the same memory, and the weights of one are read
while the other computes. `runtime.streaming.together_plan` plans it. Nothing heavy is imported, to save memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self, TypeVar

from msgspec.structs import replace

from edgeplan.errors import ParamsError
from edgeplan.graph.steps import Step
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import MEMORY, WEIGHTS_NAME, PlanFolder
from edgeplan.runtime.streaming.library_pages import KeptPages, LibraryPages, united
from edgeplan.runtime.streaming.memory_session import MemorySchedule, narrow_limit, needed_pages
from edgeplan.runtime.streaming.program import (
    PAGE_BYTES,
    Border,
    Operand,
    StreamProgram,
)
from edgeplan.runtime.streaming.reader import JoinedWeights, WeightsFile
from edgeplan.runtime.streaming.schedules import ScheduleFile
from edgeplan.runtime.streaming.session import ModelTurn, StreamSession
from edgeplan.support.machine import fingerprint

Taken = TypeVar("Taken")


class JoinedProgram(NamedTuple):
    """The programs of several models as one.

    Attributes:
        program: their steps one after the other.
        turns: of the models.
        weights_from: the byte that the weights of each begin at, in one file of all of them.
    """

    program: StreamProgram
    turns: tuple[ModelTurn, ...]
    weights_from: tuple[int, ...]


def require_joinable(plans: Sequence[PlanFolder]) -> None:
    """Refuse plans that one program cannot hold.

    Raises:
        ParamsError: one is a plan of another kind, or they compute by other threads or store weights in other ways.
    """
    for plan in plans:
        if plan.kind != MEMORY:
            raise ParamsError(
                f"a plan of the kind {plan.kind!r} holds no budget",
                where=str(plan.path),
                next_step="plan the model with edgeplan plan memory, or run the plan by itself",
            )
    programs = [plan.program_of(StreamProgram) for plan in plans]
    halved = {program.halves for program in programs if program.stored_rows}
    for what, values in (("threads", {program.threads for program in programs}), ("halves of weights", halved)):
        if len(values) > 1:
            raise ParamsError(
                f"the plans have different {what}: {', '.join(sorted(map(str, values)))}",
                where=", ".join(str(plan.path) for plan in plans),
                next_step="plan the models alike: edgeplan plan memory",
            )


def joined(programs: Sequence[StreamProgram]) -> JoinedProgram:
    """Join programs to one that executes their steps one after the other; tensors get names of their own.

    Args:
        programs: of as many threads, with weights that are stored in one way.
    """
    pages = [-(-program.weights_bytes // PAGE_BYTES) * PAGE_BYTES for program in programs]
    files = _firsts(size + PAGE_BYTES for size in pages)  # no read goes from one file to the next
    steps = _firsts(len(program.step_names) for program in programs)
    kernels = _firsts(len(program.kernels) for program in programs)
    buffers = _firsts(len(program.buffer_names) for program in programs)
    operands = _firsts(len(program.columns.buffer_of) for program in programs)
    turns, parts = list[ModelTurn](), dict[str, bytearray]()
    for k, program in enumerate(programs):
        first, places = steps[k], buffers[k]
        borders = (_borders(program.inputs, places), _borders(program.outputs, places))
        turns.append(ModelTurn(first, first + len(program.step_names), *borders))
        rows = {
            "step_rows": _moved(program.step_rows, (kernels[k], operands[k], files[k], 0)),
            "operand_rows": _moved(program.operand_rows, (places, 0)),
            "buffer_rows": _moved(program.buffer_rows, (0, first, first)),
            "stored_rows": program.stored_rows or array("q", program.columns.weight_bytes).tobytes(),
        }
        for name, own in rows.items():
            parts.setdefault(name, bytearray()).extend(own)
    halves = {program.halves for program in programs if program.stored_rows} or {programs[0].halves}
    numbered = list(enumerate(programs))
    program = replace(
        programs[0],
        model=" and ".join(program.model for program in programs),
        kernels=tuple(replace(own, step=_renamed(own.step, k, files[k])) for k, each in numbered for own in each.kernels),
        step_names=tuple(_name(k, name) for k, each in numbered for name in each.step_names),
        buffer_names=tuple(_name(k, name) for k, each in numbered for name in each.buffer_names),
        inputs=tuple(border for turn in turns for border in turn.inputs),
        outputs=tuple(border for turn in turns for border in turn.outputs),
        shapes=_all_of(program.shapes for program in programs),
        layouts=_all_of(program.layouts for program in programs),
        types=_all_of(program.types for program in programs),
        weights_bytes=files[-1] + pages[-1],
        halves=halves.pop(),
        step_rows=bytes(parts["step_rows"]),
        operand_rows=bytes(parts["operand_rows"]),
        buffer_rows=bytes(parts["buffer_rows"]),
        stored_rows=bytes(parts["stored_rows"]),
    )
    return JoinedProgram(program, tuple(turns), files)


def _firsts(sizes: Iterable[int]) -> tuple[int, ...]:
    return tuple(accumulate(sizes, initial=0))[:-1]


def _name(number: int, name: str) -> str:
    return f"{number}/{name}"


def _all_of(tables: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {_name(k, name): value for k, table in enumerate(tables) for name, value in table.items()}


def _borders(borders: Sequence[Border], first_buffer: int) -> tuple[Border, ...]:
    return tuple(
        replace(border, operand=Operand(border.operand.buffer + first_buffer, border.operand.offset)) for border in borders
    )


def _renamed(step: Step, number: int, first_byte: int) -> Step:
    """A step whose tensors have the names of the joined program, and whose table of rows lies in its file."""
    inputs, outputs = (tuple(_name(number, name) for name in names) for names in (step.inputs, step.outputs))
    settings = {**step.settings, "at": step.integer("at") + first_byte} if step.kind == "rows" else step.settings
    return replace(
        step,
        inputs=inputs,
        outputs=outputs,
        weights=MappingProxyType({role: _name(number, name) for role, name in step.weights.items()}),
        settings=settings,
        post_ops=tuple(replace(op, tensor=op.tensor and _name(number, op.tensor)) for op in step.post_ops),
    )


def _moved(rows: bytes, by: Sequence[int]) -> bytes:
    """Rows of numbers, each column moved; numbers below zero stand for no place, and stay."""
    width = len(by)
    numbers = memoryview(rows).cast("q")
    return array("q", [n + by[k % width] if n >= 0 else n for k, n in enumerate(numbers)]).tobytes()


class TogetherSession:
    """Several plans of memory that are open in one process, as one program.

    Args:
        plans: of memory.
        schedule: file of the schedule that `together_plan` made for them.
        dnnl: the library; None: it is loaded.

    Attributes:
        turns: of the models, in the order of the plans.
        stream: the session that runs the model whose turn it is.
        staying: of each model, bytes of weights that stay in memory.
        predicted_ms: of one inference of each.

    Raises:
        EdgeplanError: see `require_joinable` and `StreamSession`.
    """

    def __init__(self, plans: Sequence[PlanFolder], schedule: Path, dnnl: Dnnl | None = None) -> None:
        require_joinable(plans)
        library = dnnl or Dnnl()
        for plan in plans:
            plan.require_here(fingerprint(), library.info.version, library.info.isa)
        read = [plan.require_whole(WEIGHTS_NAME) for plan in plans]
        programs = [plan.program_of(StreamProgram) for plan in plans]
        program, self.turns, firsts = joined(programs)
        stored = ScheduleFile(schedule, len(program.step_names), len(program.buffer_names), back_to_back=True)
        placed, self.predicted_ms = stored.schedule(stored.stored[0]), stored.stored[0].predicted_ms
        sizes = program.columns.weight_bytes
        self.staying = tuple(
            sum(sizes[k] for k in range(turn.first, turn.end) if sizes[k] and placed.again[k] == k) for turn in self.turns
        )
        files = {
            first: WeightsFile(plan.path / WEIGHTS_NAME, own.weights_bytes, drop=drop)
            for first, plan, own, drop in zip(firsts, plans, programs, read, strict=True)
        }
        self.stream = StreamSession(
            library, program, placed, JoinedWeights(files), processors=plans[0].scheduled(MemorySchedule).reader,
            library=_pages_of(plans, library.info.path), turns=self.turns,
        )  # fmt: skip

    def run_taking(self, inputs: Mapping[str, Any], take: Callable[[str, memoryview], Taken]) -> dict[str, Taken]:
        """Run the model whose turn it is; see `StreamSession.run_taking`."""
        return self.stream.run_taking(inputs, take)

    def close(self) -> None:
        """Free the memory of all of them."""
        self.stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _pages_of(plans: Sequence[PlanFolder], path: str) -> LibraryPages | None:
    """The pages of the library that one of the plans needs; None where no limit leaves the process little room."""
    needed = [needed_pages(plan) for plan in plans]
    if any(narrow_limit(plan) is None for plan in plans) or not all(running for _, running in needed):
        return None
    making, running = needed[0]
    for more_making, more_running in needed[1:]:
        making, running = united(making, more_making), united(running, more_running)
    return KeptPages(path, making, running)
