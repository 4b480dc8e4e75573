"""Plans where other processes use the cores."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from depth import MANY
from edgeplan.engines.base import random_inputs
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.background import background_load
from edgeplan.measurement.process.job import RunJob
from edgeplan.measurement.process.starts import prepared_plan, run_cold
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

LANE = "processes"  # see tests/conftest.py

LAYERS, STARTS = 24, 12 if MANY else 6
BEGIN_SECONDS = 0.5  # until a loop runs
MOST_SLOWDOWN = 10  # 50 to 100 where threads wait awake


@pytest.fixture(scope="module")
def cores() -> list[int]:
    """The two processors that the starts of this process take."""
    found = sorted(os.sched_getaffinity(0))[:2]
    if len(found) < 2:
        pytest.skip("one processor only")
    return found


@contextmanager
def busy_loops(cores: Sequence[int]) -> Iterator[None]:
    """A busy loop runs on each of some processors while the block does."""
    with ExitStack() as stack:
        for core in cores:
            stack.enter_context(background_load(core, 100))
        time.sleep(BEGIN_SECONDS)
        yield


@pytest.fixture
def graph() -> Graph:
    """Many short steps, each of which waits for the one before."""
    b = GraphBuilder("chain", (1, 8, 6, 6))
    x = b.input
    for k in range(LAYERS):
        x = b.conv(x, 8 + k % 3, 3 if k % 2 else 1)
    return b.build(b.flatten(b.gap(x)))


@pytest.fixture(scope="module")
def squeezenet(dnnl: Dnnl, planned: Callable[..., Plan], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan folder whose steps run on both cores from early on."""
    made, folder = COLD_START_MODELS["squeezenet"](), tmp_path_factory.mktemp("shared")
    model = save_onnx(made, folder / "squeezenet.onnx")
    return build_plan_folder(dnnl, model, planned(model, made, widen_from=9), folder / "plan")


@pytest.mark.long
@pytest.mark.parametrize("loops", [2, 1])
@pytest.mark.parametrize("stealing", [True, False])
def test_lanes_of_short_steps_end_beside_busy_loops(
    dnnl: Dnnl,
    planned: Callable[..., Plan],
    model: Path,
    graph: Graph,
    wanted: Mapping[str, np.ndarray],
    tmp_path: Path,
    cores: list[int],
    loops: int,
    stealing: bool,
) -> None:
    turns = ([True, False], [False, True, True], [True], [False])  # which steps the second lane prepares
    folders = [
        build_plan_folder(dnnl, model, planned(model, graph, queued=queued, widen_from=widen), tmp_path / f"{k}-{widen}")
        for k, queued in enumerate(turns)
        for widen in (0, LAYERS // 2, -1)
        if MANY or (k + widen) % 2
    ]
    inputs = random_inputs(graph)
    with busy_loops(cores[2 - loops :]):
        for number in range(STARTS):
            with open_session(folders[number % len(folders)], fixed=not stealing) as session:
                for _ in range(2):
                    found = session.run(inputs)
                    for name, value in wanted.items():
                        assert np.abs(found[name] - value).max() <= 1e-4 * np.abs(value).max()


@pytest.mark.slow  # it times: `make bench` runs it
def test_warm_runs_beside_a_busy_loop_take_their_share(squeezenet: Path, cores: list[int]) -> None:
    """Processes in turn, so that what else the machine does falls on both; the test is of an order of magnitude."""
    artefact, inputs = prepared_plan(squeezenet).artefact, {"input": (1, 3, 224, 224)}
    given = {"setting": "edgeplan", "threads": 2, "cpus": cores, "artefact": artefact, "inputs": inputs}
    job = RunJob.model_validate(given | {"state": "cached", "warm_runs": 15})
    free, loaded = list[float](), list[float]()
    for _ in range(3):
        free += run_cold(job).warm_ms
        with busy_loops(cores[1:]):
            loaded += run_cold(job).warm_ms
    assert statistics.median(loaded) < MOST_SLOWDOWN * statistics.median(free)
