"""Specs: what is accepted, what is refused, and how it is said."""

import dataclasses
import json

import pytest

from edgeplan.errors import FormatError, ParamsError
from edgeplan.zoo import FAMILIES, VariantSpec, build_variant, variants
from edgeplan.zoo.layers import Choices, channel_bounds

SPEC = FAMILIES["squeezenet"].variant(seed=1, index=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format_version": 99}, "format_version"),
        ({"channels": "64"}, "channels"),
        ({"channels": [0]}, "channels"),
        ({"kernels": [True]}, "kernels"),
        ({"seed": True}, "seed"),
        ({"family": None}, "family"),
    ],
)
def test_wrong_field_is_named(change: dict[str, object], message: str) -> None:
    text = json.dumps(json.loads(SPEC.to_json()) | change)
    with pytest.raises(FormatError, match=message):
        VariantSpec.from_json(text)


@pytest.mark.parametrize("text", ["", "{", "[]", "3"])
def test_not_a_spec(text: str) -> None:
    with pytest.raises(FormatError, match="variant spec"):
        VariantSpec.from_json(text)


def test_spec_of_another_family_is_refused() -> None:
    with pytest.raises(FormatError, match="another model than resnet18"):
        FAMILIES["resnet"].build(SPEC)


def test_unknown_family_lists_the_known_ones() -> None:
    with pytest.raises(FormatError, match="mobilenetv2"):
        build_variant(dataclasses.replace(SPEC, family="transformer"))


@pytest.mark.parametrize("field", ["channels", "kernels"])
def test_too_many_or_too_few_choices_are_refused(field: str) -> None:
    document = json.loads(SPEC.to_json())
    values = document[field]
    for wrong in (values[:-1], [*values, 3]):
        spec = VariantSpec.from_json(json.dumps(document | {field: wrong}))
        with pytest.raises(FormatError, match="another model than squeezenet"):
            build_variant(spec)


def test_more_cells_than_there_are_is_refused() -> None:
    with pytest.raises(ParamsError, match="distinct cells"):
        FAMILIES["nasbench201"].variant(seed=0, index=15_625)


def test_channel_bounds_are_exact() -> None:
    assert channel_bounds(64) == (13, 115)  # 12.8 and 115.2
    assert channel_bounds(10) == (2, 18)
    assert channel_bounds(1) == (1, 1)


def test_pointwise_kernels_are_no_choice() -> None:
    choices = Choices(kernels=(9,))
    assert [choices.kernel(1), choices.kernel(3), choices.kernel(1)] == [1, 9, 1]


def test_a_variant_does_not_depend_on_how_many_are_drawn() -> None:
    for family in FAMILIES.values():
        assert list(variants(family, 3, seed=5)) == list(variants(family, 9, seed=5))[:3]
