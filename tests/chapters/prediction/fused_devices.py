"""Devices whose fusion is known, because a test made them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeplan.chapters.prediction.fusion.detection import skipped_pairs
from edgeplan.chapters.prediction.fusion.probes import MAP_KINDS, ROW_KINDS
from edgeplan.chapters.prediction.settings import FusionSettings
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import split_members
from edgeplan.graph.kinds import operator_macs

LAUNCH_US = 2.0
QUIET = FusionSettings(noise_floor=0.0, material_share=0.0)
CAUTIOUS = QUIET.model_copy(update={"cautious": True})
FREE = frozenset({"Reshape", "Flatten"})


@dataclass(frozen=True)
class Times:
    """Block minima of one measurement."""

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


def disagreements(found: FusionRules, truth: FusionRules) -> list[str]:
    """Pairs that were tested and come out other than they are."""
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
