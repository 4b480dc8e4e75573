"""Partitions of random graphs: what shares memory is never in use at once, and what runs computes what the graph says."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from partition_models import meshes

from depth import examples
from doubles import QueueProcessor
from edgeplan.engines.base import random_inputs
from edgeplan.engines.onednn.processor import OnednnProcessor
from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.layouts import BLOCKED, size_bytes
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import Assignment, Partitioned, Split, partition
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation
from edgeplan.runtime.program import activation_layouts, plan_buffers, shared_buffers
from edgeplan.runtime.ranges import channels_of, why_not_split
from edgeplan.testing.engines import reference_outputs, require_close

_quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])


@st.composite
def partitions(draw: st.DrawFn, graph: Graph, block: int) -> tuple[Lowered, Partitioned]:
    """A random partition."""
    lowered = lower(graph)
    layouts = activation_layouts(lowered, BLOCKED)
    assignments: list[Assignment] = []
    for step in lowered.steps:
        options: list[Assignment] = [0, 1]
        if not why_not_split(lowered, layouts, block, step):
            options += [Split(c) for c in range(block, channels_of(lowered, step), block)]
        assignments.append(draw(st.sampled_from(options)))
    return lowered, partition(lowered, layouts, block, assignments)


def _earlier(found: Partitioned) -> list[set[int]]:
    """For each sub-step those that have surely ended when it starts: its lane's before, those it waits for, and theirs."""
    lanes = [found.of(lane) for lane in (0, 1)]
    earlier: list[set[int]] = [set() for _ in found.lanes]
    for k, (lane, needed) in enumerate(zip(found.lanes, found.needed, strict=True)):
        mine = lanes[lane].index(k)
        direct = {*lanes[lane][:mine], *lanes[1 - lane][:needed]}
        assert all(j < k for j in direct), "the program's order fits both lanes"
        earlier[k] = direct.union(*(earlier[j] for j in direct))
    return earlier


@settings(_quick, max_examples=examples(120))
@given(data=st.data(), graph=meshes(), block=st.sampled_from([8, 16]))
def test_what_shares_memory_is_never_in_use_at_once(data: st.DataObject, graph: Graph, block: int) -> None:
    lowered, found = data.draw(partitions(graph, block))
    earlier, steps = _earlier(found), found.ranged.lowered.steps
    layouts = activation_layouts(lowered, BLOCKED)
    root = shared_buffers(lowered, layouts, block)

    def whole(tensor: str) -> str:
        return found.ranged.tensors[tensor].whole if tensor in found.ranged.tensors else tensor

    users: dict[str, set[int]] = {}
    spans: dict[str, tuple[int, int]] = {}
    for k, step in enumerate(steps):
        for tensor in map(whole, (*step.reads, *step.outputs)):
            users.setdefault(root[tensor], set()).add(k)
    for tensor, layout in layouts.items():
        size = size_bytes(lowered.shapes[tensor], layout, block)
        low, high = spans.get(root[tensor], (found.offsets[tensor], 0))
        spans[root[tensor]] = (low, max(high, found.offsets[tensor] + size))
        assert spans[root[tensor]][0] == found.offsets[tensor]
    assert max(high for _, high in spans.values()) <= found.arena_bytes
    given_, taken = {root[t] for t in lowered.inputs}, {root[t] for t in lowered.outputs}
    for one, other in combinations(users, 2):
        (low, high), (low_other, high_other) = spans[one], spans[other]
        if high <= low_other or high_other <= low:
            continue
        after = all(j in earlier[k] for j in users[one] for k in users[other]) and one not in taken and other not in given_
        before = all(k in earlier[j] for j in users[one] for k in users[other]) and other not in taken and one not in given_
        assert after or before, (one, other)


@settings(_quick, max_examples=examples(100))
@given(data=st.data(), graph=meshes())
def test_steps_wait_for_what_they_touch(data: st.DataObject, graph: Graph) -> None:
    """A step starts when all of the step before has ended, so what it reads is written, and what it writes over is read."""
    _, found = data.draw(partitions(graph, 8))
    earlier, origin = _earlier(found), found.ranged.origin
    for k in range(len(origin)):
        assert {j for j in range(len(origin)) if origin[j] < origin[k]} <= earlier[k]


@settings(_quick, max_examples=examples(60))
@given(data=st.data(), graph=meshes())
def test_one_after_the_other_takes_the_memory_of_the_whole(data: st.DataObject, graph: Graph) -> None:
    lowered, found = data.draw(partitions(graph, 8))
    offsets, size = plan_buffers(lowered, activation_layouts(lowered, BLOCKED), 8)
    assert found.arena_bytes == size
    assert {tensor: found.offsets[tensor] for tensor in offsets} == dict(offsets)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[OnednnProcessor, QueueProcessor]]:
    try:
        with OnednnProcessor() as cpu, QueueProcessor() as gpu:
            yield cpu, gpu
    except DeviceError as error:
        pytest.skip(error.what)


@settings(_quick, max_examples=examples(30))
@given(data=st.data(), graph=meshes(), synchronisation=st.sampled_from(Synchronisation))
def test_random_partitions_compute_what_the_graph_does(
    pair: tuple[OnednnProcessor, QueueProcessor],
    data: st.DataObject,
    graph: Graph,
    synchronisation: Synchronisation,
) -> None:
    cpu, gpu = pair
    _, found = data.draw(partitions(graph, cpu.dnnl.info.block))
    with tempfile.TemporaryDirectory() as folder:
        model = save_onnx(graph, Path(folder) / "model.onnx")
        with PairSession.of(cpu, gpu, found, model, synchronisation) as session:
            for _ in range(2):
                outputs = session.run(random_inputs(graph))
                wanted = reference_outputs(graph)
                largest = max(np.abs(value).max() for value in wanted.values())
                if np.isfinite(largest):
                    require_close(outputs, wanted, 1e-4)
