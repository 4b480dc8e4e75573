"""Kernels unlike those that were measured: how they are told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from edgeplan.predictors.familiarity import learnt_ranges, unfamiliar
from edgeplan.predictors.features import features
from law_of_latency import conv, relu

from edgeplan.graph.kernels import KernelConfig

PLAIN = conv(16, 64, 28)
DEPTHWISE = replace(PLAIN, kind="dwconv", groups=16, out_channels=16)


def _ranges(*configs: KernelConfig) -> dict[str, dict[str, tuple[int, int]]]:
    return learnt_ranges(np.array([c.kind for c in configs], dtype=object), features(configs))  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""),
        ({"out_channels": 4000, "in_height": 300}, ""),  # sizes are extrapolated
        ({"groups": 4}, "groups 4, measured 1"),
        ({"batch": 8}, "batch 8, measured 1"),
        ({"dilation_h": 2, "dilation_w": 2}, "dilation 2, measured 1"),
        ({"kernel_h": 11, "kernel_w": 1}, "kernel 11, measured 3 to 5, kernel 1, measured 3 to 5"),
    ],
)
def test_what_lies_beyond_the_measured_values_is_named(changes: dict[str, int], why: str) -> None:
    ranges = _ranges(PLAIN, replace(PLAIN, kernel_h=5, kernel_w=5), relu(16, 28))
    assert unfamiliar([replace(PLAIN, **changes)], ranges) == (why,)


def test_groups_of_depthwise_convolutions_are_their_channels() -> None:
    wide = replace(DEPTHWISE, groups=512, in_channels=512, out_channels=512)
    assert unfamiliar([wide, replace(wide, dilation_w=4)], _ranges(DEPTHWISE)) == ("", "dilation 4, measured 1")


def test_what_reads_no_images_has_no_batch_to_be_unlike() -> None:
    rows = replace(relu(16, 28), kind="fc", batch=500)
    assert unfamiliar([rows], _ranges(replace(rows, batch=8))) == ("",)


def test_a_card_that_tells_no_ranges_calls_nothing_unfamiliar() -> None:
    assert unfamiliar([replace(PLAIN, groups=4)], {}) == ("",)
