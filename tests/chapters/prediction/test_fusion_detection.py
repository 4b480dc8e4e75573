"""Detection against devices whose fusion is known, quiet, noisy or disturbed: what is believed, and what is measured again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pytest

from edgeplan.chapters.prediction.fusion.cases import MAP_KINDS, ROW_KINDS, Case, CaseOutcome, Probe, Timings, judge
from edgeplan.chapters.prediction.fusion.detection import ARMS, COLUMNS, detect, pooled_decision, skipped_pairs
from edgeplan.chapters.prediction.settings import FusionSettings
from edgeplan.graph.fusion_rules import Alignments, Contexts, FusionRules, Rule
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import split_members
from edgeplan.graph.kinds import operator_macs

LAUNCH_US = 2.0
QUIET = FusionSettings(noise_floor=0.0, material_share=0.0)
CAUTIOUS = QUIET.model_copy(update={"cautious": True})
FREE = frozenset({"Reshape", "Flatten"})
ALIGNED = {name: "16" if name in ("16", "4", "<4") else "1" for name in Alignments().names()}
Times = list[npt.NDArray[np.float64]]


class Device:
    """A device that fuses what its rules say, with a launch for each kernel and time for arithmetic and memory."""

    def __init__(self, rules: FusionRules, noise: float = 0.0) -> None:
        self.rules, self.noise = rules, noise
        self.rng = np.random.default_rng(7)
        self.repeats: list[int] = []

    def measure(self, graphs: Sequence[Graph], repeat: int) -> Times:
        self.repeats.append(repeat)
        return [self.latency_us(g) * (1 + self.noise * self.rng.standard_normal(5)) for g in graphs]

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


def disagreements(found: FusionRules, truth: FusionRules) -> list[str]:
    """Pairs that were tested and come out other than they are."""
    pairs = [(first, after) for kinds in (MAP_KINDS, ROW_KINDS) for first in kinds for after in kinds]
    tested = [pair for pair in pairs if "_".join(pair) not in skipped_pairs() and "reshape" not in pair]

    def fuses(rules: FusionRules, first: str, after: str) -> bool:
        return rules.fuses(first, first, after, "", "" if after in ("add", "mul", "concat") else None)

    return ["_".join(pair) for pair in tested if fuses(found, *pair) != fuses(truth, *pair)]


COUPLED = ("multi_inbound", "multi_outbound", "merges_duplicates", "sharing", "sums_overwrite")
OVERWRITING = FusionRules(
    pairs={**PLAIN.pairs, "conv_add": True, "mul_relu": True, "conv+add_add": False},
    multi_inbound=1,
    merges_duplicates=True,
    sharing=("add", "mul"),
    sums_overwrite=True,
)


@pytest.mark.parametrize("truth", [FUSING_SUMS, OVERWRITING], ids=["fusing sums", "overwriting"])
def test_the_fusion_of_a_quiet_device_is_found_exactly(truth: FusionRules) -> None:
    found, cases = detect(Device(truth).measure, QUIET)
    assert disagreements(found, truth) == []
    assert [getattr(found, name) for name in COUPLED] == [getattr(truth, name) for name in COUPLED]
    assert found.contexts.order == ()
    assert tuple(cases.columns) == COLUMNS
    clear = cases[~cases.pair.str.contains("reshape")]
    undecided = clear[clear.decision == "undecided"]
    # which of two equal arms takes the sum cannot be told by this device's times; a concatenation of halves feeds its sink what
    # the halves would; a second sum reads the operand that the first would overwrite
    assert set(undecided.pair) <= {"conv_add", "split_concat", "conv+add_add"}
    # a disturbance makes a saving of two nodes; few pairs are fused, so that few are measured twice without caution
    repeats = cases[cases.connection == "single"].groupby("decision").repeats.min()
    assert (repeats["fused"], repeats["separate"]) == (2, 1)


def test_a_layout_that_some_channel_counts_forbid_is_found_as_contexts() -> None:
    carried = {name: "16" if name == "16" else "1" for name in ALIGNED}
    forbidden: Rule = {"16": True, "1": False}
    truth = FusionRules(
        pairs={"conv_bn": True, "conv_relu": True, "conv_hswish": forbidden, "bn_relu": forbidden},
        inbound={"conv_add": {"16|16": True, "16|1": False, "1|16": True, "1|1": True}},
        multi_inbound=1,
        contexts=Contexts(conv=ALIGNED, dwconv=ALIGNED, carried=carried, order=("16", "1")),
    )
    found, _ = detect(Device(truth).measure, QUIET)
    assert found.contexts.conv == ALIGNED
    assert found.contexts.carried == carried
    assert [found.pairs[name] for name in ("conv_relu", "conv_hswish", "bn_relu")] == [True, forbidden, forbidden]


def test_what_noise_hides_in_one_class_of_channel_counts_goes_as_in_the_others() -> None:
    pairs: dict[str, Rule] = {name: {"16": True, "1": False} for name in ("dwconv_hsigmoid", "dwconv_hswish")}
    truth = FusionRules(
        pairs={**pairs, "conv_bn": True, "dwconv_relu": True, "dwconv_relu6": True},
        contexts=Contexts(conv=ALIGNED, dwconv=ALIGNED, carried=ALIGNED, order=("16", "1")),
    )

    class Hiding(Device):
        def measure(self, graphs: Sequence[Graph], repeat: int) -> Times:
            return [
                us * (1 + np.linspace(-0.9, 0.9, 5) * self.hides(g))
                for g, us in zip(graphs, super().measure(graphs, repeat), strict=True)
            ]

        def hides(self, graph: Graph) -> bool:
            before = [graph.producer.get(op.inputs[0]) for op in graph.operators if op.op_type in ("Relu", "Clip")]
            return any(op and op.integer("group", 1) > 1 and graph.tensors[op.outputs[0]].shape[1] % 4 for op in before)

    found, cases = detect(Hiding(truth).measure, QUIET)
    assert found.contexts.dwconv == ALIGNED
    assert found.pairs["dwconv_hswish"] == truth.pairs["dwconv_hswish"]
    hidden = cases[cases.pair.isin(["dwconv_relu", "dwconv_relu6"]) & cases.context.isin(["1", "1 small"])]
    assert set(hidden.decision) == {"undecided"}
    assert found.pairs["dwconv_relu"] is found.pairs["dwconv_relu6"] is True
    assert {"dwconv_relu single 1", "dwconv_relu6 single 1"} <= set(found.undecided)


@pytest.mark.parametrize(
    ("small", "large", "decision"),
    [  # margins and their standard errors, held against 0.5 +- 2 errors
        ((0.20, 0.20), (0.62, 0.05), "undecided"),  # what caches save on large maps, dispatches deny on small ones
        ((0.60, 0.20), (0.62, 0.05), "fused"),
        ((0.80, 0.20), (0.60, 0.06), "fused"),  # neither is clear alone
        ((0.30, 0.12), (0.35, 0.10), "separate"),
        ((0.55, 0.20), (0.62, 0.00), "fused"),  # blocks of the large one that agree to the last digit
        ((0.20, 5.00), (0.62, 0.05), "fused"),  # nothing to be seen on small ones
        ((-2.0, 0.50), (0.62, 0.05), "fused"),  # clear, yet undecided: dearer together
    ],
)
def test_two_sizes_decide_together_where_the_small_one_is_unclear(
    small: tuple[float, float], large: tuple[float, float], decision: str
) -> None:
    settings = QUIET.model_copy(update={"alpha": 0.5, "confidence": 2.0})

    def outcome(margin: float, noise: float) -> CaseOutcome:
        clear = abs(margin - 0.5) > 2 * noise and margin > 0
        return CaseOutcome(10.0, 10.0, 20.0 - 10.0 * margin, margin, noise, "fused" if clear else "undecided", 6)

    assert pooled_decision(outcome(*small), outcome(*large), settings) == decision


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


class DisturbedOnce(Device):
    """A device whose first measurement of a graph may be slow throughout, so that its blocks agree on what is wrong."""

    slower: Mapping[str, float] = MappingProxyType({"Relu": 3.0, "BatchNormalization": 1.5, "HardSwish": 2.0})
    seen = frozenset[str]()

    def measure(self, graphs: Sequence[Graph], repeat: int) -> Times:
        found = super().measure(graphs, repeat)
        for place, graph in enumerate(graphs):
            kinds = Counter(op.op_type for op in graph.operators)
            among = kinds.keys() - {"Conv", "MaxPool"}
            if repeat == 0 and len(kinds) == 3 and len(among) == kinds["Conv"] == 1:  # alone in its frame
                (op,) = among
                self.seen |= among & self.slower.keys()
                found[place] = found[place] * self.slower.get(op, 1.0)
        return found


def test_one_disturbed_measurement_of_what_many_cases_share_decides_none() -> None:
    device = DisturbedOnce(PLAIN)
    found, _ = detect(device.measure, CAUTIOUS)
    assert device.seen == device.slower.keys()
    assert disagreements(found, PLAIN) == []
    assert [getattr(found, name) for name in COUPLED] == [getattr(PLAIN, name) for name in COUPLED]


@pytest.mark.parametrize(
    ("relu_us", "both_us", "decision"),
    [
        (9.0 + 15.0 * np.linspace(-1, 1, 9), 47.0, "undecided"),  # 7 of 9 us are saved: likely fused, and no proof
        (9.0 + 0.1 * np.linspace(-1, 1, 9), 47.0, "fused"),
        (9.0 + 0.1 * np.linspace(-1, 1, 9), 53.9, "separate"),
        (0.1 + 0.5 * np.linspace(-1, 1, 9), 45.0, "separate"),  # nothing beside the convolution, whatever it is
    ],
)
def test_an_operator_lost_in_the_noise_is_no_proof_of_two_nodes(
    relu_us: npt.NDArray[np.float64], both_us: float, decision: str
) -> None:
    conv, relu, both = (Probe(reads=0, channels=8, size=4, operators=o) for o in (("conv",), ("relu",), ("conv", "relu")))
    times = {"Conv": 45.0 + np.zeros(9), "Relu": relu_us}

    def measure(graphs: Sequence[Graph], _: int) -> Times:
        kinds = [[op.op_type for op in graph.operators if op.op_type in times] for graph in graphs]
        return [times[kind[0]] if len(kind) == 1 else both_us + np.zeros(9) for kind in kinds]

    timings = Timings(measure, CAUTIOUS)
    timings.require([conv, relu, both], 1)
    case = Case("conv_relu", "single", "", ((conv, 1),), ((relu, 1),), ((both, 1),))
    settings = CAUTIOUS.model_copy(update={"material_share": 0.1})
    assert judge(case, timings, settings).decision == decision


def test_three_blocks_that_agree_by_chance_are_no_proof() -> None:
    """Judged by their median deviation alone, 28 % of such medians lie beyond two standard errors; 5 % should."""
    rng = np.random.default_rng(5)
    clear = 0
    for _ in range(2000):
        timings = Timings(lambda graphs, _: [100 + rng.standard_normal(3) for _ in graphs], CAUTIOUS)
        probe = Probe(reads=0, channels=8, size=4, operators=("relu",))
        timings.require([probe], 1)
        median, error = timings.time(probe)
        clear += abs(median - 100) > CAUTIOUS.confidence * error
    assert clear / 2000 < 0.08


@pytest.mark.parametrize(("share", "decision"), [(0.0, "separate"), (0.1, "undecided")])
def test_plans_that_take_about_as_long_are_not_told_apart(share: float, decision: str) -> None:
    """What stands around a probe changes its time by some percent, and that may be clear of all noise."""

    def measure(graphs: Sequence[Graph], _: int) -> Times:
        found = [Device(FUSING_SUMS).latency_us(graph) for graph in graphs]
        sums = [{op.op_type for op in graph.operators} >= {"Add"} for graph in graphs]
        return [np.full(5, us * (1.02 if added else 1.0)) for us, added in zip(found, sums, strict=True)]

    settings = CAUTIOUS.model_copy(update={"material_share": share})
    _, cases = detect(measure, settings)
    (arms,) = cases[cases.context == ARMS].itertuples()
    assert arms.decision == decision
    assert arms.repeats == 3
    assert arms.why_undecided == ("both plans take about as long" if share else "")
