"""Whatever a device measured, latencies of the bandwidth-bound family are finite, positive and grow with the bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from edgeplan.predictors.bandwidth import bytes_moved, fit_bandwidth
from edgeplan.predictors.configs import ConfigTable
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.graph.kernels import KernelConfig
from edgeplan.graph.operators.registry import BANDWIDTH_BOUND

KINDS = st.sampled_from(sorted(BANDWIDTH_BOUND))


@st.composite
def configs(draw: st.DrawFn) -> KernelConfig:
    kind, channels, height, width = draw(KINDS), *(draw(st.integers(1, 2000)) for _ in range(3))
    out = draw(st.integers(1, 2000))
    sizes = {"in_channels": channels, "in_height": height, "in_width": width, "out_height": height, "out_width": width}
    return KernelConfig(kind, kind, **sizes, out_channels=out, other_elements=draw(st.integers(0, 10**6)))


ROWS = st.lists(st.tuples(configs(), st.floats(1e-2, 1e5), st.floats(0.02, 1.0)), min_size=1, max_size=30)


@settings(max_examples=examples(50), deadline=None)
@given(ROWS, st.lists(configs(), min_size=1, max_size=10))
def test_finite_positive_and_within_its_interval(
    rows: list[tuple[KernelConfig, float, float]], asked: list[KernelConfig]
) -> None:
    measured, latency, weight = zip(*rows, strict=True)
    found = fit_bandwidth(ConfigTable.of(measured), np.array(latency), np.array(weight), 0.9)
    assert found is not None
    assert set(found.levels) == {config.kind for config in measured}
    for low, high in ((found.low, found.high), (found.own_low, found.own_high)):
        assert low <= 0 <= high
    us = found.latency_us(ConfigTable.of(asked))
    assert np.isfinite(us).all()
    assert (us >= found.launch_us).all()


@settings(max_examples=examples(50), deadline=None)
@given(ROWS, configs(), st.integers(2, 50))
def test_more_bytes_never_take_less(rows: list[tuple[KernelConfig, float, float]], config: KernelConfig, times: int) -> None:
    measured, latency, weight = zip(*rows, strict=True)
    found = fit_bandwidth(ConfigTable.of(measured), np.array(latency), np.array(weight), 0.9)
    assert found is not None
    both = ConfigTable.of([config, replace(config, batch=times, other_elements=times * config.other_elements)])
    less, more = bytes_moved(both)
    assert more == times * less
    less_us, more_us = found.latency_us(both)
    assert less_us <= more_us <= times * less_us * (1 + 1e-9)
