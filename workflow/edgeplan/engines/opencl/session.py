"""Runs a model on an OpenCL device alone: f32, the kernels that the dispatcher chooses, activations in blocks of channels.

Steps that the device has no kernels for run on the host, through oneDNN, and their nodes say so: `host.` and its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter_ns
from types import MappingProxyType
from typing import Any

import numpy as np

from edgeplan.engines.base import (
    Array,
    Engine,
    EngineNode,
    EngineSettings,
    ProfiledSession,
    Session,
    Times,
    random_inputs,
)
from edgeplan.graph.ir import Graph
from edgeplan.graph.steps import Lowered, Step
from edgeplan.opencl.platforms import OpenclOptions, find_device, pyopencl
from edgeplan.processors.opencl import OpenclProcessor
from edgeplan.runtime.candidates import default
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Buffer, Executable, Worker
from edgeplan.runtime.layouts import BLOCKED, size_bytes
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.crossing import dense
from edgeplan.runtime.processor import Kernel, Region
from edgeplan.runtime.program import Program, build_program, step_candidates
from edgeplan.runtime.session import PreparedSteps
from edgeplan.runtime.weights import locate_weights

_NS_PER_US = 1000.0
#: Ends the name of an output before it is put in row-major order.
_BLOCKED = ":blocked"


class Opencl(Engine):
    """This engine is an OpenCL device; the options are those of `OpenclOptions`, threads are the host's."""

    name = "opencl"
    reports_nodes = True

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._options = OpenclOptions.of(settings.options)
        self._dnnl = Dnnl()
        find_device(self._options)

    @classmethod
    def version(cls) -> str:
        return cls.version_for(EngineSettings())

    @classmethod
    def version_for(cls, settings: EngineSettings) -> str:
        driver = "_".join(str(find_device(OpenclOptions.of(settings.options)).driver_version).split())
        return f"{pyopencl().VERSION_TEXT}+{driver}"

    def load(self, model: Path, graph: Graph) -> Session:
        return _OpenclSession(self._loaded(model, graph, profiling=False), graph)

    def load_profiled(self, model: Path, graph: Graph) -> ProfiledSession:
        return _OpenclProfiledSession(self._loaded(model, graph, profiling=True), graph)

    def _loaded(self, model: Path, graph: Graph, *, profiling: bool) -> Loaded:
        program = program_of(self._dnnl, model, graph, self.settings.threads)
        processor = OpenclProcessor(self._options, self._dnnl.info.block, profiling=profiling)
        try:
            return Loaded(self._dnnl, program, model.parent, processor, self.settings.threads)
        except BaseException:
            processor.close()
            raise


def program_of(dnnl: Dnnl, model: Path, graph: Graph, threads: int) -> Program:
    """Build the program of a model with activations in blocks; the host computes its steps on so many threads.

    Raises:
        ModelError: an operator that has no steps, or weights that cannot be read.
    """
    lowered = _blocked_convolutions(lower(graph, eight_bits=False))
    dnnl.set_threads(threads)
    choices = [default(offered) for offered in step_candidates(dnnl, lowered, BLOCKED)]
    return build_program(dnnl, lowered, BLOCKED, choices, locate_weights(model, lowered), threads)


def _blocked_convolutions(lowered: Lowered) -> Lowered:
    """Let convolutions write blocks where the model ends, too; a copy behind them makes the outputs row-major."""
    ends = {step.outputs[0] for step in lowered.steps if step.kind == "conv"} & set(lowered.outputs)
    names = {tensor: f"{tensor}{_BLOCKED}" for tensor in ends}
    steps: list[Step] = []
    for step in lowered.steps:
        inputs, outputs = (tuple(names.get(tensor, tensor) for tensor in given) for given in (step.inputs, step.outputs))
        posts = tuple(replace(post, tensor=names.get(post.tensor, post.tensor)) for post in step.post_ops)
        steps.append(replace(step, inputs=inputs, outputs=outputs, post_ops=posts))
        steps += [
            Step(f"{tensor}:plain", "reshape", (), (names[tensor],), (tensor,)) for tensor in step.outputs if tensor in ends
        ]
    shapes = {**lowered.shapes, **{name: lowered.shapes[tensor] for tensor, name in names.items()}}
    return replace(lowered, steps=tuple(steps), shapes=MappingProxyType(shapes))


class Loaded:
    """A loaded program is prepared whole on a device; the host runs what the device refuses."""

    def __init__(self, dnnl: Dnnl, program: Program, folder: Path, processor: OpenclProcessor, threads: int) -> None:
        self.program, self.processor = program, processor
        self._threads = threads
        self._worker = Worker(dnnl, threads)
        border = (program.inputs, program.outputs)
        lowered = Lowered(program.name, program.steps, *border, program.shapes, program.types)
        steps: list[Kernel | PreparedSteps] = []
        with Executable(dnnl, program, folder, processor.allocate(program.arena_bytes)) as executable:
            self._executable = executable
            for index, step in enumerate(program.steps):
                if processor.refuses(lowered, step, program.layouts):
                    steps.append(PreparedSteps(executable, self._worker, threads, (index,)))
                else:
                    steps.append(processor.prepare(executable, index))
        self.steps = tuple(steps)

    def bind(self, inputs: Mapping[str, Array]) -> None:
        """Copy the inputs to their place; the arena is reused while running."""
        for name in self.program.inputs:
            np.copyto(self._executable.activation(name), inputs[name])
        self._move(self.program.inputs, self.processor.enqueue_in)

    def _move(self, tensors: Iterable[str], enqueue: Callable[[Buffer, Region], None]) -> None:
        program, block = self.program, self._worker.dnnl.info.block
        for tensor in tensors:
            size = size_bytes(program.shapes[tensor], program.layouts[tensor], block, program.dtype(tensor))
            enqueue(self._executable.arena, dense(program.offsets[tensor], size))

    def run(self) -> Iterator[tuple[Any, ...] | int]:
        """Run all steps on the bound inputs; return for each its launches' events, or the nanoseconds that the host took."""
        processor = self.processor
        for step, described in zip(self.steps, self.program.steps, strict=True):
            if isinstance(step, Kernel):
                yield processor.enqueue_timed(step)
                continue
            self._move(described.reads, processor.enqueue_out)
            processor.finish()
            self._worker.dnnl.set_threads(self._threads)
            start = perf_counter_ns()
            step.run()
            taken = perf_counter_ns() - start
            self._move(described.outputs, processor.enqueue_in)
            yield taken
        self._move(self.program.outputs, processor.enqueue_out)
        processor.finish()

    def outputs(self) -> dict[str, Array]:
        """Return copies of the outputs of the last run."""
        return {name: np.array(self._executable.activation(name)) for name in self.program.outputs}


class _OpenclSession(Session):
    def __init__(self, loaded: Loaded, graph: Graph) -> None:
        self._loaded = loaded
        self._inputs = random_inputs(graph)

    def run(self) -> None:
        self._loaded.bind(self._inputs)
        for _ in self._loaded.run():
            pass

    def outputs(self) -> Mapping[str, Array]:
        return self._loaded.outputs()

    def close(self) -> None:
        self._loaded.processor.close()


class _OpenclProfiledSession(_OpenclSession, ProfiledSession):
    """This session asks the device when each kernel started and ended."""

    def __init__(self, loaded: Loaded, graph: Graph) -> None:
        super().__init__(loaded, graph)
        self._nodes, self._columns = _nodes(loaded, graph)
        self._runs: list[list[int]] = []

    def run(self) -> None:
        self._loaded.bind(self._inputs)
        found = list(self._loaded.run())
        self._runs.append([one if isinstance(one, int) else sum(map(_nanoseconds, one)) for one in found])

    def profile(self, blocks: Sequence[tuple[int, int]]) -> tuple[tuple[EngineNode, ...], Times]:
        runs = np.array(self._runs, dtype=np.int64).reshape(len(self._runs), len(self._loaded.steps))[:, self._columns]
        times = np.zeros((len(blocks), len(self._nodes)))
        for row, (start, stop) in enumerate(blocks):
            times[row] = np.median(runs[start:stop], axis=0) / _NS_PER_US
        return self._nodes, times


def _nanoseconds(event: Any) -> int:
    return int(event.profile.end - event.profile.start)


def _nodes(loaded: Loaded, graph: Graph) -> tuple[tuple[EngineNode, ...], list[int]]:
    """Return the executed nodes, and the step that each is. A view, for which nothing runs, is none."""
    nodes: list[EngineNode] = []
    columns: list[int] = []
    program = loaded.program
    producers = {tensor: step for step in program.steps for tensor in step.outputs}
    for index, (step, ready) in enumerate(zip(program.steps, loaded.steps, strict=True)):
        if isinstance(ready, Kernel):
            if ready.handle == ():
                continue
            implementation = ready.implementation
        else:
            if not any(ready.converts):
                continue
            implementation = f"host.{program.choices[index].kernel}"
        layouts = [program.layouts[tensors[0]] if tensors else "" for tensors in (step.inputs, step.outputs)]
        tensor = "" if step.members else step.inputs[0]
        tensor = tensor.removesuffix(_BLOCKED)
        while tensor and tensor not in graph.tensors:  # between the steps of one operator
            tensor = producers[tensor].inputs[0]
        nodes.append(EngineNode(step.name, step.kind, implementation, step.members, tensor, *layouts))
        columns.append(index)
    return tuple(nodes), columns
