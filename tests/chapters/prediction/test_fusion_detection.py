"""Detection against devices whose fusion is known."""

from __future__ import annotations

import pytest
from fused_devices import FUSING_SUMS, PLAIN, QUIET, Device, disagreements

from edgeplan.chapters.prediction.fusion.detection import COLUMNS, detect, skipped_pairs
from edgeplan.graph.fusion_rules import Alignments, Contexts, FusionRules

OVERWRITING = FusionRules(
    pairs={**PLAIN.pairs, "conv_add": True, "mul_relu": True, "conv+add_add": False},
    multi_inbound=1,
    merges_duplicates=True,
    sharing=("add", "mul"),
    sums_overwrite=True,
)


@pytest.mark.parametrize("truth", [PLAIN, FUSING_SUMS, OVERWRITING], ids=["plain", "fusing sums", "overwriting"])
def test_the_fusion_of_a_quiet_device_is_found_exactly(truth: FusionRules) -> None:
    found, cases = detect(Device(truth).measure, QUIET)
    assert disagreements(found, truth) == []
    assert found.multi_inbound == truth.multi_inbound
    assert found.multi_outbound == truth.multi_outbound
    assert found.merges_duplicates == truth.merges_duplicates
    assert found.sharing == truth.sharing
    assert found.sums_overwrite == truth.sums_overwrite
    assert found.contexts.order == ()
    assert tuple(cases.columns) == COLUMNS
    clear = cases[~cases.pair.str.contains("reshape")]
    undecided = clear[clear.decision == "undecided"]
    # which of two equal arms takes the sum cannot be told by this device's times; a concatenation of halves feeds its sink what
    # the halves would; a second sum reads the operand that the first would overwrite
    assert set(undecided.pair) <= {"conv_add", "split_concat", "conv+add_add"}


def test_a_layout_that_some_channel_counts_forbid_is_found_as_contexts() -> None:
    classes = Alignments()
    aligned = {name: "16" if name in ("16", "4", "<4") else "1" for name in classes.names()}
    carried = {name: "16" if name == "16" else "1" for name in classes.names()}
    truth = FusionRules(
        pairs={
            "conv_bn": True,
            "conv_relu": True,
            "conv_hswish": {"16": True, "1": False},
            "bn_relu": {"16": True, "1": False},
        },
        inbound={"conv_add": {"16|16": True, "16|1": False, "1|16": True, "1|1": True}},
        multi_inbound=1,
        contexts=Contexts(conv=aligned, dwconv=aligned, carried=carried, order=("16", "1")),
    )
    found, _ = detect(Device(truth).measure, QUIET)
    assert found.contexts.conv == aligned
    assert found.contexts.carried == carried
    assert found.pairs["conv_relu"] is True
    assert found.pairs["conv_hswish"] == truth.pairs["conv_hswish"]
    assert found.pairs["bn_relu"] == truth.pairs["bn_relu"]


def test_impossible_pairs_are_named_with_a_reason() -> None:
    skipped = skipped_pairs()
    assert "conv_fc" in skipped
    assert "conv_relu" not in skipped
    assert all(reason for reason in skipped.values())
