"""A small model for plan folders, what their tests wait for and compare, and the one place that looks into a session."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.lanes import LanePreparation
from edgeplan.runtime.preparation import Shared


def small_net(width: int = 24) -> Graph:
    """Depthwise and pointwise convolutions with residual sums, ended by a classifier."""
    b = GraphBuilder("net", (1, 3, 20, 20))
    x = b.conv_bn(b.input, width, 3, 2)
    for _ in range(3):
        y = b.conv_bn(x, width, 3, groups=width, act="relu6")
        x = b.relu(b.add(b.conv_bn(y, width, 1, act=""), x))
    return b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 10)))


def wait_while(condition: Callable[[], object], seconds: float = 60) -> None:
    """Wait as long as a condition holds, but no longer than that."""
    deadline = time.monotonic() + seconds
    while condition() and time.monotonic() < deadline:
        time.sleep(1e-3)


def assert_close(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    """Outputs within 1e-4 of the largest magnitude."""
    for name, value in wanted.items():
        assert np.abs(found[name] - value).max() <= 1e-4 * np.abs(value).max()


def shared_of(session: ColdSession) -> Shared:
    """Files, memory and objects of a session."""
    return session._shared


def preparation_of(session: ColdSession) -> LanePreparation:
    """Its lanes, and what they have prepared for later runs."""
    return session._preparation


def kernels_made(shared: Shared) -> int:
    """How many objects of the library are made by now."""
    return int(np.count_nonzero(shared.objects.store.states & 0xFF == 2))


def started_ns(session: ColdSession) -> int:
    """When the session was opened, from where its spans count."""
    return session._start_ns
