"""This module holds what edgeplan asks of a processor of a pair, as tests: subclass `ProcessorContract` and name the engine.

    class TestMine(ProcessorContract):
        name = "mine"

pytest collects the tests of the class. A step that a processor refuses is run by the runtime's library in its place; plain
convolutions it may not refuse.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pytest

from edgeplan.devices.pairs import processor_class
from edgeplan.engines.base import random_inputs
from edgeplan.errors import DeviceError, EdgeplanError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.candidates import default
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Executable, Worker
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import Split, partition
from edgeplan.runtime.processor import Host, Kernel, Processor, Region, Sharing
from edgeplan.runtime.program import Program, activation_layouts, default_program, laid_out, step_candidates
from edgeplan.runtime.session import PreparedSteps
from edgeplan.runtime.weights import locate_weights
from edgeplan.testing.engines import reference_outputs, require_close

_LATER_SECONDS, _LONG_SECONDS = 0.05, 10.0
_SCRATCH_BYTES = 1 << 20  # more than a small convolution needs
_MARK = np.float32(7)  # what nobody computes


def _plain() -> Graph:
    b = GraphBuilder("plain", (1, 3, 12, 12))
    x = b.conv_bn(b.input, 24, 3, 2)
    y = b.conv_bn(x, 40, 1)
    return b.build(b.gap(b.relu(b.add(b.conv_bn(y, 24, 3, act=""), x))))


def _dense() -> Graph:
    b = GraphBuilder("dense", (1, 16, 4, 4))
    return b.build(b.fc(b.relu(b.fc(b.flatten(b.conv(b.input, 16, 1)), 40)), 24, bias=False))


def _varied() -> Graph:
    b = GraphBuilder("varied", (1, 16, 9, 9))
    x = b.conv_bn(b.conv_bn(b.input, 16, 1), 16, 3, groups=16, act="relu6")
    x = b.conv_bn(x, 32, 1, act="hswish")
    x = b.concat([b.maxpool(x, 3, 2, 1), b.avgpool(x, 3, 2, 1)])
    return b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 10)))


class ProcessorContract:
    """A contract holds a processor to its interface.

    Name is that of the engine that it is of, options are of a device file, cores of a pair file; `profiling`: it is to note
    times.
    """

    name: ClassVar[str]
    options: ClassVar[Mapping[str, str]] = MappingProxyType({})
    cores: ClassVar[tuple[int, ...]] = ()
    profiling: ClassVar[bool] = False

    def make(self) -> Processor:
        """Return a fresh processor, opened as one of a pair is; it may skip the test where the device is not there."""
        return processor_class(self.name).open(self.options, self.cores, Dnnl().info.block, profiling=self.profiling)

    @pytest.fixture
    def processor(self) -> Iterator[Processor]:
        """Open the processor, and close it afterwards."""
        with self.make() as processor:
            yield processor

    def test_says_what_it_is(self, processor: Processor) -> None:
        """Plans are for a version."""
        found = processor.capabilities
        assert found.name
        assert found.version
        assert found.units > 0
        assert found.memory_bytes > 0
        assert found.sharing in Sharing
        assert processor.here == isinstance(processor, Host)
        assert processor.numbers["block"] == Dnnl().info.block

    def test_its_dispatcher_tells_what_it_does(self, processor: Processor, tmp_path: Path) -> None:
        """The dispatcher tells from numbers alone what is refused, and the kernels and features of the rest."""
        dispatcher = processor.dispatcher(json.loads(json.dumps(dict(processor.numbers))))
        assert dispatcher.block == processor.numbers["block"]
        for graph in (_plain(), _dense(), _varied()):
            _, lowered, layouts, program = _made(graph, tmp_path)
            with Executable(Dnnl(), program, tmp_path, processor.allocate(program.arena_bytes)) as executable:
                for index, step in enumerate(lowered.steps):
                    if dispatcher.refusal(step, lowered.shapes, layouts):
                        assert processor.refuses(lowered, step, layouts)
                    elif step.kind in ("conv", "fc") and not processor.refuses(lowered, step, layouts):
                        told, kernel = dispatcher.dispatch(step, lowered.shapes, layouts), processor.prepare(executable, index)
                        assert told.implementation in ("", kernel.implementation)
                        assert tuple(told.features()) == dispatcher.features
                        assert not dispatcher.features or kernel.features == told.features()
        with pytest.raises((TypeError, ValueError)):
            processor.dispatcher({})

    @pytest.mark.parametrize("images", [1, 2])
    def test_what_the_tuning_space_holds_computes_the_same(self, processor: Processor, tmp_path: Path, images: int) -> None:
        """Each alternative of a layer computes the same as the dispatcher's own kernel."""
        b = GraphBuilder("tuned", (images, 16, 12, 12))
        graph = b.build(b.fc(b.flatten(b.gap(b.conv_bn(b.conv_bn(b.input, 32, 3), 32, 1))), 40))
        *_, program = _made(graph, tmp_path)
        dispatcher = processor.dispatcher(processor.numbers)
        spaces = {
            step.name: [*dispatcher.alternatives(step, program.shapes, program.layouts).values()]
            for step in program.steps
            if not dispatcher.refusal(step, program.shapes, program.layouts)
        }
        for number in range(max(map(len, spaces.values()))):
            processor.choose = lambda step, _shapes, _layouts, at=number: dict(enumerate(spaces[step.name])).get(at)
            require_close(_outputs(processor, program, graph, tmp_path), reference_outputs(graph), 1e-4)

    @pytest.mark.parametrize("region", [(0, 256, 1, 256), (8, 16, 3, 64), (64, 4, 48, 4)])
    def test_what_is_moved_in_and_out_is_the_same(self, processor: Processor, region: Region) -> None:
        """Bytes beside a region stay as they are, on both sides."""
        buffer = processor.allocate(256)
        buffer.data[:] = 3
        processor.enqueue_in(buffer, region)
        processor.finish()
        if processor.capabilities.sharing != Sharing.fine:
            buffer.data[:] = 5
        processor.enqueue_out(buffer, region)
        processor.finish()
        at, width, rows, pitch = region
        moved = {at + row * pitch + byte for row in range(rows) for byte in range(width)}
        beside = 3 if processor.capabilities.sharing == Sharing.fine else 5
        assert buffer.data.tolist() == [3 if byte in moved else beside for byte in range(256)]
        processor.free(buffer)

    def test_what_was_recorded_is_enqueued_again_and_again(self, processor: Processor) -> None:
        """Moves and kernels are enqueued with what memory holds then."""
        buffer, whole = processor.allocate(256), (0, 256, 1, 256)

        def enqueue_all() -> None:
            processor.enqueue_in(buffer, whole)
            processor.enqueue(processor.empty())
            processor.enqueue_out(buffer, whole)

        again = processor.recorded(enqueue_all)
        for value in range(3):
            buffer.data[:] = value
            again()
            processor.finish()
            assert (buffer.data == value).all()
        processor.free(buffer)

    def test_memory_is_zeroed_and_keeps_what_is_written(self, processor: Processor) -> None:
        """Padding of blocks relies on it."""
        first, second = processor.allocate(1000), processor.allocate(4096)
        assert len(first.data) == 1000
        assert not first.data.any()
        first.data[:] = 1
        assert not second.data.any()
        assert (first.data == 1).all()
        processor.free(first)
        processor.free(second)

    @pytest.mark.parametrize("graph", [_plain(), _dense(), _varied()], ids=lambda graph: graph.name)
    def test_steps_compute_what_the_graph_says(self, processor: Processor, graph: Graph, tmp_path: Path) -> None:
        """Steps run one after the other without waiting, in the order that they are enqueued."""
        _, lowered, layouts, program = _made(graph, tmp_path)
        refused = {step.kind for step in lowered.steps if processor.refuses(lowered, step, layouts)}
        assert "conv" not in refused or graph.name == "varied"
        for _ in range(2):
            require_close(_outputs(processor, program, graph, tmp_path), reference_outputs(graph), 1e-4)

    @pytest.mark.parametrize(("channels", "at"), [(40, 16), (24, 8), (32, 16), (36, 16)])
    def test_a_part_of_a_step_leaves_the_rest_alone(self, processor: Processor, tmp_path: Path, channels: int, at: int) -> None:
        """A part writes nothing else, also where the last block of channels is not full, as zeros fill it up."""
        b = GraphBuilder("part", (1, 16, 6, 6))
        graph = b.build(b.relu(b.conv(b.conv_bn(b.input, channels, 3), 16, 1)))
        model, dnnl = save_onnx(graph, tmp_path / "model.onnx"), Dnnl()
        lowered, block = lower(graph), dnnl.info.block
        at = max(at // block * block, block)
        layouts = activation_layouts(lowered, BLOCKED)
        parts = partition(lowered, layouts, block, (Split(at), 0))
        program = default_program(dnnl, model, graph, BLOCKED)
        choices = [default(c) for c in step_candidates(dnnl, parts.ranged.lowered, BLOCKED, parts.layouts)]
        weights = dict(locate_weights(model, lowered))
        for name, part in parts.ranged.weights.items():  # of channels, which are the first axis of all of them
            one = weights[part.whole]
            each = one.size // lowered.shapes[part.whole][part.axis]
            weights[name] = replace(one, offset=one.offset + each * part.start, size=each * (part.stop - part.start))
        split = laid_out(dnnl, parts.ranged.lowered, BLOCKED, choices, weights, parts.layouts)
        end = parts.arena_bytes
        split = replace(split, offsets=parts.offsets, scratch_offset=end, arena_bytes=end + _SCRATCH_BYTES)
        whole = lowered.steps[0].outputs[0]
        mine = next(step.outputs[0] for step in split.steps if step.outputs[0].endswith(f":{channels}]"))
        arena = processor.allocate(split.arena_bytes)
        wanted = _first_output(program, graph, tmp_path, dnnl)
        with Executable(dnnl, split, tmp_path, arena) as executable:
            index = next(k for k, step in enumerate(split.steps) if step.outputs[0] == mine)
            kernel = processor.prepare(executable, index)
            executable.bind(random_inputs(graph))
            size = 4 * 36 * -(-channels // block) * block
            place = arena.data[split.offsets[whole] :][:size].view(np.float32)
            place[:] = _MARK
            everything = (0, split.arena_bytes, 1, split.arena_bytes)
            processor.enqueue_in(arena, everything)
            processor.enqueue(kernel)
            processor.enqueue_out(arena, everything)
            processor.finish()
            found = place.copy()
        assert (found[: 36 * at] == _MARK).all()
        np.testing.assert_allclose(found[36 * at :], wanted[36 * at :], atol=1e-4 * np.abs(wanted).max())

    def test_what_it_refuses_it_does_not_prepare(self, processor: Processor, tmp_path: Path) -> None:
        """The processor says why before, and raises an error of edgeplan's own."""
        b = GraphBuilder("refused", (2, 16, 6, 6))
        graph = b.build(b.relu(b.conv_bn(b.lrn(b.input), 16, 3, groups=4)))
        _, lowered, layouts, program = _made(graph, tmp_path)
        with Executable(Dnnl(), program, tmp_path, processor.allocate(program.arena_bytes)) as executable:
            for index, step in enumerate(lowered.steps):
                if processor.refuses(lowered, step, layouts):
                    with pytest.raises(EdgeplanError):
                        processor.prepare(executable, index)
                else:
                    assert processor.prepare(executable, index).implementation

    def test_nothing_can_be_run_and_waited_for(self, processor: Processor) -> None:
        """Handing over is measured so."""
        processor.finish()
        processor.enqueue(processor.empty())
        processor.flush()
        processor.finish()

    def test_spans_are_as_many_as_kernels_or_none(self, processor: Processor) -> None:
        """Spans are in order, by the clock of the host."""
        begin = time.perf_counter_ns()
        for _ in range(3):
            processor.enqueue(processor.empty())
        processor.finish()
        spans = processor.spans()
        assert len(spans) in ((3,) if self.profiling else (0, 3))
        ends = [begin - 1_000_000, *(time for span in spans for time in span), time.perf_counter_ns() + 1_000_000]
        assert ends == sorted(ends)
        assert not processor.spans()

    def test_counters_are_seen_both_ways(self, processor: Processor) -> None:
        """A queue waits for what the host stores while it waits; processors without shared counters say so."""
        counters = processor.allocate(128)
        if not processor.capabilities.atomics:
            with pytest.raises(DeviceError):
                processor.enqueue_wait(counters.address, 1)
            with pytest.raises(DeviceError):
                processor.enqueue_signal(counters.address, 1)
            return
        words = counters.tensor(0, (32,), "int32")
        for value in (1, 2):
            processor.enqueue_wait(counters.address, value)
            processor.enqueue_signal(counters.address + 64, value)
            processor.flush()
            time.sleep(_LATER_SECONDS)
            assert words[16] == value - 1
            words[0] = value
            processor.finish()
            assert words[16] == value
        processor.enqueue_hand_over(counters.address + 64, 3, counters.address, 3)
        processor.enqueue_signal(counters.address + 64, 4)
        processor.flush()
        end = time.monotonic() + _LONG_SECONDS
        while words[16] < 3 and time.monotonic() < end:
            time.sleep(_LATER_SECONDS)
        assert words[16] == 3
        words[0] = 3
        processor.finish()
        assert words[16] == 4

    def test_waits_end_when_they_are_given_up(self, processor: Processor) -> None:
        """That is an error, and later kernels run."""
        if not processor.capabilities.atomics:
            pytest.skip("it does not wait for counters")
        counters = processor.allocate(128)
        processor.enqueue_wait(counters.address, 1)
        processor.flush()
        threading.Timer(_LATER_SECONDS, processor.give_up).start()
        with pytest.raises(EdgeplanError):
            processor.finish()
        processor.enqueue_signal(counters.address, 5)
        processor.finish()
        assert counters.tensor(0, (1,), "int32")[0] == 5

    def test_closing_twice_does_no_harm(self) -> None:
        """Whoever fails in between closes again."""
        processor = self.make()
        processor.close()
        processor.close()


def _made(graph: Graph, folder: Path) -> tuple[Path, Lowered, Mapping[str, str], Program]:
    """Return the file of a graph, its steps, their layouts, and its program."""
    model, lowered = save_onnx(graph, folder / "model.onnx"), lower(graph)
    return model, lowered, activation_layouts(lowered, BLOCKED), default_program(Dnnl(), model, graph, BLOCKED)


def _outputs(processor: Processor, program: Program, graph: Graph, folder: Path) -> dict[str, np.ndarray]:
    arena = processor.allocate(program.arena_bytes)
    with Executable(Dnnl(), program, folder, arena) as executable:
        border = (program.inputs, program.outputs)
        lowered = Lowered(program.name, program.steps, *border, program.shapes, program.types)
        worker = Worker(executable.dnnl)
        kernels = [
            PreparedSteps(executable, worker, steps=(index,))
            if processor.refuses(lowered, step, program.layouts)
            else processor.prepare(executable, index)
            for index, step in enumerate(program.steps)
        ]
        everything = (0, program.arena_bytes, 1, program.arena_bytes)
        executable.bind(random_inputs(graph))
        processor.enqueue_in(arena, everything)
        for kernel in kernels:
            if isinstance(kernel, Kernel):
                processor.enqueue(kernel)
                continue
            processor.enqueue_out(arena, everything)
            processor.finish()
            kernel.run()
            processor.enqueue_in(arena, everything)
        processor.enqueue_out(arena, everything)
        processor.flush()
        processor.finish()
        found = executable.outputs()
    processor.free(arena)
    return found


def _first_output(program: Program, graph: Graph, folder: Path, dnnl: Dnnl) -> np.ndarray:
    """Return what oneDNN's first step writes, padding included."""
    with Executable(dnnl, program, folder) as executable:
        executable.bind(random_inputs(graph))
        PreparedSteps(executable, Worker(dnnl), steps=(0,)).run()
        name = program.steps[0].outputs[0]
        channels = -(-program.shapes[name][1] // dnnl.info.block) * dnnl.info.block
        return executable.arena.data[program.offsets[name] :][: 4 * 36 * channels].view(np.float32).copy()
