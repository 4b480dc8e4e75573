"""Detection against devices whose fusion is known, because the test made them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

from edgeplan.fusion.builders import skipped_pairs
from edgeplan.fusion.detection import COLUMNS, detect
from edgeplan.fusion.probes import MAP_KINDS, ROW_KINDS
from edgeplan.fusion.rules import Alignments, Contexts, FusionRules
from edgeplan.fusion.settings import FusionSettings
from edgeplan.graph.cost import operator_macs
from edgeplan.graph.ir import Graph
from edgeplan.graph.splitting import split_members

LAUNCH_US = 2.0
QUIET = FusionSettings(noise_floor=0.0, material_share=0.0)
FREE = frozenset({"Reshape", "Flatten"})


@dataclass(frozen=True)
class Times:
    block_us: npt.NDArray[np.float64]


class Device:
    """A device that fuses what its rules say, with a launch for each kernel and time for arithmetic and memory."""

    def __init__(self, rules: FusionRules, noise: float = 0.0) -> None:
        self.rules, self.noise = rules, noise
        self.rng = np.random.default_rng(7)
        self.repeats: list[int] = []

    def measure(self, graphs: Sequence[Graph], repeat: int) -> list[Times]:
        self.repeats.append(repeat)
        return [Times(self.latency_us(g) * (1 + self.noise * self.rng.standard_normal(5))) for g in graphs]

    def latency_us(self, graph: Graph) -> float:
        total = 10.0
        for members, _ in split_members(graph, self.rules):
            ops = [graph.by_name[name] for name in members]
            if all(op.op_type in FREE for op in ops):
                continue
            moved = graph.tensors[ops[0].inputs[0]].elements + graph.tensors[ops[-1].outputs[0]].elements
            total += LAUNCH_US + moved / 20_000 + sum(operator_macs(graph, op) for op in ops) / 80_000
        return total


PLAIN = FusionRules(
    pairs=dict.fromkeys(
        ("conv_bn", "conv_relu", "conv_relu6", "dwconv_bn", "dwconv_relu", "fc_relu", "bn_relu", "add_relu", "mul_hswish"), True
    )
)
FUSING_SUMS = FusionRules(
    pairs={**PLAIN.pairs, "conv_add": True, "conv+add_add": False}, multi_inbound=1, merges_duplicates=True
)


OVERWRITING = FusionRules(
    pairs={**PLAIN.pairs, "conv_add": True, "mul_relu": True, "conv+add_add": False},
    multi_inbound=1,
    merges_duplicates=True,
    sharing=("add", "mul"),
    sums_overwrite=True,
)


def disagreements(found: FusionRules, truth: FusionRules) -> list[str]:
    skipped = skipped_pairs()
    wrong = []
    for kinds in (MAP_KINDS, ROW_KINDS):
        for first in kinds:
            for after in kinds:
                pair = f"{first}_{after}"
                other = "" if after in ("add", "mul", "concat") else None
                if pair in skipped or "reshape" in (first, after):
                    continue
                if found.fuses(first, first, after, "", other) != truth.fuses(first, first, after, "", other):
                    wrong.append(pair)
    return wrong


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


def test_noise_asks_for_more_measurements_and_is_reported() -> None:
    device = Device(PLAIN, noise=0.15)
    settings = FusionSettings(max_rounds=4)
    found, cases = detect(device.measure, settings)
    assert max(device.repeats) == settings.max_rounds - 1
    undecided = cases[cases.decision == "undecided"]
    assert len(undecided) > 0
    assert (undecided.repeats == settings.max_rounds).any()
    assert undecided.repeats.min() >= 3, "given up after fewer measurements"
    assert any(name.startswith(tuple(undecided.pair)) for name in found.undecided)
    assert (cases[cases.decision != "undecided"].why_undecided == "").all()
    given_up = undecided.repeats < settings.max_rounds
    assert 0 < given_up.sum() < len(undecided)
    assert undecided.why_undecided[given_up].str.startswith(("dearer together", "too noisy")).all()
    assert undecided.why_undecided[~given_up].str.fullmatch("unclear after 4 measurements").all()
    assert 0 < len(found.undecided) <= len(undecided)  # a pair tried on large and small tensors is named once


def test_moderate_noise_changes_no_clear_decision() -> None:
    _, cases = detect(Device(PLAIN, noise=0.01).measure, FusionSettings())
    decided = cases[(cases.decision != "undecided") & (cases.connection == "single") & ~cases.pair.str.contains(r"reshape|\+")]
    wrong = [
        row.pair
        for row in decided.itertuples()
        if (row.decision == "fused") != PLAIN.fuses(*(row.pair.split("_")[0],) * 2, row.pair.split("_")[1])
    ]
    assert len(wrong) <= math.ceil(0.01 * len(decided))


def test_impossible_pairs_are_named_with_a_reason() -> None:
    skipped = skipped_pairs()
    assert "conv_fc" in skipped
    assert "conv_relu" not in skipped
    assert all(reason for reason in skipped.values())
