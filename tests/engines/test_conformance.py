"""Every engine is held to the suite that other packages use, and to the carriers that kernels are measured in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import pytest

from edgeplan.chapters.prediction.sampling import carriers
from edgeplan.chapters.prediction.sampling.further import further_graphs
from edgeplan.chapters.prediction.sampling.prior import ConvShape
from edgeplan.chapters.prediction.sampling.sources import ConvSource
from edgeplan.engines.base import Engine
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import make_kernel
from edgeplan.graph.simplify import simplify
from edgeplan.testing.engines import EngineContract, executed, outputs_of, reference_outputs, require_close, require_mapped


class TestEngines(EngineContract):
    """With the fixture `engine` of `conftest.py`, which takes each."""

    @pytest.fixture
    def engine(self, each_engine: Engine) -> Engine:
        return each_engine


class _SmallSource(ConvSource):
    """Small convolutions, their channels multiples of `step` (16: what blocked layouts like; 1: anything)."""

    def __init__(self, step: int) -> None:
        self.step = step

    def start(self, rng: Random) -> tuple[int, int]:
        return self._channels(rng), rng.choice((7, 10, 14))

    def next(self, rng: Random, channels: int, size: int, *, depthwise: bool) -> ConvShape:
        kernel, stride = rng.choice((1, 3, 3, 5)), rng.choice((1, 1, 1, 2))
        if depthwise:
            return ConvShape(size, channels, channels, kernel, stride, depthwise=True)
        return ConvShape(size, channels, self._channels(rng), kernel, stride)

    def _channels(self, rng: Random) -> int:
        return self.step * rng.randint(-(-9 // self.step), 48 // self.step)


_SEGMENTS: Mapping[str, Callable[[carriers._Walk], None]] = {
    "plain": carriers._plain,
    "biased": carriers._biased,
    "residual": carriers._residual,
    "bottleneck": carriers._bottleneck,
    "branches": carriers._branches,
    "dense": carriers._dense,
    "shuffle": carriers._shuffle,
    "cell": carriers._cell,
    "lonely": carriers._lonely,
    "classifier": carriers._classifier,
}
_SEEDS = range(3)


def _segment(name: str, step: int, seed: int) -> Graph:
    walk = carriers._Walk(f"{name}-{step}-{seed}", Random(f"{name}/{step}/{seed}"), _SmallSource(step))  # noqa: S311
    carriers._plain(walk)
    _SEGMENTS[name](walk)
    if name != "classifier":
        walk.x = walk.b.conv_bn(walk.x, 16, 1)
    return simplify(walk.b.build(walk.x))


@pytest.mark.parametrize("name", _SEGMENTS)
def test_outputs_of_segments(each_engine: Engine, tmp_path: Path, name: str) -> None:
    graph = _segment(name, 1, 0)
    require_close(outputs_of(each_engine, graph, tmp_path), reference_outputs(graph), 1e-4)


@pytest.mark.parametrize("step", [16, 1], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("name", _SEGMENTS)
def test_every_operator_runs_in_one_kernel(each_engine: Engine, tmp_path: Path, name: str, step: int) -> None:
    for seed in _SEEDS:
        graph = _segment(name, step, seed)
        require_mapped(graph, executed(each_engine, graph, tmp_path))


@pytest.mark.parametrize("seed", range(2))
def test_carriers_are_mapped_whole(each_engine: Engine, tmp_path: Path, seed: int) -> None:
    graph = carriers.build_carrier("carrier", f"conformance/{seed}", _SmallSource(1), 12)
    require_mapped(graph, executed(each_engine, graph, tmp_path))


@pytest.mark.parametrize("name", ["neck", "recogniser"])
def test_resizing_and_lstms_are_mapped(each_engine: Engine, tmp_path: Path, name: str) -> None:
    """Those of one direction and of both, whose nodes an engine may name anew."""
    wanted = {"neck": {"resize", "resize_linear"}, "recogniser": {"lstm"}}[name]
    for graph in [g for g in further_graphs(7) if g.name.startswith(name)][:8]:
        nodes = executed(each_engine, graph, tmp_path)
        require_mapped(graph, nodes)
        assert {make_kernel(graph, n.members).config.kind for n in nodes if n.members} & wanted
