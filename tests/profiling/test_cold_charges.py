"""What a step pays besides what was measured of it: first executions, first touches, shared creations."""

from __future__ import annotations

import math

from msgspec.structs import replace

from edgeplan.graph.steps import Step
from edgeplan.profiling.profiles import Charge, candidates_of, once_ms, shares, work_of
from edgeplan.profiling.settings import Cores
from edgeplan.profiling.store import Row


def test_first_executions_are_charged_to_their_kernels() -> None:
    kernels = [
        Row("once-conv gemm:jit", "conv gemm:jit", 0, 0, 0, 0, {"once": (20.0,)}, 1.0),
        Row("once-conv jit", "conv jit", 0, 0, 0, 0, {"once": (0.0,)}, 1.0),
    ]
    samples = {"create:big": (1.0,), "first:1": (2.0,), "first:2": (1.5,), "warm:1": (1.75,), "warm:2": (1.25,)}
    cases = (("conv", "gemm:jit@nchw+plain", 20.0), ("conv", "gemm:jit", 20.0), ("fc", "gemm:jit", 0.0), ("conv", "jit", 0.0))
    for work, name, extra in cases:
        charge = Charge(work, arena_ms=0.25, once_ms=once_ms(kernels))
        (found,) = candidates_of(Row("s", name, 0, 0, 0, 0, samples, 1.0), Cores((0, 1)), charge)
        assert found.execute_ms == {1: 2.25 + extra, 2: 1.75 + extra}
        assert found.warm_ms == {1: 1.75, 2: 1.25}  # nothing of what is paid once


def test_a_product_of_one_row_is_other_work_than_one_of_several() -> None:
    fc = Step("fc", "fc", ("fc",), ("x",), ("y",))
    assert work_of(fc, {"y": (1, 10)}) == work_of(fc, {"y": (1, 1, 10)}) == "fc-row"
    assert work_of(fc, {"y": (26, 10)}) == work_of(fc, {"y": (26, 1, 10)}) == "fc"
    assert work_of(replace(fc, kind="conv"), {"y": (1, 8, 1, 1)}) == "conv"
    kernels = [Row("once-fc gemm:jit", "fc gemm:jit", 0, 0, 0, 0, {"once": (30.0,)}, 1.0)]
    samples = {"create:big": (1.0,), "first:1": (2.0,), "first:2": (1.5,), "warm:1": (1.75,), "warm:2": (1.25,)}
    costs = {}
    for rows in (1, 26):
        charge = Charge(work_of(fc, {"y": (rows, 10)}), once_ms=once_ms(kernels))
        (found,) = candidates_of(Row("s", "gemm:jit", 0, 0, 0, 0, samples, 1.0), Cores((0, 1)), charge)
        costs[rows] = found.execute_ms[1]
    assert costs == {1: 2.0, 26: 32.0}


def test_first_touches_are_charged_by_size() -> None:
    stages = ("create:big", "read:big", "transform:big", "cached_read:big", "cached_mmap:big", "first:1", "warm:1")
    row = Row("s", "jit", 0, 900, 1000, 0, dict.fromkeys(stages, (1.0,)), 1.0)
    raw, copied, mapped = candidates_of(row, Cores((0, 1)), Charge(weights_ms_per_byte=0.001))
    assert (raw.read_ms["big"], raw.transform_ms["big"]) == (1.0, 2.0)
    assert (copied.read_ms["big"], mapped.read_ms["big"]) == (2.0, 1.0)
    assert candidates_of(row, Cores((0, 1)), Charge(raw=False, weights_ms_per_byte=0.001)) == (copied, mapped)


def test_shared_creations_are_paid_once() -> None:
    signed = ["a", "b", "a", "a"]
    assert math.isclose(sum(s for s, name in zip(shares(signed), signed, strict=True) if name == "a"), 1)
