"""Parts of every dimension on two processors: oneDNN on one core, OpenCL on another."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from partition_models import MODELS, Saved, split_all

from edgeplan.errors import DeviceError
from edgeplan.opencl.platforms import OpenclOptions
from edgeplan.processors.onednn import OnednnProcessor
from edgeplan.processors.opencl import OpenclProcessor
from edgeplan.runtime.layouts import BLOCKED, NCHW
from edgeplan.runtime.partitioned.program import Split, partition
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
