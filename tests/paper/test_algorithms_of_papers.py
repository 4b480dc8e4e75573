"""What papers print of their algorithms, worked out by hand: NNV12's Table 2 and Algorithm 1, nn-Meter's Table 4."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from edgeplan.chapters.cold_start.paper import TABLE2
from edgeplan.chapters.cold_start.planners.nnv12 import balanced, nnv12
from edgeplan.chapters.cold_start.planners.registry import outcomes
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.kernels import split_kernels
from edgeplan.planning.machine import MAIN, cost_arrays
from edgeplan.planning.profile import Candidate, Layer, Profile, narrowed, pareto
from edgeplan.profiling.frame import remaining_table
from edgeplan.zoo import FAMILIES

NONE = {"big": 0.0}


def _table_2() -> Profile:
    candidates = []
    for row in TABLE2:
        execute = {1: row.execute_ms}
        candidates.append(Candidate(row.kernel, "raw", {"big": row.read_raw_ms}, NONE, {"big": row.transform_ms}, execute))
        candidates.append(Candidate(row.kernel, "cached_read", {"big": row.read_cache_ms}, NONE, NONE, execute))
    return Profile("conv", "nchw", 1, 1, 1.0, (Layer("conv", ("conv",), tuple(candidates)),))


def _names(profile: Profile) -> set[tuple[str, str]]:
    return {(c.implementation, c.source) for c in profile.layers[0].candidates}


def test_table_2_filters_to_three_of_twelve() -> None:
    # sgemm-pack4 and pack4 lose against 3x3s1 (0.70 + 8.01), general against all; raw winograd against its cached self.
    assert _names(pareto(_table_2())) == {
        ("3x3s1-winograd-pack4", "cached_read"),
        ("3x3s1-winograd", "cached_read"),
        ("3x3s1", "raw"),
    }
    table = remaining_table([_table_2()])
    assert table[["candidates", "remaining"]].to_numpy().tolist() == [[12, 3]]


def test_table_2_without_caching_keeps_the_fast_and_the_ready() -> None:
    table = _table_2()
    raw = pareto(narrowed(table, [[i for i, c in enumerate(layer.candidates) if c.source == "raw"] for layer in table.layers]))
    assert _names(raw) == {("3x3s1-winograd-pack4", "raw"), ("3x3s1", "raw")}


def test_figure_13s_steps_on_table_2() -> None:
    def chosen(planner: str) -> tuple[str, str, float]:
        outcome = outcomes([_table_2()], planner)["nchw"]
        (candidate,) = outcome.chosen
        return candidate.implementation, candidate.source, round(outcome.makespan_ms, 2)

    assert chosen("warm") == ("3x3s1-winograd-pack4", "raw", 41.91)
    assert chosen("K") == ("3x3s1", "raw", 8.71)
    assert chosen("K+C") == ("3x3s1-winograd", "cached_read", 7.49)


def _uniform(steps: int, little_cores: int, big: float, little: float, execute: float) -> Profile:
    candidate = Candidate("k", "raw", {"big": big, "little": little}, NONE, NONE, {1: execute})
    layers = tuple(Layer(f"s{k}", (), (candidate,)) for k in range(steps))
    return Profile("uniform", "nchw", 1, little_cores, 1.0, layers)


def test_algorithm_1_moves_preparations_to_the_big_core_while_it_is_the_less_busy() -> None:
    # Figure 7(a): r1, w1 and all executions on the big core, T_Q0 = 1 + 6; the others on the little one, T_Q1 = 5 x 3 = 15.
    # Line 9 for step 2: 1 + 3 < 15 - 7, moved: T_Q0 = 8, T_Q1 = 12. For step 3: 1 + 3 < 12 - 8 does not hold, the end.
    assert balanced(cost_arrays(_uniform(6, 1, 1.0, 3.0, 1.0)), (0,) * 6) == (MAIN, MAIN, 0, 0, 0, 0)
    assert balanced(cost_arrays(_uniform(4, 1, 1.0, 1.0, 5.0)), (0,) * 4) == (MAIN, 0, 0, 0)


@pytest.mark.parametrize(
    ("times", "dealt"),
    [
        # Line 12 deals steps 2, 4 to the first little core and 3 to the second (Figure 7(b)): loads 9 + 1 and 2. Line 18:
        # 9 < (10 - 2) / 2 does not hold, 1 < 4 does: step 4 moves, loads 9 and 3 (Figure 7(c)-(e)); big core: 20 and more.
        ((1.0, 9.0, 2.0, 1.0), (MAIN, 0, 1, 1)),
        # Loads 5 + 5 and 2: line 18, 5 < (10 - 2) / 2, does not hold, although moving one would balance 5 and 7.
        ((1.0, 5.0, 2.0, 5.0), (MAIN, 0, 1, 0)),
    ],
)
def test_algorithm_1_deals_out_and_then_balances_little_cores(times: tuple[float, ...], dealt: tuple[int, ...]) -> None:
    layers = tuple(Layer(f"s{k}", (), (Candidate("k", "raw", {"big": t}, NONE, NONE, {1: 5.0}),)) for k, t in enumerate(times))
    assert balanced(cost_arrays(Profile("dealt", "nchw", 1, 2, 1.0, layers)), (0,) * 4) == dealt


def test_algorithm_1_ends_with_fewer_preparations_than_little_cores() -> None:
    for steps in (1, 2, 3):
        assert balanced(cost_arrays(_uniform(steps, 3, 1.0, 1.0, 0.1)), (0,) * steps)[0] == MAIN


def test_outer_loop_is_exhaustive_up_to_its_limit() -> None:
    layers = pareto(_table_2()).layers * 3
    profile = Profile("three", "nchw", 1, 1, 1.0, layers)
    assert nnv12(profile).note == "all 27 combinations"
    assert nnv12(profile, exhaustive=26).note.startswith("coordinate descent")


# Section 4.2 gives the rules of the GPU; those of CPU and VPU differ in conv_add only (text below Table 4). The pool_relu of
# the three backends stands in Table 3.
GPU = {
    "pool_add": True,
    "add_relu": True,
    "pool_conv": False,
    "conv_bn": True,
    "conv_relu": True,
    "conv_conv": False,
    "conv_add": True,
    "multi-inbound": 1,
    "multi-outbound": 0,
    "pool_relu": True,
}
CPU = {**GPU, "conv_add": False, "pool_relu": False}
VPU = {**GPU, "conv_add": False}

UNFUSED_SUM = {"conv++bn++relu": 9, "maxpool": 1, "conv++bn": 11, "add++relu": 8, "avgpool": 1, "fc": 1}
FUSED_SUM = {"conv++bn++relu": 9, "maxpool": 1, "conv++bn++add++relu": 8, "conv++bn": 3, "avgpool": 1, "fc": 1}


#: Kinds here of what the paper's rules name otherwise.
POOLS = {"pool": ("maxpool", "avgpool")}


def paper_rules(document: Mapping[str, bool | int]) -> FusionRules:
    """The paper's flat form as rules: `{"pool_relu": True, ..., "multi-inbound": 1, "multi-outbound": 0}`."""
    special = {key: value for key, value in document.items() if key in ("multi-inbound", "multi-outbound")}
    pairs = {
        f"{a}_{b}": value
        for key, value in document.items()
        if key not in special
        for first, _, after in [key.partition("_")]
        for a in POOLS.get(first, (first,))
        for b in POOLS.get(after, (after,))
    }
    return FusionRules.model_validate({"pairs": pairs, **special})


@pytest.mark.parametrize(
    ("rules", "table"), [(VPU, UNFUSED_SUM), (GPU, FUSED_SUM), (CPU, UNFUSED_SUM)], ids=["VPU", "GPU", "CPU"]
)
def test_kernels_of_resnet18(rules: dict[str, bool | int], table: dict[str, int]) -> None:
    found = Counter(kernel.type for kernel in split_kernels(FAMILIES["resnet"].base(), paper_rules(rules)))
    found["avgpool"] = found.pop("gap")  # the paper's avgpool is the global one
    flattens = found.pop("reshape")  # a view of the pooled tensor, which the paper's models do not have as an operator
    assert found == table
    assert flattens == 1
