"""Every engine is held to the suite that other packages use, and to the carriers that kernels are measured in."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from edgeplan.chapters.prediction.sampling.carriers_detection_text import further_graphs
from edgeplan.chapters.prediction.sampling.singles import single_graphs
from edgeplan.chapters.prediction.sampling.sources import ConvSource

from depth import MANY, by_day
from edgeplan.chapters.prediction.sampling import carriers
from edgeplan.chapters.prediction.sampling.prior import ConvShape
from edgeplan.engines.base import Engine
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import make_kernel
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


#: Of so many carriers each has other segments; together they have all of them.
_CARRIERS = 8


def _carrier(step: int, seed: int) -> Graph:
    return carriers.build_carrier("carrier", f"conformance/{step}/{seed}", _SmallSource(step), 14)


@pytest.mark.parametrize("seed", by_day([*range(_CARRIERS // 2)], least=2))
def test_outputs_of_carriers(each_engine: Engine, tmp_path: Path, seed: int) -> None:
    graph = _carrier(1, seed)
    require_close(outputs_of(each_engine, graph, tmp_path), reference_outputs(graph), 1e-4)


#: Aligned channels and others.
_BY_TURNS = [(1 if seed % 2 else 16, seed) for seed in range(_CARRIERS)]


@pytest.mark.parametrize(
    ("step", "seed"), by_day([*_BY_TURNS, *((17 - step, seed) for step, seed in _BY_TURNS)], least=_CARRIERS // 2, fields=2)
)
def test_every_operator_runs_in_one_kernel(each_engine: Engine, tmp_path: Path, seed: int, step: int) -> None:
    graph = _carrier(step, seed)
    require_mapped(graph, executed(each_engine, graph, tmp_path))


@pytest.mark.parametrize("name", ["neck", "recogniser"])
def test_resizing_and_lstms_are_mapped(each_engine: Engine, tmp_path: Path, name: str) -> None:
    """Those of one direction and of both, whose nodes an engine may name anew."""
    wanted = {"neck": {"resize", "resize_linear"}, "recogniser": {"lstm"}}[name]
    for graph in [g for g in further_graphs(7) if g.name.startswith(name)][: 8 if MANY else 2]:
        nodes = executed(each_engine, graph, tmp_path)
        require_mapped(graph, nodes)
        assert {make_kernel(graph, n.members).config.kind for n in nodes if n.members} & wanted


def test_single_operators_run_and_are_told(each_engine: Engine, tmp_path: Path) -> None:
    """Each that new devices are sampled with; of those that an engine runs in several steps one is named after it."""
    for graph in [*single_graphs(7, 1)][:: 1 if MANY else 2]:
        members = {name for node in executed(each_engine, graph, tmp_path) for name in node.members}
        assert members == {graph.operators[0].name}, graph.name
