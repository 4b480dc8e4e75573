"""Kernel tables of many variants at once: the 26,000 of the paper, at a smaller count."""

from __future__ import annotations

import numpy as np

from edgeplan.chapters.prediction.speed import batch_tables
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.zoo import FAMILIES

RULES = FusionRules(pairs={"conv_bn": True, "conv_relu": True})


def test_every_family_has_its_share_of_distinct_variants() -> None:
    tables = batch_tables(3, 2 * len(FAMILIES) + 1, RULES)
    assert [len(family.models) for family in tables] == [3, *[2] * (len(FAMILIES) - 1)]
    names = [name for family in tables for name in family.models]
    assert len(set(names)) == len(names)
    for family in tables:
        assert (np.diff(family.kernel_start) > 0).all(), "a model without kernels"


def test_the_same_seed_gives_the_same_tables() -> None:
    one, two = (batch_tables(5, len(FAMILIES), RULES) for _ in range(2))
    for a, b in zip(one, two, strict=True):
        assert a.models == b.models
        np.testing.assert_array_equal(a.config, b.config)
