"""Partitions that run on two processors: what they compute and move, how they synchronise, and what becomes of faults."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest
from partition_models import MODELS, Saved, split_all
from streamed_models import plain_model

from depth import by_day, some
from doubles import QueueProcessor
from edgeplan.engines.gpu.opencl import OpenclProcessor
from edgeplan.engines.onednn.processor import OnednnProcessor
from edgeplan.engines.onnxruntime.reference import onnxruntime_reference
from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.opencl.platforms import OpenclOptions
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED, NCHW
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import Assignment, Partitioned, Split, _strided, crossings, partition
from edgeplan.runtime.partitioned.sections import Dimension
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation, handshake, synchronisation_of
from edgeplan.runtime.processor import Processor, Region, Sharing
from edgeplan.runtime.program import activation_layouts
from edgeplan.runtime.ranges import channels_of, why_not_split
from edgeplan.testing.engines import require_close
from edgeplan.workloads.exported import ExportBuilder, Exported

CORES = sorted(os.sched_getaffinity(0))
ALONE = pytest.mark.skipif(len(CORES) < 2, reason="two processors need a core each")
NAMES = ("images", "plain", "attention of one")
Models = Callable[[str], Saved]


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


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return cache(lambda name: Saved({"plain": plain_model, **MODELS}[name](), tmp_path_factory.mktemp("model")))


def _partition(model: Saved, block: int, gpu: Processor, seed: str, split: float = 0.6) -> Partitioned:
    """Where each step runs: at random, but for what the second processor refuses."""
    lowered, rng = model.lowered, np.random.default_rng([*seed.encode()])
    layouts = activation_layouts(lowered, BLOCKED)
    found: list[Assignment] = []
    for step in lowered.steps:
        if gpu.refuses(lowered, step, layouts):
            found.append(0)
        elif not why_not_split(lowered, layouts, block, step) and rng.random() < split:
            found.append(Split(int(rng.choice(range(block, channels_of(lowered, step), block)))))
        else:
            found.append(int(rng.integers(2)))
    return partition(lowered, layouts, block, found)


def _require(session: PairSession, model: Saved) -> None:
    require_close(session.run(model.inputs), onnxruntime_reference(model.path, model.inputs), 1e-4)


@ALONE
@pytest.mark.parametrize("synchronisation", Synchronisation)
@pytest.mark.parametrize("name", NAMES)
def test_random_partitions_compute_what_the_model_does(
    cpu: OnednnProcessor, opencl: OpenclProcessor, models: Models, name: str, synchronisation: Synchronisation
) -> None:
    for seed in some(range(3), name + synchronisation):
        partitioned = _partition(models(name), cpu.dnnl.info.block, opencl, f"{name}/{seed}", 0.6 + 0.2 * seed)
        with PairSession.of(cpu, opencl, partitioned, models(name).path, synchronisation) as session:
            for _ in range(3):
                _require(session, models(name))
            assert (session.times[:, 0] <= session.times[:, 1]).all()
            for lane in (0, 1):  # one after the other on each lane
                ends = session.times[list(partitioned.of(lane))].ravel()
                assert (np.diff(ends) >= -1_000_000).all()


@ALONE
@pytest.mark.parametrize(
    ("name", "home", "dimension"),
    [
        ("images", BLOCKED, Dimension.rows),
        ("images", BLOCKED, Dimension.elements),
        ("three of them", BLOCKED, Dimension.batch),
        ("three of them", BLOCKED, Dimension.rows),
        ("attention", NCHW, Dimension.batch),
        ("attention", NCHW, Dimension.rows),
        ("attention", NCHW, Dimension.channels),
    ],
)
def test_both_processors_compute_parts_of_a_step(
    cpu: OnednnProcessor, opencl: OpenclProcessor, models: Models, name: str, home: str, dimension: Dimension
) -> None:
    model, block = models(name), cpu.dnnl.info.block
    layouts = activation_layouts(model.lowered, home)
    assignments = split_all(model.lowered, home, block, dimension, 0.4)
    for k, step in enumerate(model.lowered.steps):
        if opencl.refuses(model.lowered, step, layouts):
            assignments[k] = 0
        elif assignments[k] == 0:
            assignments[k] = 1
    assert sum(isinstance(a, Split) for a in assignments) > 1
    made = partition(model.lowered, layouts, block, assignments)
    with PairSession.of(cpu, opencl, made, model.path, Synchronisation.events) as session:
        for _ in range(2):
            _require(session, model)


@pytest.mark.parametrize("sharing", list(Sharing))
@pytest.mark.parametrize("synchronisation", by_day([*Synchronisation]))
@pytest.mark.parametrize("name", NAMES)
def test_halves_have_the_bits_of_the_whole(
    cpu: OnednnProcessor, models: Models, name: str, synchronisation: Synchronisation, sharing: Sharing
) -> None:
    """Both halves by oneDNN: a range of channels is computed as it is in the whole. Rows of columns take another primitive.

    Where each processor has its own copy of the activations, nothing that crosses may be left behind.
    """
    model, block = models(name), cpu.dnnl.info.block
    with QueueProcessor(sharing=sharing) as gpu:
        alone = partition(model.lowered, activation_layouts(model.lowered, BLOCKED), block, [0] * len(model.lowered.steps))
        with PairSession.of(cpu, gpu, alone, model.path, synchronisation) as session:
            wanted = session.run(model.inputs)
        for seed in range(2):
            partitioned = _partition(model, block, gpu, f"{name}/bits/{seed}", 0.8)
            with PairSession.of(cpu, gpu, partitioned, model.path, synchronisation) as session:
                found = session.run(model.inputs)
            for output, value in wanted.items():
                if name != "plain":
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


def test_polling_is_refused_where_it_cannot_be(cpu: OnednnProcessor, models: Models) -> None:
    with QueueProcessor(cores=cpu.capabilities.cores) as gpu:
        given = cpu, gpu, _partition(models("plain"), cpu.dnnl.info.block, gpu, "refused"), models("plain").path
        with pytest.raises(DeviceError, match="the pair cannot poll: both compute on core"):
            PairSession.of(*given, Synchronisation.polling)
        with pytest.raises(DeviceError, match="the pair cannot poll: both compute on core"):
            handshake(cpu, gpu, Synchronisation.polling)
        with PairSession.of(*given) as session:
            assert session.synchronisation == Synchronisation.events
            _require(session, models("plain"))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ({"hangs_before": 4, "limit_seconds": 0.5}, r"did not come within 0\.5 s|does not answer"),
        ({"fails_before": 3}, "the double failed: out of order"),
    ],
)
@pytest.mark.parametrize("synchronisation", Synchronisation)
def test_a_processor_that_stops_or_fails_ends_in_an_error(
    cpu: OnednnProcessor, models: Models, synchronisation: Synchronisation, fault: dict[str, Any], message: str
) -> None:
    """Within the limit of a wait and what finishing takes. It can be closed, and works on where it does not hang.

    Another one runs, and frees its memory.
    """
    model = models("plain")
    with QueueProcessor(**fault) as gpu:
        given = _partition(model, cpu.dnnl.info.block, gpu, "fault", 1.0), model.path, synchronisation
        with PairSession.of(cpu, gpu, *given, limit_seconds=0.5) as session:
            begin = monotonic()
            with pytest.raises(DeviceError, match=message):
                session.run(model.inputs)
            assert monotonic() - begin < 10  # not for ever
            with pytest.raises(DeviceError, match="failed in an earlier run"):
                session.run(model.inputs)
        with pytest.raises(DeviceError, match="was closed"):
            session.run(model.inputs)
        if "fails_before" in fault:
            with PairSession.of(cpu, gpu, *given) as session:
                _require(session, model)
    with QueueProcessor() as gpu:
        with PairSession.of(cpu, gpu, *given) as session:
            assert gpu.memory
            _require(session, model)
        assert not gpu.memory


def test_a_slow_processor_is_waited_for(cpu: OnednnProcessor, models: Models) -> None:
    """Also asleep: 30 ms are longer than the CPU's lane stays awake."""
    with QueueProcessor(pause_seconds=0.03) as gpu:
        partitioned = _partition(models("images"), cpu.dnnl.info.block, gpu, "slow")
        with PairSession.of(cpu, gpu, partitioned, models("images").path, Synchronisation.polling) as session:
            _require(session, models("images"))


def test_a_handshake_is_measured(cpu: OnednnProcessor) -> None:
    with QueueProcessor() as gpu:
        for synchronisation in Synchronisation:
            found = handshake(cpu, gpu, synchronisation, runs=3, steps=4)
            assert 0 < found.least_us <= found.median_us
        assert not gpu.memory


def _embedding() -> Exported:
    """Rows of a table, picked by indices, and a linear layer of them; the table is handed out, too."""
    b = ExportBuilder("embedding")
    table = b.weight("table", (10, 24), 1.0)
    rows = b.node("Gather", [table, b.input("which", (4,), 7)])
    return b.build({"known": b.node("Identity", [table]), "y": b.node("MatMul", [rows, b.matrix("weight", 24, 40)])})


@ALONE
@pytest.mark.parametrize("synchronisation", Synchronisation)
def test_a_wrong_index_ends_the_waits_of_the_gpu(
    cpu: OnednnProcessor, opencl: OpenclProcessor, tmp_path: Path, synchronisation: Synchronisation
) -> None:
    """The CPU's lane stops while kernels wait for it; with right inputs the session runs on."""
    model = Saved(_embedding(), tmp_path)
    assignments = [1 if step.kind == "fc" else 0 for step in model.lowered.steps]
    assert 1 in assignments
    layouts = activation_layouts(model.lowered, BLOCKED)
    partitioned = partition(model.lowered, layouts, cpu.dnnl.info.block, assignments)
    with PairSession.of(cpu, opencl, partitioned, model.path, synchronisation) as session:
        for _ in range(2):
            begin = monotonic()
            with pytest.raises(ModelError, match="an index lies outside the axis"):
                session.run({"which": np.array([1, 2, 3, 99])})
            assert monotonic() - begin < 10  # not the limit of a wait
            which = {"which": np.array([1, 2, 3, -1])}
            require_close(session.run(which), onnxruntime_reference(model.path, which), 1e-4)


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
