"""What holds for every variant of every family."""

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.zoo import FAMILIES, Family, VariantSpec, build_variant
from edgeplan.zoo.layers import KERNEL_SIZES, channel_bounds

# NASBench201 has thousands of cells, every other family any number of variants.
_INDEX = st.integers(0, 1999)
_SEED = st.integers(0, 2**31)
_FAMILY = st.sampled_from(list(FAMILIES.values()))

few: Callable[..., object] = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


@few
@given(_FAMILY, st.integers(0, 3), _INDEX)
def test_any_variant_builds_with_consistent_shapes(family: Family, seed: int, index: int) -> None:
    graph = family.build(family.variant(seed, index))
    classes = 10 if family.id == "nasbench201" else 1000
    assert graph.shape(graph.outputs[0]) == (1, classes)
    assert all(size > 0 for tensor in graph.tensors.values() for size in tensor.shape)
    known = set(graph.inputs)
    for op in graph.operators:
        assert known.issuperset(op.inputs), "operators are in topological order"
        known.update(op.outputs)
        _check_shapes(graph, op)
    unread = {name for op in graph.operators for name in op.outputs} - graph.consumers.keys()
    assert unread == set(graph.outputs)


def _check_shapes(graph: Graph, op: Operator) -> None:
    inputs = [graph.shape(name) for name in op.inputs]
    outputs = [graph.shape(name) for name in op.outputs]
    match op.op_type:
        case "Conv":
            _check_conv(op, inputs[0], outputs[0], graph.shape(op.weights[0]))
        case "Gemm":
            assert graph.shape(op.weights[0]) == (outputs[0][1], inputs[0][1])
        case "Add":
            assert inputs[0] == inputs[1] == outputs[0], "residual channels are tied"
        case "Mul":
            assert inputs[0] == outputs[0]
            assert inputs[1] == (*inputs[0][:2], 1, 1), "squeeze-and-excitation weighs each channel"
        case "Split":
            assert outputs[0] == outputs[1], "a channel split halves"
            assert 2 * outputs[0][1] == inputs[0][1]
        case "Concat":
            assert len({(*shape[:1], *shape[2:]) for shape in inputs}) == 1
            assert sum(shape[1] for shape in inputs) == outputs[0][1]
        case "BatchNormalization":
            assert {graph.shape(name) for name in op.weights} == {(inputs[0][1],)}


def _check_conv(op: Operator, x: Shape, y: Shape, weight: Shape) -> None:
    groups = op.integer("group", 1)
    assert weight == (y[1], x[1] // groups, *op.integers("kernel_shape", ()))
    assert groups in {1, x[1]}
    if groups > 1:
        assert x[1] == y[1], "depthwise channels are tied"


@few
@given(_FAMILY, _SEED, _INDEX)
def test_spec_survives_json(family: Family, seed: int, index: int) -> None:
    spec = family.variant(seed % 4 if family.id == "nasbench201" else seed, index)
    again = VariantSpec.from_json(spec.to_json())
    assert again == spec
    assert again.to_json() == spec.to_json()
    assert build_variant(again).name == spec.name


@few
@given(_FAMILY, st.integers(0, 3), _INDEX, _INDEX)
def test_seed_and_index_alone_decide(family: Family, seed: int, index: int, other: int) -> None:
    spec = family.variant(seed, index)
    assert family.variant(seed, index) == spec
    if other != index:
        different = family.variant(seed, other)
        assert (different.channels, different.kernels, different.cell) != (spec.channels, spec.kernels, spec.cell)
    if family.id != "nasbench201":
        assert family.variant(seed + 1, index).channels != spec.channels


@few
@given(_FAMILY.filter(lambda family: family.id != "nasbench201"), _SEED, _INDEX)
def test_choices_lie_in_the_papers_ranges(family: Family, seed: int, index: int) -> None:
    spec = family.variant(seed, index)
    for channels, default in zip(spec.channels, family.slots.channels, strict=True):
        low, high = channel_bounds(default)
        assert low <= channels <= high
        assert 0.2 * default - 1e-9 <= channels <= 1.8 * default + 1e-9
    assert len(spec.kernels) == len(family.slots.kernels)
    assert set(spec.kernels) <= set(KERNEL_SIZES)
