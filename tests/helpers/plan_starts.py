"""Starts of plan folders that must give the right outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from edgeplan.engines.base import random_inputs
from edgeplan.graph.ir import Graph
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl


def run_right(session: ColdSession, graph: Graph, wanted: Mapping[str, np.ndarray]) -> None:
    """One inference of a session, whose outputs must be right."""
    found = session.run(random_inputs(graph))
    for name, value in wanted.items():
        assert np.abs(found[name] - value).max() <= 1e-4 * np.abs(value).max()


def start_right(dnnl: Dnnl, folder: Path, graph: Graph, wanted: Mapping[str, np.ndarray]) -> str:
    """A cold start that must give the right outputs; returns what was wrong with the cache."""
    with ColdSession(dnnl, folder, threads=2) as session:
        run_right(session, graph, wanted)
        return session.cache_problem
