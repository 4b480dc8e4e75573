"""Every engine is held to the suite that other packages use, and to models of all operators."""

from __future__ import annotations

from pathlib import Path

import pytest
from random_graphs import graphs

from depth import MANY, by_day
from edgeplan.engines.base import Engine
from edgeplan.graph.ir import Graph
from edgeplan.graph.simplify import simplify
from edgeplan.testing.engines import EngineContract, executed, outputs_of, reference_outputs, require_close, require_mapped
from edgeplan.zoo import prior_models
from edgeplan.zoo.cold_start_models import crnn_lite


class TestEngines(EngineContract):
    """With the fixture `engine` of `conftest.py`, which takes each."""

    @pytest.fixture
    def engine(self, each_engine: Engine) -> Engine:
        return each_engine


_DRAWN = [*graphs(100 if MANY else 12)]


@pytest.mark.parametrize("graph", _DRAWN, ids=range(len(_DRAWN)))
def test_models_of_all_operators_compute_what_they_say_and_are_told(each_engine: Engine, tmp_path: Path, graph: Graph) -> None:
    require_close(outputs_of(each_engine, graph, tmp_path), reference_outputs(graph), 1e-3)
    members = {name for node in executed(each_engine, graph, tmp_path) for name in node.members}
    assert set() < members <= graph.by_name.keys()


@pytest.mark.parametrize(
    "name", by_day(["crnn_lite", "mobilenetv3_small", "googlenet", "shufflenetv2_0.5", "squeezenet1_1", "resnet18"], least=3)
)
def test_every_operator_of_networks_runs_in_one_kernel(each_engine: Engine, tmp_path: Path, name: str) -> None:
    graph = simplify(crnn_lite() if name == "crnn_lite" else prior_models()[name]())
    require_mapped(graph, executed(each_engine, graph, tmp_path))
