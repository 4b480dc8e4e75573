"""Families: what holds for all variants, what is tied and what stays, how cells are pruned, which specs are refused."""

import dataclasses
import json
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.chapters.prediction.paper import printed
from edgeplan.errors import FormatError, ParamsError
from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.kinds import KNOWN_ONNX_TYPES
from edgeplan.graph.onnx.read import check_graph
from edgeplan.graph.onnx.rewriting import known_tensors
from edgeplan.graph.onnx.write import seeded
from edgeplan.zoo import FAMILIES, Family, VariantSpec, build_variant, prior_models, variants
from edgeplan.zoo.family import KERNEL_SIZES, channel_bounds, make_divisible
from edgeplan.zoo.nasbench201 import RESNET_CELL, cell_order, format_cell, nasbench201, parse_cell, prune_cell


def _convs(graph: Graph) -> list[Operator]:
    return [op for op in graph.operators if op.op_type == "Conv"]


def test_thirteen_families_as_in_table_2() -> None:
    assert list(FAMILIES) == list(printed("table_02", "family").index)
    assert len(FAMILIES) == 13
    for key, family in FAMILIES.items():
        assert family.id == key
        base = family.base()
        assert base.shape(base.inputs[0]) == (1, 3, *[32 if key == "nasbench201" else 224] * 2)
        assert prior_models()[family.base_name]().operators == base.operators


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


@pytest.mark.parametrize("family", [f for f in FAMILIES if f != "nasbench201"])
def test_variants_keep_topology_classifier_pointwise_kernels_and_sizes_of_maps(family: str) -> None:
    # A smaller kernel needs less padding; the stems of AlexNet and SqueezeNet have too little to take away, and grow a bit.
    slack = 3 if family in {"alexnet", "squeezenet"} else 0
    base = FAMILIES[family].base()
    for spec in variants(FAMILIES[family], 4, seed=8):
        graph = FAMILIES[family].build(spec)
        assert [(op.name, op.op_type, op.inputs) for op in graph.operators] == [
            (op.name, op.op_type, op.inputs) for op in base.operators
        ]
        assert graph.shape(graph.outputs[0]) == (1, 1000)
        pairs = list(zip(_convs(base), _convs(graph), strict=True))
        pointwise = [pair for pair in pairs if pair[0].integers("kernel_shape", ()) == (1, 1)]
        assert all(after.integers("kernel_shape", ()) == (1, 1) for _, after in pointwise)
        assert any(a.attributes != b.attributes for a, b in pairs)
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


# NASBench201 has thousands of cells, every other family any number of variants.
_INDEX = st.integers(0, 1999)
_FAMILY = st.sampled_from(list(FAMILIES.values()))

few: Callable[..., object] = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(_FAMILY, st.integers(0, 3), _INDEX)
def test_any_variant_builds_with_consistent_shapes(family: Family, seed: int, index: int) -> None:
    graph = family.build(family.variant(seed, index))
    classes = 10 if family.id == "nasbench201" else 1000
    assert graph.shape(graph.outputs[0]) == (1, classes)
    assert all(size > 0 for tensor in graph.tensors.values() for size in tensor.shape)
    inferred = known_tensors(seeded(graph).model, family.id)  # ONNX says of all tensors what the builder says
    assert all(inferred[name][1] == tensor.shape for name, tensor in graph.tensors.items())
    check_graph(graph, family.id)
    for op in graph.operators:
        (first, *others), written = ([graph.shape(name) for name in names] for names in (op.inputs, op.outputs))
        match op.op_type:
            case "Conv":
                assert op.integer("group", 1) == 1 or {op.integer("group", 1)} == {first[1], written[0][1]}
            case "Add":
                assert others == [first], "residual channels are tied"
            case "Mul":
                assert others == [(*first[:2], 1, 1)], "squeeze-and-excitation weighs each channel"
            case "Split":
                assert written[0] == written[1], "a channel split halves"
    unread = {name for op in graph.operators for name in op.outputs} - graph.consumers.keys()
    assert unread == set(graph.outputs)


@few
@given(_FAMILY, st.integers(0, 3), _INDEX, _INDEX)
def test_seed_and_index_alone_decide_within_the_papers_ranges(family: Family, seed: int, index: int, other: int) -> None:
    spec = family.variant(seed, index)
    assert family.variant(seed, index) == spec == VariantSpec.from_json(spec.to_json())
    assert build_variant(spec).name == spec.name
    if other != index:
        different = family.variant(seed, other)
        assert (different.channels, different.kernels, different.cell) != (spec.channels, spec.kernels, spec.cell)
    if family.id != "nasbench201":
        assert family.variant(seed + 1, index).channels != spec.channels
        assert len(spec.kernels) == len(family.asked.kernel_defaults)
        assert set(spec.kernels) <= set(KERNEL_SIZES)
        for channels, default in zip(spec.channels, family.asked.channel_defaults, strict=True):
            assert 0.2 * default - 1e-9 <= channels <= 1.8 * default + 1e-9


SPEC = FAMILIES["squeezenet"].variant(seed=1, index=2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *((text, "variant spec") for text in ("", "{", "[]", "3")),
        *(
            (json.dumps(json.loads(SPEC.to_json()) | change), next(iter(change)))
            for change in (
                {"format_version": 99}, {"channels": "64"}, {"channels": [0]}, {"kernels": [True]}, {"seed": True},
                {"family": None},
            )
        ),
    ],
)  # fmt: skip
def test_what_is_no_spec_is_refused_and_a_wrong_field_named(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        VariantSpec.from_json(text)


def test_specs_of_other_families_and_of_too_many_or_too_few_choices_are_refused() -> None:
    with pytest.raises(FormatError, match="another model than resnet18"):
        FAMILIES["resnet"].build(SPEC)
    with pytest.raises(FormatError, match="mobilenetv2"):  # known ones are listed
        build_variant(dataclasses.replace(SPEC, family="transformer"))
    for wrong in (SPEC.channels[:-1], (*SPEC.channels, 3)):
        with pytest.raises(FormatError, match="another model than squeezenet"):
            build_variant(dataclasses.replace(SPEC, channels=wrong))
    for wrong in (SPEC.kernels[:-1], (*SPEC.kernels, 3)):
        with pytest.raises(FormatError, match="another model than squeezenet"):
            build_variant(dataclasses.replace(SPEC, kernels=wrong))


def test_more_cells_than_there_are_is_refused() -> None:
    with pytest.raises(ParamsError, match="distinct cells"):
        FAMILIES["nasbench201"].variant(seed=0, index=15_625)


def test_channel_bounds_are_exact() -> None:
    assert channel_bounds(64) == (13, 115)  # 12.8 and 115.2
    assert channel_bounds(10) == (2, 18)
    assert channel_bounds(1) == (1, 1)
