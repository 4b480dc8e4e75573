"""Structure of the families: what is tied, what stays, and how cells are pruned."""

import collections

import pytest

from edgeplan.chapters.prediction.paper import printed
from edgeplan.errors import FormatError
from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.kinds import KNOWN_ONNX_TYPES, kind
from edgeplan.zoo import FAMILIES, prior_models, variants
from edgeplan.zoo.layers import kept_padding, make_divisible
from edgeplan.zoo.nasbench201 import RESNET_CELL, cell_order, format_cell, nasbench201, parse_cell, prune_cell


def _kinds(graph: Graph) -> collections.Counter[str]:
    return collections.Counter(kind(graph, op) for op in graph.operators)


def _convs(graph: Graph) -> list[Operator]:
    return [op for op in graph.operators if op.op_type == "Conv"]


def test_thirteen_families_as_in_table_2() -> None:
    assert list(FAMILIES) == list(printed("table_02", "family").index)
    assert len(FAMILIES) == 13
    for key, family in FAMILIES.items():
        assert family.id == key
        base = family.base()
        assert base.shape(base.inputs[0]) == (1, 3, family.input_size, family.input_size)


def test_priors_are_many_distinct_and_of_known_operators() -> None:
    models = prior_models()
    assert len(models) >= 24
    signatures = set()
    for name, build in models.items():
        graph = build()
        assert graph.name == name
        assert {op.op_type for op in graph.operators} <= KNOWN_ONNX_TYPES
        signatures.add(tuple((op.op_type, graph.shape(op.outputs[0])) for op in graph.operators))
    assert len(signatures) == len(models)


def test_every_base_model_is_a_prior() -> None:
    models = prior_models()
    for family in FAMILIES.values():
        assert models[family.base_name]().operators == family.base().operators


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "nasbench201"])
def test_variants_keep_the_topology_the_classifier_and_pointwise_kernels(family: str) -> None:
    base = FAMILIES[family].base()
    for spec in variants(FAMILIES[family], 2, seed=3):
        graph = FAMILIES[family].build(spec)
        assert [(op.name, op.op_type, op.inputs) for op in graph.operators] == [
            (op.name, op.op_type, op.inputs) for op in base.operators
        ]
        assert graph.shape(graph.outputs[0]) == (1, 1000)
        pairs = list(zip(_convs(base), _convs(graph), strict=True))
        for before, after in pairs:
            if before.integers("kernel_shape", ()) == (1, 1):
                assert after.integers("kernel_shape", ()) == (1, 1)
        assert any(a.attributes != b.attributes for a, b in pairs)


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "nasbench201"])
def test_resampled_kernels_leave_the_feature_map_sizes(family: str) -> None:
    # A smaller kernel needs less padding; the stems of AlexNet and SqueezeNet have too little to take away, and grow a bit.
    slack = 3 if family in {"alexnet", "squeezenet"} else 0
    base = FAMILIES[family].base()
    for spec in variants(FAMILIES[family], 4, seed=8):
        graph = FAMILIES[family].build(spec)
        for op in base.operators:
            before, after = base.shape(op.outputs[0]), graph.shape(op.outputs[0])
            if len(before) == 4:  # an image; a channel shuffle in between has five axes
                assert all(0 <= size - was <= slack for was, size in zip(before[2:], after[2:], strict=True)), op.name


def test_squeeze_and_excitation_follows_its_block() -> None:
    family = FAMILIES["mobilenetv3"]
    graph = family.build(family.variant(seed=2, index=0))
    pooled = {op.outputs[0] for op in graph.operators if op.op_type == "GlobalAveragePool"}
    squeezes = [op for op in _convs(graph) if op.inputs[0] in pooled]
    assert len(squeezes) == 8
    for op in squeezes:
        _, channels, _, _ = graph.shape(op.inputs[0])
        assert graph.shape(op.outputs[0])[1] == make_divisible(channels // 4)


def test_architecture_strings() -> None:
    assert format_cell(parse_cell(RESNET_CELL)) == RESNET_CELL
    for wrong in ("", "|nor_conv_3x3~0|", RESNET_CELL.replace("none", "dil_conv"), RESNET_CELL.replace("~2", "~1")):
        with pytest.raises(FormatError, match="NAS-Bench-201"):
            parse_cell(wrong)


def test_pruning_drops_what_the_output_does_not_see() -> None:
    dead_end = ("nor_conv_3x3", "none", "nor_conv_3x3", "skip_connect", "none", "none")
    assert prune_cell(dead_end) == ("none", "none", "none", "skip_connect", "none", "none")
    no_source = ("none", "nor_conv_1x1", "nor_conv_3x3", "none", "avg_pool_3x3", "skip_connect")
    assert prune_cell(no_source) == ("none", "nor_conv_1x1", "none", "none", "none", "skip_connect")
    cut = ("nor_conv_3x3", "none", "none", "none", "none", "nor_conv_3x3")
    assert set(prune_cell(cut)) == {"none"}
    with pytest.raises(FormatError, match="does not depend"):
        nasbench201("cut", format_cell(cut))


def test_cells_are_distinct_pruned_and_ordered_by_the_seed() -> None:
    order = cell_order(0)
    assert len(set(order)) == len(order) >= 2000
    assert all(format_cell(prune_cell(parse_cell(cell))) == cell for cell in order[:200])
    assert sorted(cell_order(1)) == sorted(order)
    assert cell_order(1) != order


def test_kept_padding() -> None:
    assert [kept_padding(kernel, 3, 1) for kernel in (1, 3, 5, 7, 9)] == [0, 1, 2, 3, 4]
    assert [kept_padding(kernel, 11, 2) for kernel in (1, 3, 5, 7, 9, 11)] == [0, 0, 0, 0, 1, 2]
