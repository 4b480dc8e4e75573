"""What nodes are described by: kinds and keys of what has an algorithm of its own, and what each computes and moves."""

from __future__ import annotations

import math

import numpy as np
import pytest
from executed_nodes import CACHE, key, node, product, relu, transpose

from edgeplan.graph.nodes import NodeConfig, Operand
from edgeplan.predictors.nodes.features import SIZES, SPILLED, TERMS, Table, describe, logs, spill, terms


def sizes(config: NodeConfig) -> dict[str, float]:
    return dict(zip(SIZES, describe(config).sizes, strict=True))


def conv(channels: int, groups: int = 1, batch: int = 1, size: tuple[int, ...] = (8, 8), domain: str = "") -> NodeConfig:
    kernel = (channels, channels // groups, *(3 for _ in size))
    made = node("Conv", [(batch, channels, *size), kernel], (batch, channels, *size), weights=1, group=groups, pads=(1,) * 4)
    return NodeConfig("Conv", domain, made.attributes, made.inputs, made.outputs)


def reorder(before: str, after: str) -> NodeConfig:
    one = (Operand("float32", (1, 16, 8, 8)),)
    return NodeConfig("Reorder", attributes=(("from", before), ("to", after)), inputs=one, outputs=one)


def quantised(dtype: str) -> NodeConfig:
    inputs = (Operand("uint8", (4, 64)), Operand(dtype, (64, 32), constant=True), Operand("float32", (), constant=True))
    return NodeConfig("MatMulIntegerToFloat", "com.microsoft", (), inputs, (Operand("float32", (4, 32)),))


@pytest.mark.parametrize(
    "different",
    [
        (product(4, 8, 8), product(1, 8, 8)),  # rows
        (product(4, 8, 8), node("MatMul", [(4, 8), (8, 8)], (4, 8))),  # a constant right side
        (conv(32), conv(32, groups=32)),
        (conv(32, groups=4), conv(32, groups=32)),
        (conv(32), conv(32, size=(8,))),
        (conv(32), conv(32, domain="com.microsoft.nchwc")),
        (quantised("int8"), quantised("uint8")),
        (reorder("nchw", "nhwc"), reorder("nhwc", "nchw")),
        (reorder("nchw", "nhwc"), reorder("nchw", "blocked16")),
        (transpose(8, 9), node("Transpose", [(8, 9, 4)], (9, 8, 4), perm=(1, 0, 2))),
        (transpose(8, 9), transpose(1, 9)),
        (node("ReduceMean", [(4, 5, 6)], (4, 5, 1), axes=(-1,)), node("ReduceMean", [(4, 5, 6)], (4, 1, 6), axes=(1,))),
    ],
)
def test_another_algorithm_is_another_key(different: tuple[NodeConfig, NodeConfig]) -> None:
    assert key(different[0]) != key(different[1])


def test_what_is_fused_shares_the_key_and_is_a_size() -> None:
    plain = conv(32)
    fused = NodeConfig("FusedConv", "com.microsoft", (*plain.attributes, ("activation", "Relu")), plain.inputs, plain.outputs)
    assert key(plain) == key(fused)
    assert sizes(fused) == {**sizes(plain), "activation": 1.0}


def test_work_is_counted() -> None:
    assert sizes(product(6, 10, 20))["flops"] == 2 * 6 * 10 * 20
    assert sizes(node("MatMul", [(2, 3, 6, 10), (2, 3, 10, 20)], (2, 3, 6, 20)))["flops"] == 2 * 6 * 6 * 10 * 20
    assert sizes(node("Gemm", [(10, 6), (20, 10)], (6, 20), transA=1, transB=1))["flops"] == 2 * 6 * 10 * 20
    for batch in (1, 10):
        assert sizes(conv(32, batch=batch))["flops"] == 2 * batch * 32 * 64 * 32 * 9
        assert sizes(conv(32, groups=32, batch=batch))["flops"] == 2 * batch * 64 * 32 * 9
        assert sizes(conv(32, groups=32, batch=batch))["outer_runs"] == 32 * batch
    up = node("ConvTranspose", [(1, 8, 5, 5), (8, 4, 2, 2)], (1, 4, 10, 10), weights=1, strides=(2, 2))
    assert sizes(up)["flops"] == 2 * 8 * 25 * 4 * 4
    lstm = node("LSTM", [(7, 1, 16), (2, 128, 16), (2, 128, 32)], (7, 2, 1, 32), weights=2, hidden_size=32)
    assert sizes(lstm)["flops"] == 2 * 7 * 2 * 128 * (16 + 32)
    assert sizes(lstm)["reread"] == 4 * 7 * 2 * 128 * 32


def test_moves_read_what_they_take() -> None:
    table, rows = Operand("float32", (50_000, 64), constant=True), Operand("int64", (1, 8))
    gather = NodeConfig("Gather", "", (("axis", 0),), (table, rows), (Operand("float32", (1, 8, 64)),))
    assert (sizes(gather)["read"], sizes(gather)["weights"]) == (8 * 64 * 4, 0)
    cut = node("Slice", [(1000, 1000)], (1000, 4))
    assert sizes(cut)["read"] == 1000 * 4 * 4
    assert (sizes(cut)["inner"], sizes(cut)["outer_runs"]) == (4, 1000)
    assert sizes(cut)["cold"] == 0
    assert sizes(relu(1 << 20))["cold"] == 7 << 20  # what a core's caches do not hold


def test_operands_that_start_again_cost_steps_and_those_that_stay_do_not() -> None:
    scaled = node("Mul", [(1, 8, 28, 28), (1, 8, 1, 1)], (1, 8, 28, 28))  # one element for each plane
    assert (sizes(scaled)["inner"], sizes(scaled)["scalar_steps"]) == (28 * 28, 0)
    biased = node("Add", [(100, 64), (64,)], (100, 64))
    assert (sizes(biased)["inner"], sizes(biased)["outer_runs"]) == (64, 100)
    last = node("Mul", [(100, 64), (100, 1)], (100, 64))
    assert sizes(last)["inner"] == 64
    alternating = node("Mul", [(64, 64, 2), (64, 1, 2)], (64, 64, 2))
    assert sizes(alternating)["scalar_steps"] == 64 * 64 * 2


@pytest.mark.parametrize("shape", [(8, 128), (1, 8, 128), (2, 5, 8, 128)])
def test_operators_of_other_domains_have_bytes_and_work(shape: tuple[int, ...]) -> None:
    """None of them is left at nothing, whatever their operands are; one that nobody heard of goes by its bytes."""
    x, weight = Operand("float32", shape), Operand("float32", (shape[-1], 3 * shape[-1]), constant=True)
    attributes = (("N", 96), ("coefficients", (0.5,) * 64), ("nodes_treeids", (0,) * 31 + (1,) * 31), ("num_heads", 4))
    attending = (
        "Attention MultiHeadAttention SkipLayerNormalization EmbedLayerNormalization BiasGelu QAttention RotaryEmbedding"
    )
    for op in f"{attending} MatMulNBits TreeEnsembleRegressor LinearClassifier Scaler Normalizer NeverHeardOf".split():
        seen = sizes(NodeConfig(op, "com.microsoft", attributes, (x, weight), (x,)))
        assert seen["read"] == seen["written"] == 4 * math.prod(shape), op
        assert seen["flops"] > 0, op
        assert seen["weights"] >= weight.bytes, op
        assert np.isfinite(list(seen.values())).all()


def test_nodes_without_operands_axes_or_values_are_described() -> None:
    for op in ("Shape", "Concat", "Slice", "Transpose", "ReduceMean", "Softmax", "Gather", "Conv", "LSTM", "MaxPool", "Gemm"):
        for config in (NodeConfig(op, outputs=(Operand("float32", ()),)), node(op, [()], ()), node(op, [(0, 3)], (0, 3))):
            assert np.isfinite(describe(config).sizes).all()


def test_weights_spill_over_the_last_cache_and_nothing_else_does() -> None:
    table = Table.of([product(1, 1024, 1024), relu(1 << 20)])
    spilled = spill(np.array([0.0, 0.25, 1.0, 10.0]) * CACHE, CACHE)
    assert spilled[0] == spilled[1] == 0
    assert 0 < spilled[2] < spilled[3] == 1
    assert terms(table.sizes, 1.0)[:, SPILLED].tolist() == [4 << 20, 0]
    assert terms(table.sizes).shape == (2, len(TERMS))
    assert not terms(table.sizes)[:, SPILLED].any()
    assert np.isfinite(logs(table.sizes)).all()
    assert terms(table.sizes)[:, TERMS.index("weights")].tolist() == [4 << 20, 0]
