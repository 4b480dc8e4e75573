"""Plans where other processes use the cores."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest

from depth import MANY, by_day
from edgeplan.chapters.cold_start.shared_cores import Starter, busy_loops, figures, measure
from edgeplan.engines.base import random_inputs
from edgeplan.engines.onednn.cold import prepared
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.child import run_cold
from edgeplan.measurement.process.job import RunJob
from edgeplan.planning.document import Plan
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

LANE = "processes"  # see tests/conftest.py

LAYERS, STARTS = 24, 12 if MANY else 6
MOST_SLOWDOWN = 10  # 50 to 100 where threads wait awake


@pytest.fixture(scope="module")
def cores() -> list[int]:
    """The two processors that the starts of this process take."""
    found = sorted(os.sched_getaffinity(0))[:2]
    if len(found) < 2:
        pytest.skip("one processor only")
    return found


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


@pytest.mark.parametrize("loops", by_day([2, 1]))
@pytest.mark.parametrize("stealing", by_day([True, False]))
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
            with ColdSession(dnnl, folders[number % len(folders)], threads=2, stealing=stealing) as session:
                for _ in range(2):
                    found = session.run(inputs)
                    for name, value in wanted.items():
                        assert np.abs(found[name] - value).max() <= 1e-4 * np.abs(value).max()


@pytest.mark.slow  # it times: `make bench` runs it
def test_warm_runs_beside_a_busy_loop_take_their_share(squeezenet: Path, cores: list[int]) -> None:
    """Processes in turn, so that what else the machine does falls on both; the test is of an order of magnitude."""
    artefact, inputs = prepared(squeezenet).artefact, {"input": (1, 3, 224, 224)}
    given = {"setting": "edgeplan", "threads": 2, "cpus": cores, "artefact": artefact, "inputs": inputs}
    job = RunJob.model_validate(given | {"state": "cached", "warm_runs": 15})
    free, loaded = list[float](), list[float]()
    for _ in range(3):
        free += run_cold(job).warm_ms
        with busy_loops(cores[1:]):
            loaded += run_cold(job).warm_ms
    assert statistics.median(loaded) < MOST_SLOWDOWN * statistics.median(free)


@pytest.mark.long
@pytest.mark.usefixtures("cores")
def test_the_bench_tells_slowdowns(squeezenet: Path) -> None:
    starters = (
        Starter("edgeplan", "edgeplan"),
        Starter("onnxruntime", "onnxruntime"),
        Starter("awake", "edgeplan", {"OMP_WAIT_POLICY": "active"}),
    )
    times = measure([squeezenet], starters, rounds=1, seconds=0)
    assert {(name, loops): len(found) for (_, name, loops), found in times.items()} == {
        **{(name, loops): 1 for name in ("edgeplan", "onnxruntime") for loops in (0, 1, 2)},
        ("awake", 0): 1,
    }
    assert min(min(found) for found in times.values()) > 0


def test_slowdowns_are_medians_over_models() -> None:
    times: dict[tuple[str, str, int], list[float]] = {}
    for model, scale in (("a", 1.0), ("b", 2.0), ("c", 3.0)):  # the last one is slowed by more, ours and theirs
        extra = 5.0 if model == "c" else 1.0
        for loops, (ours, theirs) in enumerate(((10.0, 20.0), (15.0, 20.0), (20.0, 32.0))):
            more = extra if loops else 1.0
            times[model, "edgeplan", loops] = [scale * more * ours, 1e6, scale * more * ours]
            times[model, "onnxruntime", loops] = [scale * more * theirs] * 3
        times[model, "before", 0] = [scale * 8.0, 1e6, scale * 8.0]
    assert figures(times) == {
        "pairs": 3,
        "runtime.shared_core_slowdown": 2,
        "runtime.shared_core_slowdown_over_onnxruntime": 1.25,
        "runtime.shared_core_slowdown_one_loop": 1.5,
        "runtime.shared_core_slowdown_one_loop_over_onnxruntime": 1.5,
        "free_cores_over_before": 1.25,
    }
