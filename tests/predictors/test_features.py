"""Properties of the feature function."""

from typing import Any

import numpy as np
import pytest
from edgeplan.predictors.configs import ConfigTable
from edgeplan.predictors.features import FEATURES, FIRST_WORK, WORK_TERMS, WORK_VERSION, features, work_terms
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx_models import model, node, weight

from depth import examples
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.cost import graph_macs
from edgeplan.graph.kernels import KernelConfig, make_kernel
from edgeplan.graph.onnx.read import from_onnx

_sizes = st.integers(1, 300)
_small = st.integers(1, 9)
_pads = st.integers(0, 4)
_configs = st.builds(
    KernelConfig,
    kind=st.sampled_from(
        [
            "conv",
            "dwconv",
            "deconv",
            "fc",
            "matmul",
            "lstm",
            "gru",
            "rnn",
            "add",
            "concat",
            "split",
            "maxpool",
            "reshape",
            "reorder",
            "other",
        ]
    ),
    type=st.sampled_from(["conv", "conv++bn++relu", "add++relu", "fc"]),
    dtype=st.sampled_from(["float32", "float16", "int8", "unheard"]),
    batch=_small,
    in_channels=_sizes,
    in_height=_sizes,
    in_width=_sizes,
    out_channels=_sizes,
    out_height=_sizes,
    out_width=_sizes,
    kernel_h=_small,
    kernel_w=_small,
    stride_h=_small,
    stride_w=_small,
    dilation_h=_small,
    dilation_w=_small,
    pad_top=_pads,
    pad_left=_pads,
    pad_bottom=_pads,
    pad_right=_pads,
    groups=_small,
    inputs=_small,
    other_elements=st.integers(0, 10**6),
    min_part=_sizes,
    max_part=_sizes,
    bias=st.booleans(),
    activation=st.sampled_from(["", "relu", "hswish", "unheard"]),
    residual=st.booleans(),
    permutation=st.sampled_from(["", "02134", "0231"]),
)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(_configs, min_size=1, max_size=8), st.sampled_from([FIRST_WORK, WORK_VERSION]), st.randoms(use_true_random=False)
)
def test_finite_and_independent_of_the_rest_of_the_batch(configs: list[KernelConfig], version: int, random: object) -> None:
    matrix = features(configs, version)
    assert matrix.shape == (len(configs), len(FEATURES))
    assert np.isfinite(matrix).all()
    order = list(range(len(configs)))
    random.shuffle(order)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(features([configs[i] for i in order], version), matrix[order])
    np.testing.assert_array_equal(np.vstack([features([c], version) for c in configs]), matrix)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(_configs, min_size=1, max_size=8))
def test_columns_and_configurations_are_the_same(configs: list[KernelConfig]) -> None:
    table = ConfigTable.of(configs)
    assert [table.row(i) for i in range(len(table))] == configs
    np.testing.assert_array_equal(features(table), features(configs))
    np.testing.assert_array_equal(features(table.take(np.array([0]))), features(configs[:1]))


@settings(max_examples=examples(60), deadline=None)
@given(_configs)
def test_work_is_not_negative_and_padding_only_adds_to_it(config: KernelConfig) -> None:
    matrix = features([config])
    terms = work_terms(matrix)
    assert terms.shape == (1, len(WORK_TERMS))
    assert (terms >= 0).all()
    value = dict(zip(FEATURES, matrix[0], strict=True))
    if config.in_channels % config.groups == 0 and config.out_channels % config.groups == 0:
        assert value["padded_macs"] >= value["macs"] * (1 - 1e-12)
        assert value["gemm_macs"] >= value["macs"] * (1 - 1e-12)
    assert 0 <= value["interior_share"] <= 1


def _differs(**changes: object) -> set[str]:
    base: dict[str, object] = {
        "kind": "conv", "type": "conv", "in_channels": 32, "in_height": 28, "in_width": 28, "out_channels": 64,
        "out_height": 28, "out_width": 28, "kernel_h": 3, "kernel_w": 3, "pad_top": 1, "pad_left": 1,
        "pad_bottom": 1, "pad_right": 1,
    }  # fmt: skip
    one, two = features([KernelConfig(**base), KernelConfig(**{**base, **changes})])  # type: ignore[arg-type]
    return {name for name, a, b in zip(FEATURES, one, two, strict=True) if a != b}


def test_every_part_of_a_configuration_is_seen() -> None:
    changes = [
        {"batch": 2}, {"in_height": 27}, {"in_width": 27}, {"kernel_h": 5}, {"kernel_w": 5}, {"stride_h": 2}, {"stride_w": 2},
        {"dilation_h": 2}, {"dilation_w": 2}, {"groups": 4}, {"pad_top": 0}, {"pad_right": 0}, {"dtype": "float16"},
        {"activation": "relu"}, {"residual": True}, {"bias": True}, {"inputs": 3}, {"other_elements": 7}, {"min_part": 3},
        {"max_part": 9}, {"permutation": "02134"}, {"out_channels": 65}, {"in_channels": 33},
    ]  # fmt: skip
    for change in changes:
        assert _differs(**change), change


def test_a_folded_batch_normalisation_changes_nothing() -> None:
    assert _differs(type="conv++bn") == set()


def test_multiply_adds_follow_the_paper() -> None:
    conv = KernelConfig("conv", "conv", in_channels=64, in_height=56, in_width=56, out_channels=128, out_height=28,
                        out_width=28, kernel_h=3, kernel_w=3, stride_h=2, stride_w=2)  # fmt: skip
    depthwise = KernelConfig("dwconv", "dwconv", in_channels=32, in_height=8, in_width=8, out_channels=32, out_height=8,
                             out_width=8, kernel_h=5, kernel_w=5, groups=32)  # fmt: skip
    connected = KernelConfig("fc", "fc", in_channels=512, out_channels=1000)
    stacked = KernelConfig("fc", "fc", in_channels=7, in_height=512, out_channels=7, out_height=1000)
    macs = features([conv, depthwise, connected, stacked])[:, FEATURES.index("macs")]
    assert macs.tolist() == [64 * 9 * 128 * 28 * 28, 32 * 25 * 64, 512 * 1000, 7 * 512 * 1000]


@pytest.mark.parametrize("both", [False, True])
def test_work_of_an_lstm_is_that_of_its_graph(both: bool) -> None:
    b = GraphBuilder("lstm", (30, 2, 48))
    graph = b.build(b.lstm(b.input, 20, bidirectional=both))
    found = features([make_kernel(graph, [graph.operators[0].name]).config])[0]
    assert found[FEATURES.index("macs")] == graph_macs(graph)
    products = sum(graph.tensors[name].size_bytes for name in graph.operators[0].weights[:2])
    assert found[FEATURES.index("weight_bytes")] == products


def _kernel(op_type: str, shape: tuple[int, ...], *constants: tuple[int, ...], **attributes: Any) -> KernelConfig:
    """An operator that reads an input of this shape, and constants of these."""
    weights = [weight(f"w{k}", *size) for k, size in enumerate(constants)]
    graph = from_onnx(model([node(op_type, ["x", *(w.name for w in weights)], ["y"], name="n", **attributes)], weights, shape))
    return make_kernel(graph, ["n"]).config


def _further(cell: str, gates: int) -> KernelConfig:
    """A recurrent layer of 7 steps of 3 sequences, 5 features and 4 hidden values, both ways."""
    sizes, more = ((2, gates * 4, 5), (2, gates * 4, 4)), {"linear_before_reset": 1} if cell == "GRU" else {}
    return _kernel(cell, (7, 3, 5), *sizes, hidden_size=4, direction="bidirectional", **more)


def _enlarging(groups: int) -> KernelConfig:
    return _kernel(
        "ConvTranspose",
        (1, 6, 5, 5),
        (6, 6 // groups, 4, 4),
        group=groups,
        strides=[2, 2],
        pads=[1, 1, 1, 1],
        kernel_shape=[4, 4],
    )


def _product() -> KernelConfig:
    nodes = [node("Transpose", ["x"], ["t"], perm=[0, 2, 1], name="t"), node("MatMul", ["x", "t"], ["y"], name="n")]
    return make_kernel(from_onnx(model(nodes, shape=(2, 5, 7))), ["n"]).config


@pytest.mark.parametrize(
    ("config", "macs", "weights"),
    [
        (_further("LSTM", 4), 7 * 2 * 3 * 4 * 4 * (5 + 4), 2 * 4 * 4 * (5 + 4)),
        (_further("GRU", 3), 7 * 2 * 3 * 4 * 3 * (5 + 4), 2 * 4 * 3 * (5 + 4)),
        (_enlarging(1), 25 * 6 * 6 * 16, 6 * 6 * 16),
        (_enlarging(6), 25 * 6 * 16, 6 * 16),
        (_product(), 2 * 5 * 7 * 5, 0),
    ],
    ids=["lstm", "gru", "deconv", "depthwise deconv", "matmul"],
)
def test_every_multiplication_counts_as_work(config: KernelConfig, macs: int, weights: int) -> None:
    found = dict(zip(FEATURES, features([config], WORK_VERSION)[0], strict=True))
    assert (found["macs"], found["weight_bytes"]) == (macs, 4 * weights)
    assert found["padded_macs"] >= macs
    before = dict(zip(FEATURES, features([config], FIRST_WORK)[0], strict=True))
    assert before["macs"] == (macs if config.kind == "lstm" else 0)  # as predictors of that version have learnt it


def test_versions_differ_in_the_work_of_few_kinds_alone() -> None:
    b = GraphBuilder("m", (1, 8, 9, 9))
    x = b.conv_bn(b.input, 16, 3)
    graph = b.build(b.add(x, b.conv_bn(x, 16, 3, groups=16)))
    configs = [make_kernel(graph, [op.name]).config for op in graph.operators]
    np.testing.assert_array_equal(features(configs, FIRST_WORK), features(configs, WORK_VERSION))
