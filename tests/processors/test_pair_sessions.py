"""Partitions that run on two processors: what they compute and move, how they synchronise, and what becomes of faults."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import numpy as np
import pytest
from models import drawn, saved, vgg
from partition_models import images

from depth import by_day, some
from doubles import QueueProcessor
from edgeplan.engines.base import random_inputs
from edgeplan.engines.gpu.opencl import OpenclProcessor
from edgeplan.engines.onednn.processor import OnednnProcessor
from edgeplan.engines.onnxruntime.reference import onnxruntime_reference
from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.opencl.platforms import OpenclOptions
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import Partitioned, Split, _strided, crossings, partition
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation, handshake, synchronisation_of
from edgeplan.runtime.processor import Processor, Region, Sharing
from edgeplan.runtime.program import activation_layouts
from edgeplan.runtime.ranges import why_not_split
from edgeplan.testing.engines import require_close

CORES = sorted(os.sched_getaffinity(0))
ALONE = pytest.mark.skipif(len(CORES) < 2, reason="two processors need a core each")
MODELS = ("images", "vgg", "linear_layers")


@pytest.fixture(scope="module")
def opencl() -> Iterator[OpenclProcessor]:
    try:
        with OpenclProcessor(OpenclOptions(cores=tuple(CORES[-1:])), Dnnl().info.block, profiling=True) as found:
            yield found
    except DeviceError as error:
        pytest.skip(error.what)


@pytest.fixture
def cpu() -> Iterator[OnednnProcessor]:
    with OnednnProcessor(CORES[:1]) as found:
        yield found


def _partition(graph: Graph, block: int, gpu: Processor, seed: str, split: float = 0.6) -> Partitioned:
    lowered = lower(graph)
    layouts = activation_layouts(lowered, BLOCKED)
    return partition(
        lowered, layouts, block, drawn(lowered, layouts, block, gpu, np.random.default_rng([*seed.encode()]), split)
    )


@ALONE
@pytest.mark.parametrize("synchronisation", Synchronisation)
@pytest.mark.parametrize("name", MODELS)
def test_random_partitions_compute_what_the_model_does(
    cpu: OnednnProcessor, opencl: OpenclProcessor, tmp_path: Path, name: str, synchronisation: Synchronisation
) -> None:
    model, graph = saved(name, tmp_path)
    inputs = random_inputs(graph)
    wanted = onnxruntime_reference(model, inputs)
    for seed in some(range(3), name + synchronisation):
        partitioned = _partition(graph, cpu.dnnl.info.block, opencl, f"{name}/{seed}", 0.6 + 0.2 * seed)
        with PairSession.of(cpu, opencl, partitioned, model, synchronisation) as session:
            for _ in range(3):
                require_close(session.run(inputs), wanted, 1e-4)
            assert (session.times[:, 0] <= session.times[:, 1]).all()
            for lane in (0, 1):  # one after the other on each lane
                ends = session.times[list(partitioned.of(lane))].ravel()
                assert (np.diff(ends) >= -1_000_000).all()


@pytest.mark.parametrize("sharing", list(Sharing))
@pytest.mark.parametrize("synchronisation", by_day([*Synchronisation]))
@pytest.mark.parametrize("name", MODELS)
def test_halves_have_the_bits_of_the_whole(
    cpu: OnednnProcessor, tmp_path: Path, name: str, synchronisation: Synchronisation, sharing: Sharing
) -> None:
    """Both halves by oneDNN: a range of channels is computed as it is in the whole. Rows of columns take another primitive.

    Where each processor has its own copy of the activations, nothing that crosses may be left behind.
    """
    model, graph = saved(name, tmp_path)
    lowered, block, inputs = lower(graph), cpu.dnnl.info.block, random_inputs(graph)
    layouts = activation_layouts(lowered, BLOCKED)
    with QueueProcessor(sharing=sharing) as gpu:
        alone = partition(lowered, layouts, block, [0] * len(lowered.steps))
        with PairSession.of(cpu, gpu, alone, model, synchronisation) as session:
            wanted = session.run(inputs)
        for seed in range(2):
            partitioned = _partition(graph, block, gpu, f"{name}/bits/{seed}", 0.8)
            with PairSession.of(cpu, gpu, partitioned, model, synchronisation) as session:
                found = session.run(inputs)
            for output, value in wanted.items():
                if name != "vgg":
                    np.testing.assert_allclose(found[output], value, atol=1e-5 * np.abs(value).max())
                else:
                    np.testing.assert_array_equal(found[output], value)


def test_a_second_processor_that_shares_no_memory_at_once_is_waited_for_by_events(cpu: OnednnProcessor) -> None:
    core = cpu.capabilities.cores[0]
    cases = [
        (QueueProcessor(), Synchronisation.polling, "no core computes for both"),
        (QueueProcessor(sharing=Sharing.mirrored), Synchronisation.polling, "no core computes for both"),
        (QueueProcessor(sharing=Sharing.mirrored, atomics=False), Synchronisation.events, "do not see the CPU's stores"),
        (QueueProcessor(atomics=False), Synchronisation.events, "do not see the CPU's stores"),
        (QueueProcessor(cores=(core,)), Synchronisation.events, f"both compute on core {core}"),
    ]
    for gpu, wanted, why in cases:
        with gpu:
            found, said = synchronisation_of(cpu, gpu)
            assert (found, why in said) == (wanted, True), said


def test_polling_is_refused_where_it_cannot_be(cpu: OnednnProcessor, tmp_path: Path) -> None:
    model, graph = saved("vgg", tmp_path)
    with QueueProcessor(cores=cpu.capabilities.cores) as gpu:
        partitioned = _partition(graph, cpu.dnnl.info.block, gpu, "refused")
        with pytest.raises(DeviceError, match="the pair cannot poll: both compute on core"):
            PairSession.of(cpu, gpu, partitioned, model, Synchronisation.polling)
        with pytest.raises(DeviceError, match="the pair cannot poll: both compute on core"):
            handshake(cpu, gpu, Synchronisation.polling)
        with PairSession.of(cpu, gpu, partitioned, model) as session:
            assert session.synchronisation == Synchronisation.events
            require_close(session.run(random_inputs(graph)), onnxruntime_reference(model, random_inputs(graph)), 1e-4)


@pytest.mark.parametrize("synchronisation", Synchronisation)
def test_a_processor_that_stops_ends_in_an_error(
    cpu: OnednnProcessor, tmp_path: Path, synchronisation: Synchronisation
) -> None:
    """Within the limit of a wait and what finishing takes; it can be closed; another one runs, and frees its memory."""
    model, graph = saved("vgg", tmp_path)
    inputs = random_inputs(graph)
    with QueueProcessor(hangs_before=4, limit_seconds=0.5) as gpu:
        partitioned = _partition(graph, cpu.dnnl.info.block, gpu, "hang", 1.0)
        with PairSession.of(cpu, gpu, partitioned, model, synchronisation, limit_seconds=0.5) as session:
            begin = monotonic()
            with pytest.raises(DeviceError, match=r"did not come within 0\.5 s|does not answer"):
                session.run(inputs)
            assert monotonic() - begin < 10  # not for ever
            with pytest.raises(DeviceError, match="failed in an earlier run"):
                session.run(inputs)
        with pytest.raises(DeviceError, match="was closed"):
            session.run(inputs)
    with QueueProcessor() as gpu:
        with PairSession.of(cpu, gpu, partitioned, model, synchronisation) as session:
            assert gpu.memory
            require_close(session.run(inputs), onnxruntime_reference(model, inputs), 1e-4)
        assert not gpu.memory


@pytest.mark.parametrize("synchronisation", Synchronisation)
def test_a_kernel_that_fails_ends_in_an_error(cpu: OnednnProcessor, tmp_path: Path, synchronisation: Synchronisation) -> None:
    """The processor itself works on: the next session on it runs."""
    model, graph = saved("vgg", tmp_path)
    with QueueProcessor(fails_before=3) as gpu:
        partitioned = _partition(graph, cpu.dnnl.info.block, gpu, "fault", 1.0)
        session = PairSession.of(cpu, gpu, partitioned, model, synchronisation)
        with session, pytest.raises(DeviceError, match="the double failed: out of order"):
            session.run(random_inputs(graph))
        with PairSession.of(cpu, gpu, partitioned, model, synchronisation) as session:
            require_close(session.run(random_inputs(graph)), onnxruntime_reference(model, random_inputs(graph)), 1e-4)


def test_a_slow_processor_is_waited_for(cpu: OnednnProcessor, tmp_path: Path) -> None:
    """Also asleep: 30 ms are longer than the CPU's lane stays awake."""
    model, graph = saved("images", tmp_path)
    with QueueProcessor(pause_seconds=0.03) as gpu:
        partitioned = _partition(graph, cpu.dnnl.info.block, gpu, "slow")
        with PairSession.of(cpu, gpu, partitioned, model, Synchronisation.polling) as session:
            require_close(session.run(random_inputs(graph)), onnxruntime_reference(model, random_inputs(graph)), 1e-4)


def test_steps_that_cannot_be_split_say_why(cpu: OnednnProcessor) -> None:
    lowered, block = lower(images()), cpu.dnnl.info.block
    for home, wanted in ((BLOCKED, "depthwise"), ("nhwc", "its output is not dense by channels")):
        layouts = activation_layouts(lowered, home)
        said = {why_not_split(lowered, layouts, block, step) for step in lowered.steps}
        assert {wanted, "neither a convolution nor a linear layer"} <= said
    (step,) = [s for s in lowered.steps if s.kind == "conv" and s.integer("groups") > 1][:1]
    with pytest.raises(ModelError, match="cannot be cut over its channels: depthwise"):
        partition(
            lowered, activation_layouts(lowered, BLOCKED), block, [Split(block) if s is step else 0 for s in lowered.steps]
        )


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ([Split(0)], "not between 0 and 24"),
        ([Split(24)], "not between 0"),
        ([Split(12)], "not at multiples of"),
        ([], r"(\d+) assignments for (?!\1)\d+ steps"),
    ],
)
def test_splits_elsewhere_and_plans_of_another_model_are_refused(cpu: OnednnProcessor, last: list[Split], message: str) -> None:
    lowered = lower(vgg())
    assignments = [*[1] * (len(lowered.steps) - 1), *last]
    with pytest.raises(ModelError, match=message):
        partition(lowered, activation_layouts(lowered, BLOCKED), cpu.dnnl.info.block, assignments)


def test_a_handshake_is_measured(cpu: OnednnProcessor) -> None:
    with QueueProcessor() as gpu:
        for synchronisation in Synchronisation:
            found = handshake(cpu, gpu, synchronisation, runs=3, steps=4)
            assert 0 < found.least_us <= found.median_us
        assert not gpu.memory


@ALONE
@pytest.mark.parametrize("synchronisation", Synchronisation)
def test_a_wrong_index_ends_the_waits_of_the_gpu(
    cpu: OnednnProcessor, opencl: OpenclProcessor, tmp_path: Path, synchronisation: Synchronisation
) -> None:
    """The CPU's lane stops while kernels wait for it; with right inputs the session runs on."""
    model, graph = saved("embedding", tmp_path)
    lowered, block = lower(graph), cpu.dnnl.info.block
    assignments = [1 if step.kind == "fc" else 0 for step in lowered.steps]
    assert 1 in assignments
    partitioned = partition(lowered, activation_layouts(lowered, BLOCKED), block, assignments)
    with PairSession.of(cpu, opencl, partitioned, model, synchronisation) as session:
        for _ in range(2):
            begin = monotonic()
            with pytest.raises(ModelError, match="an index lies outside the axis"):
                session.run({"which": np.array([1, 2, 3, 99])})
            assert monotonic() - begin < 10  # not the limit of a wait
            which = np.array([1, 2, 3, -1])
            require_close(session.run({"which": which}), onnxruntime_reference(model, {"which": which}), 1e-4)


_BLOCK = 16


def _graph() -> Graph:
    b = GraphBuilder("crossing", (1, 16, 8, 8))
    x = b.conv_bn(b.input, 32, 3)
    return b.build(b.gap(b.conv_bn(b.conv_bn(x, 32, 1), 32, 1)))


def _bytes(moves: tuple[tuple[Region, ...], ...]) -> list[int]:
    return [sum(width * rows for _, width, rows, _ in regions) for regions in moves]


@pytest.mark.parametrize(
    ("assigned", "moved_in", "moved_out"),
    [
        ([0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]),
        ([1, 1, 1, 1], [4096, 0, 0, 0], [0, 0, 0, 128]),  # the input, and the output
        ([0, 1, 1, 0], [0, 8192, 0, 0], [0, 0, 8192, 0]),
        ([1, 0, 1, 1], [4096, 0, 8192, 0], [8192, 0, 0, 128]),
        # of halves the other's comes in, one's own goes out; both are dense
        ([Split(16), Split(16), Split(16), 1], [4096, 4096, 4096, 4096], [4096, 4096, 0, 128]),
    ],
)
def test_what_one_writes_and_the_other_reads_is_moved(
    assigned: list[int | Split], moved_in: list[int], moved_out: list[int]
) -> None:
    lowered = lower(_graph())
    made = partition(lowered, activation_layouts(lowered, BLOCKED), _BLOCK, assigned)
    halves = len(made.lanes) > len(assigned)
    found = [
        [size for size, lane in zip(_bytes(one), made.lanes, strict=True) if lane or not halves]
        for one in crossings(made, _BLOCK)
    ]
    assert found == [moved_in, moved_out]


def test_strides_become_rows() -> None:
    """A region for each place of the axes before; what follows each other is one row."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        shape = tuple(int(n) for n in rng.integers(1, 4, 4))
        whole = tuple(int(n + rng.integers(0, 3)) for n in shape)
        strides = tuple(int(np.prod(whole[axis + 1 :])) for axis in range(4))
        touched = np.zeros(whole, bool)
        touched[tuple(slice(0, n) for n in shape)] = True
        found = np.zeros(touched.size * 4, bool)
        for at, width, rows, pitch in _strided(0, 4, shape, strides):
            for row in range(rows):
                assert not found[at + row * pitch : at + row * pitch + width].any(), "moved twice"
                found[at + row * pitch : at + row * pitch + width] = True
        assert (found.reshape(-1, 4).all(axis=1) == touched.ravel()).all()
