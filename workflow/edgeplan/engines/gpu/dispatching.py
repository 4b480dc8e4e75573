"""Runs a model on a processor alone that dispatches kernels of its own: f32, activations in blocks of channels.

Steps that the processor has no kernels for run on the host, through oneDNN, and their nodes say so: `host.` and its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter_ns
from types import MappingProxyType
from typing import ClassVar

import numpy as np
from msgspec.structs import replace

from edgeplan.engines.base import Array, Engine, EngineNode, EngineSettings, ProfiledSession, Session, Times, random_inputs
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.shapes import free
from edgeplan.graph.steps import Lowered, Step
from edgeplan.opencl.processor import DispatchingProcessor
from edgeplan.runtime.candidates import default
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Buffer, Executable, Worker
from edgeplan.runtime.layouts import BLOCKED, size_bytes
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import is_view, region_at
from edgeplan.runtime.processor import Kernel, Region
from edgeplan.runtime.program import Program, blocked_images, build_program, plan_buffers, step_candidates
from edgeplan.runtime.session import PreparedSteps
from edgeplan.runtime.weights import locate_weights
from edgeplan.support.scratch import ScratchFolder

_NS_PER_US = 1000.0
#: Stands behind an output in the name of what is put in row-major order for it.
_BLOCKED = ":blocked"
#: Of the times that a profiled step may be given where the run as a whole took less than its steps did one by one.
_LEAST_NS = 100.0
#: Steps that run together, and what runs them; one of the host returns its nanoseconds.
_Segment = tuple[list[int], Callable[[], object]]


class DispatchingEngine(Engine):
    """This engine is a processor that dispatches kernels of its own; threads are the host's."""

    processor: ClassVar[type[DispatchingProcessor]]
    reports_nodes = True
    counts_copies = True

    def __init__(self, settings: EngineSettings) -> None:
        super().__init__(settings)
        self._dnnl = Dnnl()
        self._program: tuple[Graph, Program, str] | None = None
        self._asked: DispatchingProcessor | None = None  # what it would run
        self._opening = Lock()
        self._references: list[_Loaded] = []

    @classmethod
    def version(cls) -> str:
        return cls.version_for(EngineSettings())

    def _opened(self, *, profiling: bool) -> DispatchingProcessor:
        return self.processor.open(self.settings.options, (), self._dnnl.info.block, profiling=profiling)

    def load(self, model: Path, graph: Graph) -> Session:
        """Load a model on a processor that is opened for it."""
        return self._loaded(model, graph)

    def load_profiled(self, model: Path, graph: Graph) -> ProfiledSession:
        """Load a model on a processor that notes when kernels begin and end."""
        return self._loaded(model, graph, profiling=True)

    def told(self, graph: Graph) -> tuple[EngineNode, ...]:
        """Return the nodes without weights and kernels, unless the processor refuses a step."""
        processor = self._told()
        lowered, block = _blocked_convolutions(lower(graph, eight_bits=False)), self._dnnl.info.block
        layouts = blocked_images(lowered)
        if any(processor.refuses(lowered, step, layouts) for step in lowered.steps):
            return super().told(graph)
        offsets, _ = plan_buffers(lowered, layouts, block)
        views = [is_view(step, lowered.shapes, layouts, offsets, block) for step in lowered.steps]
        return tuple(
            _node(step, "", lowered.steps, layouts, graph) for step, view in zip(lowered.steps, views, strict=True) if not view
        )

    def _told(self) -> DispatchingProcessor:
        with self._opening:
            self._asked = self._asked or self._opened(profiling=False)
            return self._asked

    def reference_loads(self) -> tuple[Callable[[], None], Callable[[], None]]:
        """Return two loads of the processor: a convolution follows its clock, an activation of 16 MB its memory."""
        if not self._references:
            loads = []
            with ScratchFolder("references") as folder:
                for number, graph in enumerate(_reference_graphs()):
                    path = save_onnx(graph, Path(folder) / f"{number}.onnx")
                    loads.append(self._loaded(path, graph, moved=False))
                    loads[-1].bind()
            self._references = loads
        first, second = self._references
        return first.execute, second.execute

    def _loaded(self, model: Path, graph: Graph, *, profiling: bool = False, moved: bool = True) -> _Loaded:
        known = self._program  # one of another thread is as good
        if known is None or known[0] is not graph or known[2] != model.name:  # a program names its file
            known = self._program = graph, program_of(self._dnnl, model, graph, self.settings.threads), model.name
        processor, threads = self._opened(profiling=profiling), self.settings.threads
        try:
            return _Loaded(self._dnnl, known[1], model.parent, processor, threads, graph, profiling=profiling, moved=moved)
        except BaseException:
            processor.close()
            raise


def _reference_graphs() -> tuple[Graph, Graph]:
    b = GraphBuilder("compute", (1, 128, 28, 28))
    compute = b.build(b.conv(b.input, 128, 3))
    b = GraphBuilder("bandwidth", (1, 256, 128, 128))
    return compute, b.build(b.relu(b.input))


def program_of(dnnl: Dnnl, model: Path, graph: Graph, threads: int) -> Program:
    """Build the program of a model with activations in blocks; the host computes its steps on so many threads."""
    lowered = _blocked_convolutions(lower(graph, eight_bits=False))
    dnnl.set_threads(threads)
    layouts = blocked_images(lowered)
    choices = [default(offered) for offered in step_candidates(dnnl, lowered, BLOCKED, layouts)]
    return build_program(dnnl, lowered, BLOCKED, choices, locate_weights(model, lowered), threads, layouts)


def _blocked_convolutions(lowered: Lowered) -> Lowered:
    """Let convolutions write blocks where the model ends, too; a copy behind them makes the outputs row-major."""
    ends = {step.outputs[0] for step in lowered.steps if step.kind == "conv"} & set(lowered.outputs)
    names = {tensor: free(f"{tensor}{_BLOCKED}", lowered.shapes) for tensor in ends}
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


class _Loaded(ProfiledSession):
    """A loaded program is prepared whole on a processor, which is closed with it; the host runs what the processor refuses.

    Kernels between two steps of the host are a segment, which is recorded and enqueued at once. With `profiling` the processor
    notes when kernels begin and end. If `moved`, a run moves inputs to the processor and outputs back, as one of a user does.
    """

    def __init__(
        self, dnnl: Dnnl, program: Program, folder: Path, processor: DispatchingProcessor, threads: int, graph: Graph,
        *, profiling: bool, moved: bool,
    ) -> None:  # fmt: skip
        self.program, self.processor = program, processor
        self._threads, self._moved, self._profiling = threads, moved, profiling
        self._graph, self._inputs = graph, random_inputs(graph)
        self._times: list[list[float]] = []  # of each run, of its steps
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
        self._joined = self._runs(lambda kernels: [processor.joined(kernels)] if profiling and kernels else kernels)
        self._apart = self._runs(lambda kernels: kernels) if profiling else self._joined

    def _runs(self, of: Callable[[list[Kernel]], list[Kernel]]) -> list[_Segment]:
        """Return what runs, in order: recorded segments, and between two of them a step of the host."""
        program, found, kernels, indices = self.program, list[_Segment](), list[Kernel](), list[int]()
        incoming: tuple[str, ...] = program.inputs if self._moved else ()
        for index, (step, described) in enumerate(zip(self.steps, program.steps, strict=True)):
            if isinstance(step, Kernel):
                if step.handle:  # a view, for which nothing runs, is in none
                    kernels.append(step)
                    indices.append(index)
                continue
            segment = self._recorded(incoming, of(kernels), described.reads)
            found += [(indices, segment), ([index], partial(self._on_host, step))]
            incoming, kernels, indices = described.outputs, [], []
        return [*found, (indices, self._recorded(incoming, of(kernels), program.outputs if self._moved else ()))]

    def _recorded(self, incoming: Iterable[str], kernels: list[Kernel], outgoing: Iterable[str]) -> Callable[[], object]:
        processor, incoming, outgoing = self.processor, tuple(incoming), tuple(outgoing)

        def enqueue_all() -> None:
            self._move(incoming, processor.enqueue_in)
            for kernel in kernels:
                processor.enqueue(kernel)
            self._move(outgoing, processor.enqueue_out)

        enqueue = processor.recorded(enqueue_all)

        def run() -> None:
            enqueue()
            processor.finish()

        return run

    def _on_host(self, step: PreparedSteps) -> int:
        self._worker.dnnl.set_threads(self._threads)
        start = perf_counter_ns()
        step.run()
        return perf_counter_ns() - start

    def bind(self) -> None:
        """Copy the inputs to their place; the arena is reused while running."""
        for name in self.program.inputs:
            np.copyto(self._executable.activation(name), self._inputs[name])
        if not self._moved:
            self._move(self.program.inputs, self.processor.enqueue_in)

    def _move(self, tensors: Iterable[str], enqueue: Callable[[Buffer, Region], None]) -> None:
        program, block = self.program, self._worker.dnnl.info.block
        for tensor in tensors:
            size = size_bytes(program.shapes[tensor], program.layouts[tensor], block, program.dtype(tensor))
            enqueue(self._executable.arena, region_at(program.offsets[tensor], size))

    def run(self) -> None:
        if self._profiling:
            self._times.append(self._timed())
        else:
            self.bind()
            self.execute()

    def execute(self) -> None:
        """Run all steps on the bound inputs."""
        for _, run in self._joined:
            run()

    def _timed(self) -> list[float]:
        """Run all steps twice, and return the nanoseconds of each.

        To mark where a step ends takes time of its own. So the steps of a segment are run once more with marks around them all,
        and the difference is shared out among them: together they take what they take unmarked.
        """
        found = [0.0] * len(self.steps)
        self.bind()
        apart = self._noted(self._apart)
        self.bind()
        joined = self._noted(self._joined)
        for (indices, _), marked, whole in zip(self._apart, apart, joined, strict=True):
            if isinstance(marked, int):
                found[indices[0]] = float(marked)
                continue
            assert not isinstance(whole, int)  # noqa: S101  the same segments
            one_by_one, together = (sum(end - begin for begin, end in spans) for spans in (marked, whole))
            beyond = (one_by_one - together) / max(1, len(indices))
            for index, (begin, end) in zip(indices, marked, strict=True):
                found[index] = max(_LEAST_NS, end - begin - beyond)
        return found

    def _noted(self, segments: Sequence[_Segment]) -> list[int | Sequence[tuple[int, int]]]:
        found: list[int | Sequence[tuple[int, int]]] = []
        for _, run in segments:
            taken = run()
            found.append(taken if isinstance(taken, int) else self.processor.spans())
        return found

    def outputs(self) -> Mapping[str, Array]:
        return {name: np.array(self._executable.activation(name)) for name in self.program.outputs}

    def profile(self, blocks: Sequence[tuple[int, int]]) -> tuple[tuple[EngineNode, ...], Times]:
        nodes, columns = self._nodes()
        runs = np.array(self._times).reshape(len(self._times), len(self.steps))[:, columns]
        times = np.zeros((len(blocks), len(nodes)))
        for row, (start, stop) in enumerate(blocks):
            times[row] = np.median(runs[start:stop], axis=0) / _NS_PER_US
        return nodes, times

    def _nodes(self) -> tuple[tuple[EngineNode, ...], list[int]]:
        """Return the executed nodes, and the step that each is. A view, for which nothing runs, is none."""
        nodes: list[EngineNode] = []
        columns: list[int] = []
        program = self.program
        for index, (step, ready) in enumerate(zip(program.steps, self.steps, strict=True)):
            if isinstance(ready, Kernel):
                if ready.handle == ():
                    continue
                implementation = ready.implementation
            else:
                if not any(ready.converts):
                    continue
                implementation = f"host.{program.choices[index].kernel}"
            nodes.append(_node(step, implementation, program.steps, program.layouts, self._graph))
            columns.append(index)
        return tuple(nodes), columns

    def close(self) -> None:
        """Close the processor, which frees all that was loaded."""
        self._joined, self._apart = [], []
        self.processor.close()


def _node(step: Step, implementation: str, steps: Sequence[Step], layouts: Mapping[str, str], graph: Graph) -> EngineNode:
    before, after = (layouts[tensors[0]] if tensors else "" for tensors in (step.inputs, step.outputs))
    tensor = "" if step.members else step.inputs[0]
    if tensor not in graph.tensors:
        tensor = tensor.rpartition(_BLOCKED)[0] or tensor
    while tensor and tensor not in graph.tensors:  # between the steps of one operator
        tensor = next(other for other in steps if tensor in other.outputs).inputs[0]
    return EngineNode(step.name, step.kind, implementation, step.members, tensor, before, after)
