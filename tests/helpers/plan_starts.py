"""Starts of plan folders that must give the right outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from cold_session_support import assert_close

from edgeplan.engines.base import random_inputs
from edgeplan.graph.ir import Graph
from edgeplan.runtime.native_session import open_session


def start_right(folder: Path, graph: Graph, wanted: Mapping[str, np.ndarray]) -> bool:
    """A cold start that must give the right outputs; tells whether its weights were checked."""
    with open_session(folder) as session:
        assert_close(session.run(random_inputs(graph)), wanted)
        return session.fact("checked") == 1
