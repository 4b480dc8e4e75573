"""A small model for plan folders, and what their tests wait for and compare."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import numpy as np

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.planning.machine import Span, core_name
from edgeplan.runtime.native_session import NativeSession


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


def spans_of(session: NativeSession) -> list[Span]:
    """The timeline of a cold start, ms of the monotonic clock."""
    return [Span(core_name(core - 1), step, stage, begin / 1e6, end / 1e6) for core, step, stage, begin, end in session.trace()]
