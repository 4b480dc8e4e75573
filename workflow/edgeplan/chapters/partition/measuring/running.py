"""One inference after the other of sessions that are opened together: all of them meet the same minutes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from edgeplan.chapters.partition.measuring.opened import Opened
from edgeplan.graph.ir import Graph
from edgeplan.runtime.layouts import LIKELY
from edgeplan.runtime.partitioned.session import PairSession
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession

#: Of the largest magnitude; Winograd's transforms lose a digit.
_EXACT, _WINOGRAD = 1e-5, 1e-4
#: One inference, and how long it took in ms.
Runner = Callable[[], float]


def on_pair(session: PairSession, inputs: Mapping[str, Any]) -> Runner:
    """Inferences on both processors; inputs are bound before the time counts."""

    def run() -> float:
        session.bind(inputs)
        began = time.perf_counter()
        session.execute()
        return (time.perf_counter() - began) * 1e3

    return run


def tolerance(session: PairSession, exact: float = _EXACT) -> float:
    """Return by how much outputs may differ from ONNX Runtime's, of the largest magnitude."""
    return _WINOGRAD if session.winograd else exact


def on_all_cores(pair: Opened, model: Path, graph: Graph, inputs: Mapping[str, Any]) -> list[Runner]:
    """Inferences by oneDNN on all cores of the pair, one runner for each likely layout; each ran once."""
    threads, runners = len(pair.pair.cores), []
    with wide(pair):
        for home in LIKELY:
            program = default_program(pair.host.dnnl, model, graph, home, threads=threads)
            session = SequentialSession(pair.host.dnnl, program, model.parent, threads)
            session.run(inputs)
            runners.append(_on_all_cores(pair, session, inputs))
    return runners


def _on_all_cores(pair: Opened, session: SequentialSession, inputs: Mapping[str, Any]) -> Runner:
    def run() -> float:
        with wide(pair):
            session.bind(inputs)
            began = time.perf_counter()
            session.execute()
            return (time.perf_counter() - began) * 1e3

    return run


@contextlib.contextmanager
def wide(pair: Opened) -> Iterator[None]:
    """Compute on all cores of the pair, a thread bound to each: two threads that share one take up to twice the time."""
    own, cores = os.sched_getaffinity(0), pair.pair.cores
    os.sched_setaffinity(0, cores)
    pair.host.dnnl.set_threads(len(cores))
    pair.host.dnnl.bind_threads(cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)
        pair.host.ready()
