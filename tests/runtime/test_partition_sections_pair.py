"""Parts of every dimension on two processors: oneDNN on one core, OpenCL on another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from partition_models import MODELS, Saved, split_all

from edgeplan.errors import DeviceError, ModelError
from edgeplan.opencl.platforms import OpenclOptions
from edgeplan.processors.onednn import OnednnProcessor
from edgeplan.processors.opencl import OpenclProcessor
from edgeplan.runtime.layouts import BLOCKED, NCHW
from edgeplan.runtime.partitioned.program import Split, partition, preceding
from edgeplan.runtime.partitioned.sections import Dimension
from edgeplan.runtime.partitioned.session import PairSession, Synchronisation
from edgeplan.runtime.program import activation_layouts


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[OnednnProcessor, OpenclProcessor]]:
    """Two processors on the first and the last core."""
    cores = sorted(os.sched_getaffinity(0))
    try:
        with (
            OnednnProcessor(cores[:1]) as cpu,
            OpenclProcessor(OpenclOptions(cores=tuple(cores[-1:])), cpu.dnnl.info.block) as gpu,
        ):
            yield cpu, gpu
    except DeviceError as error:
        pytest.skip(error.what)


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
    pair: tuple[OnednnProcessor, OpenclProcessor], tmp_path: Path, name: str, home: str, dimension: Dimension
) -> None:
    cpu, gpu = pair
    model = Saved(MODELS[name](), tmp_path)
    layouts = activation_layouts(model.lowered, home)
    assignments = split_all(model.lowered, home, cpu.dnnl.info.block, dimension, 0.4)
    for k, step in enumerate(model.lowered.steps):
        if gpu.refuses(model.lowered, step, layouts):
            assignments[k] = 0
        elif assignments[k] == 0:
            assignments[k] = 1
    assert sum(isinstance(a, Split) for a in assignments) > 1
    made = partition(model.lowered, layouts, cpu.dnnl.info.block, assignments)
    expected = model.whole(cpu.dnnl, home)
    with PairSession.of(cpu, gpu, made, model.path, Synchronisation.events) as session:
        session.run(model.inputs)
        found = session.run(model.inputs)
    for output, values in expected.items():
        np.testing.assert_allclose(found[output], values, rtol=1e-4, atol=1e-5 * np.abs(values).max())


def test_branches_run_side_by_side(pair: tuple[OnednnProcessor, OpenclProcessor], tmp_path: Path) -> None:
    """What is between the first and the last concat's ends in two branches, each on a processor of its own."""
    cpu, gpu = pair
    model = Saved(MODELS["images"](), tmp_path)
    layouts = activation_layouts(model.lowered, BLOCKED)
    block, steps = cpu.dnnl.info.block, model.lowered.steps
    before = preceding(model.lowered, layouts, block)
    lanes, free = [], False
    for k, step in enumerate(steps):
        free = step.kind != "concat" and any(steps[j].kind == "pool" for j in before[k]) and not free
        lanes.append(1 if free else 0)
    orders = tuple([k for k, lane in enumerate(lanes) if lane == own] for own in (0, 1))
    assert all(orders)
    made = partition(model.lowered, layouts, block, lanes, (orders[0], orders[1]))
    first = made.of(1)[0]
    assert any(made.needed[k] == 0 for k in made.of(0) if k > first), "nothing runs beside the GPU's steps"
    expected = model.whole(cpu.dnnl, BLOCKED)
    with PairSession.of(cpu, gpu, made, model.path, Synchronisation.events) as session:
        session.run(model.inputs)
        found = session.run(model.inputs)
    for output, values in expected.items():
        np.testing.assert_allclose(found[output], values, rtol=1e-4, atol=1e-5 * np.abs(values).max())


def test_a_plan_whose_orders_contradict_what_steps_read_is_refused(tmp_path: Path) -> None:
    lowered = Saved(MODELS["images"](), tmp_path).lowered
    last = len(lowered.steps) - 1
    lanes = [1 if k == last else 0 for k in range(last + 1)]
    backwards = (list(range(last))[::-1], [last])
    with pytest.raises(ModelError, match="would wait for what comes later"):
        partition(lowered, activation_layouts(lowered, BLOCKED), 8, lanes, backwards)
