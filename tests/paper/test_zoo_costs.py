"""The zoo against published figures: each base model's multiply-adds and parameters, and Table 2's averages."""

from statistics import fmean

import pytest

from depth import by_day
from edgeplan.chapters.prediction.paper import printed
from edgeplan.graph.kinds import graph_macs, graph_parameters
from edgeplan.zoo import FAMILIES, build_variant, prior_models, variants
from edgeplan.zoo.nasbench201 import nasbench201

# "GFLOPS" (multiply-adds) and "num_params" of the weights in torchvision's model documentation.
_TORCHVISION = {
    "alexnet": (714, 61_100_840),
    "vgg11": (7609, 132_863_336),
    "vgg13": (11308, 133_047_848),
    "vgg16": (15470, 138_357_544),
    "vgg19": (19632, 143_667_240),
    "densenet121": (2834, 7_978_856),
    "densenet169": (3360, 14_149_480),
    "densenet201": (4291, 20_013_928),
    "resnet18": (1814, 11_689_512),
    "resnet34": (3664, 21_797_672),
    "resnet50": (4089, 25_557_032),
    "resnet101": (7801, 44_549_160),
    "squeezenet1_0": (819, 1_248_424),
    "squeezenet1_1": (349, 1_235_496),
    "googlenet": (1498, 6_624_904),
    "mobilenetv2_1.0": (301, 3_504_872),
    "mobilenetv3_small": (57, 2_542_856),
    "mobilenetv3_large": (217, 5_483_032),
    "shufflenetv2_1.0": (145, 2_278_604),
    "shufflenetv2_1.5": (296, 3_503_624),
    "shufflenetv2_2.0": (583, 7_393_996),
    "mnasnet_0.5": (104, 2_218_512),
    "mnasnet_0.75": (215, 3_170_208),
    "mnasnet_1.0": (314, 4_383_312),
    "mnasnet_1.3": (526, 6_282_256),
}
_OTHERS = {
    # Multiply-adds: MobileNetV1's paper, tables 6 and 7. Parameters: Keras' summary (1.0, trainable), TensorFlow-Slim's list.
    "mobilenetv1_1.0": (569, 4_231_976),
    "mobilenetv1_0.75": (325, 2_590_000),
    "mobilenetv1_0.5": (149, 1_340_000),
    # TensorFlow-Slim's list of MobileNetV2 checkpoints.
    "mobilenetv2_0.5": (97, 1_950_000),
    "mobilenetv2_1.4": (582, 6_060_000),
    # Multiply-adds: the ProxylessNAS repository's README, which gives no count for the other two. Parameters: pytorchcv's list.
    "proxylessnas_mobile": (320, 4_080_512),
    "proxylessnas_gpu": (None, 7_119_848),
    "proxylessnas_cpu": (None, 4_361_648),
    # torchvision gives 0.04 GFLOPS, too coarse for 1 %.
    "shufflenetv2_0.5": (None, 1_366_792),
}
_PUBLISHED: dict[str, tuple[int | None, int]] = {**_TORCHVISION, **_OTHERS}

# Least and most of the 15,625 architectures on CIFAR-10 in the NAS-Bench-201 API: multiply-adds in M, parameters in M.
_NASBENCH_LEAST = (7.78305, 0.073306)
_NASBENCH_MOST = (220.11969, 1.531546)
_SKIP_CELL = "|none~0|+|none~0|none~1|+|skip_connect~0|none~1|none~2|"
_FULL_CELL = "|nor_conv_3x3~0|+|nor_conv_3x3~0|nor_conv_3x3~1|+|nor_conv_3x3~0|nor_conv_3x3~1|nor_conv_3x3~2|"


@pytest.mark.parametrize("name", _PUBLISHED)
def test_published_multiply_adds_and_parameters(name: str) -> None:
    macs_m, parameters = _PUBLISHED[name]
    graph = prior_models()[name]()
    assert graph_parameters(graph) == pytest.approx(parameters, rel=0.01)
    if macs_m is not None:
        assert graph_macs(graph) / 1e6 == pytest.approx(macs_m, rel=0.01)


def test_every_base_model_is_held_against_a_published_figure() -> None:
    assert {family.base_name for family in FAMILIES.values()} <= {*_PUBLISHED, "nasbench201_resnet"}
    assert set(prior_models()) <= {*_PUBLISHED, "nasbench201_resnet"}


@pytest.mark.parametrize(("cell", "published"), [(_SKIP_CELL, _NASBENCH_LEAST), (_FULL_CELL, _NASBENCH_MOST)])
def test_nasbench201_range(cell: str, published: tuple[float, float]) -> None:
    graph = nasbench201("cell", cell)
    assert graph_macs(graph) / 1e6 == pytest.approx(published[0], rel=1e-4)
    assert graph_parameters(graph) / 1e6 == pytest.approx(published[1], rel=1e-4)


def test_nasbench201_base_lies_a_third_up_the_published_range() -> None:
    # Its cell has 2 of the 6 possible 3 x 3 convolutions, and each costs the same.
    graph = FAMILIES["nasbench201"].base()
    for value, least, most in zip((graph_macs(graph), graph_parameters(graph)), _NASBENCH_LEAST, _NASBENCH_MOST, strict=True):
        assert value / 1e6 == pytest.approx(least + (most - least) / 3, rel=1e-3)


# Average over Table 2's, as far as 250 variants tell; the docstring of `zoo.registry` says why some are off.
@pytest.mark.parametrize(
    ("family", "low", "high"),
    by_day(
        [
            ("alexnet", 1.4, 1.9),
            ("vgg", 0.85, 1.15),
            ("densenet", 3.1, 3.6),
            ("resnet", 1.3, 1.65),
            ("squeezenet", 1.1, 1.35),
            ("googlenet", 2.6, 3.0),
            ("mobilenetv1", 1.05, 1.25),
            ("mobilenetv2", 0.9, 1.1),
            ("mobilenetv3", 1.3, 1.6),
            ("shufflenetv2", 1.0, 1.2),
            ("mnasnet", 1.05, 1.25),
            ("proxylessnas", 0.9, 1.1),
            ("nasbench201", 0.95, 1.05),
        ],
        least=5,
        fields=3,
    ),
)
def test_average_beside_table_2(family: str, low: float, high: float) -> None:
    average = fmean(graph_macs(build_variant(spec)) for spec in variants(FAMILIES[family], 250, seed=0)) / 1e6
    assert low <= average / printed("table_02", "family")["paper: FLOPs (M)"][family] <= high
