"""The numbers nn-Meter (MobiSys 2021) reports, each with its table, figure or section. Shares are in percent, as printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

#: Devices of Table 7, in the order of every table.
DEVICES = ("CPU", "GPU", "VPU")
MINUTES_PER_DAY = 24 * 60


@dataclass(frozen=True, slots=True)
class Hit:
    """One cell group of Tables 8 and 11: RMSE in ms, RMSPE in percent, +-5 % and +-10 % accuracy in percent."""

    rmse_ms: float
    rmspe: float
    within_5pct: float
    within_10pct: float


@dataclass(frozen=True, slots=True)
class PaperFamily:
    """Table 2: average FLOPs (multiply-adds, in millions) and the range of latencies in ms on each device that ran it."""

    label: str
    flops_m: float
    range_ms: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Sum:
    """Table 1: latency of MobileNetV2 and the two sums, in ms; errors in percent."""

    model_ms: float
    operator_sum_ms: float
    operator_error: float
    kernel_sum_ms: float
    kernel_error: float


@dataclass(frozen=True, slots=True)
class PoolRelu:
    """Table 3: times of pool, relu, the two connected and the two summed (as printed), in us; whether the rule says fused."""

    pool_us: float
    relu_us: float
    pair_us: float
    sum_us: float
    fused: bool


@dataclass(frozen=True, slots=True)
class PaperKernel:
    """Tables 6 and 9 of one kernel: features, rows collected, and (RMSE in ms, +-10 % accuracy in percent), by device."""

    name: str
    features: str
    rows: Mapping[str, int]
    quality: Mapping[str, tuple[float, float]]


TABLE_1: Mapping[str, Sum] = MappingProxyType(
    {
        "CPU": Sum(45.57, 51.23, 12.42, 45.41, 0.35),
        "GPU": Sum(10.18, 12.31, 20.92, 9.91, 2.65),
        "VPU": Sum(22.64, 33.86, 49.56, 23.18, 2.38),
    }
)


def _family(label: str, flops_m: float, *ranges: tuple[float, float] | None) -> PaperFamily:
    return PaperFamily(label, flops_m, MappingProxyType({d: r for d, r in zip(DEVICES, ranges, strict=True) if r is not None}))


#: Table 2, keyed by this project's family names.
TABLE_2: Mapping[str, PaperFamily] = MappingProxyType(
    {
        "alexnet": _family("AlexNets", 973, (7.1, 494.4), (0.4, 81.7), (2.1, 47.3)),
        "vgg": _family("VGGs", 28422, (178.4, 10289), (20.1, 1278), (25.6, 1467)),
        "densenet": _family("DenseNets", 1794, (109.6, 431.6), (26.7, 69.5), (26.4, 70.7)),
        "resnet": _family("ResNets", 4151, (35.9, 1921.7), (7.3, 329.5), (10.7, 145.5)),
        "squeezenet": _family("SqueezeNets", 1597, (42.7, 524.9), (7.5, 72.2), (6.9, 57.3)),
        "googlenet": _family("GoogleNets", 1475, (115.5, 274.6), (23.0, 49.0), (12.2, 24.4)),
        "mobilenetv1": _family("MobileNetv1s", 547, (27.5, 140.0), (5.5, 28.8), (8.9, 37.0)),
        "mobilenetv2": _family("MobileNetv2s", 392, (15.6, 211.0), (3.5, 37.0), (11.3, 86.1)),
        "mobilenetv3": _family("MobileNetv3s", 176, (10.4, 78.4), (4.3, 18.6), (17.4, 70.8)),
        "shufflenetv2": _family("ShuffleNetv2s", 307, (22.2, 84.3), None, (20.9, 44.2)),
        "mnasnet": _family("MnasNets", 327, (25.6, 99.3), (5.8, 24.1), (19.8, 60.9)),
        "proxylessnas": _family("ProxylessNass", 532, (34.5, 195.9), (7.9, 72.2), (18.0, 77.8)),
        "nasbench201": _family("NASBench201", 97.5, (5.6, 27.9), (1.8, 8.3), (2.3, 6.4)),
    }
)

TABLE_3: Mapping[str, PoolRelu] = MappingProxyType(
    {
        "VPU": PoolRelu(13, 26, 16, 39, fused=True),
        "GPU": PoolRelu(5.08, 3.50, 6.00, 8.60, fused=True),
        "CPU": PoolRelu(23.60, 0.81, 24.48, 24.42, fused=False),
    }
)

#: Table 4: kernels of ResNet18 and how many of each.
TABLE_4: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "VPU": {"conv++bn++relu": 9, "maxpool": 1, "conv++bn": 11, "add++relu": 8, "avgpool": 1, "fc": 1},
        "GPU": {"conv++bn++relu": 9, "maxpool": 1, "conv++bn++add++relu": 8, "conv++bn": 3, "avgpool": 1, "fc": 1},
        "CPU": {"conv++bn++relu": 9, "maxpool": 1, "conv++bn": 11, "add++relu": 8, "avgpool": 1, "fc": 1},
    }
)

#: Table 5: sample space of Conv++bn++relu.
TABLE_5: Mapping[str, str] = MappingProxyType(
    {
        "input HW": "224, 112, 56, 32, 28, 27, 14, 13, 8, 7, 1",
        "kernel size": "1, 3, 5, 7, 9",
        "stride": "1, 2, 4",
        "Cin": "3 - 2160",
        "Cout": "16 - 2048",
        "configurations": "about 0.7 billion",
    }
)


def _kernel(
    name: str, features: str, rows: tuple[int | None, ...], quality: tuple[tuple[float, float] | None, ...]
) -> PaperKernel:
    return PaperKernel(
        name,
        features,
        MappingProxyType({d: r for d, r in zip(DEVICES, rows, strict=True) if r is not None}),
        MappingProxyType({d: q for d, q in zip(DEVICES, quality, strict=True) if q is not None}),
    )


_CONV, _POOL = "HW, Cin, Cout, K, S, FLOPs, params", "HW, Cin, K, S"

#: Tables 6 and 9, keyed by the kinds of kernels here. Squeeze-and-excite is one kernel in the paper, several here; its channel
#: shuffle is the transpose here.
TABLES_6_9: Mapping[str, PaperKernel] = MappingProxyType(
    {
        "conv": _kernel("Conv++bn++relu", _CONV, (15824, 14040, 39968), ((6.24, 89.1), (6.77, 82.0), (18.74, 67.9))),
        "dwconv": _kernel(
            "DWConv++bn++relu", "HW, Cin, K, S, FLOPs, params", (4255, 5054, 7509), ((0.21, 97.4), (0.10, 98.7), (0.28, 89.4))
        ),
        "fc": _kernel("FC", "Cin, Cout, FLOPs, params", (2000, 3700, 7065), ((0.64, 94.3), (0.07, 96.2), (0.12, 93.9))),
        "maxpool": _kernel("maxpool", _POOL, (1200, 1366, 1264), ((0.12, 89.6), (0.06, 97.1), (0.21, 89.7))),
        "avgpool": _kernel("avgpool", _POOL, (2575, 1523, 2179), ((1.94, 99.0), (0.01, 99.7), (0.26, 95.4))),
        "se": _kernel("SE", "HW, Cin, ratio", (2000, 2000, 2000), ((0.45, 87.1), (0.39, 99.8), (0.44, 99.0))),
        "hswish": _kernel("hswish", "HW, Cin", (1567, 1567, 1533), ((0.16, 98.1), (0.01, 100), (0.02, 100))),
        "transpose": _kernel("channelshuffle", "HW, Cin", (1000, None, 1000), ((0.14, 99.5), None, (0.35, 100))),
        "bn": _kernel("bn++relu", "HW, Cin", (2307, 2000, None), ((0.85, 80.7), (0.01, 100), None)),
        "add": _kernel("add++relu", "HW, Cin", (2000, 2000, 2262), ((0.10, 93.7), (0.003, 98.3), (0.02, 98.9))),
        "concat": _kernel("concat", "HW, Cin1, Cin2, Cin3, Cin4", (7674, 8513, None), ((0.09, 89.3), (0.42, 77.1), None)),
    }
)

#: Table 7: device, processor, framework.
TABLE_7: tuple[tuple[str, str, str, str], ...] = (
    ("CPU", "Pixel4", "CortexA76 CPU", "TFLite v2.1"),
    ("GPU", "Xiaomi Mi9", "Adreno 640 GPU", "TFLite v2.1"),
    ("VPU", "Intel NCS2", "MyriadX VPU", "OpenVINO2019R2"),
)


def _hits(*cells: tuple[float, float, float, float] | None) -> Mapping[str, Hit]:
    return MappingProxyType({d: Hit(*c) for d, c in zip(DEVICES, cells, strict=True) if c is not None})


TABLE_8: Mapping[str, Mapping[str, Hit]] = MappingProxyType(
    {
        "alexnet": _hits((4.02, 3.90, 81.0, 98.6), (0.93, 5.32, 72.0, 94.0), (1.17, 10.74, 23.4, 60.9)),
        "vgg": _hits((185.71, 4.84, 66.1, 98.2), (12.74, 2.97, 91.8, 99.8), (85.35, 22.25, 27.1, 50.6)),
        "densenet": _hits((7.10, 2.76, 93.1, 99.9), (1.99, 4.52, 68.55, 99.9), (2.83, 5.89, 75.6, 86.3)),
        "googlenet": _hits((5.69, 3.27, 85.9, 100), (0.44, 1.35, 100, 100), (0.94, 5.86, 39.7, 98.4)),
        "squeezenet": _hits((7.19, 3.59, 84.5, 99.9), (1.17, 3.85, 81.9, 97.9), (1.93, 7.08, 66.1, 88.5)),
        "resnet": _hits((26.87, 4.41, 72.3, 98.1), (2.58, 3.16, 88.8, 99.9), (3.39, 7.42, 37.9, 84.2)),
        "mobilenetv1": _hits((3.71, 4.98, 63.8, 97.8), (0.37, 2.56, 96.9, 100), (1.21, 5.90, 54.2, 93.3)),
        "mobilenetv2": _hits((3.25, 4.84, 67.6, 97.7), (0.54, 3.93, 80.0, 99.0), (1.29, 4.26, 78.3, 97.6)),
        "mobilenetv3": _hits((2.03, 4.34, 73.8, 99.0), (0.40, 4.02, 84.4, 100), (2.47, 5.72, 47.6, 98.5)),
        "shufflenetv2": _hits((2.48, 5.01, 61.6, 98.3), None, (1.91, 6.37, 45.6, 91.3)),
        "mnasnet": _hits((3.19, 5.54, 50.9, 99.2), (0.25, 1.86, 100, 100), (1.76, 4.34, 77.3, 97.7)),
        "proxylessnas": _hits((3.18, 3.44, 84.6, 100), (0.61, 3.28, 95.6, 98.9), (1.97, 5.05, 65.6, 96.9)),
        "nasbench201": _hits((0.44, 3.51, 82.4, 99.9), (0.12, 3.80, 75.9, 100), (0.90, 18.20, 19.3, 40.6)),
    }
)

#: Section 7.2.2: +-10 % accuracy over all 26,000 models.
OVERALL_WITHIN_10PCT: Mapping[str, float] = MappingProxyType({"CPU": 99.0, "GPU": 99.1, "VPU": 83.4})

#: Section 7.2.1 on Fig. 9: +-10 % accuracy on unseen families, mean over five families and three devices.
FIGURE_9: Mapping[str, float] = MappingProxyType({"ours": 89.2, "flops": 22.1, "flops_mac": 17.1, "brp_nas": 8.5})

#: Section 7.3 on Fig. 11: +-10 % accuracy of the operator-level sum.
FIGURE_11_OPERATOR: Mapping[str, float] = MappingProxyType({"CPU": 91.3, "GPU": 53.7, "VPU": 8.5})

#: Table 10: (RMSE in ms, +-10 % accuracy in percent) of the Conv predictor by sampler.
TABLE_10: Mapping[str, Mapping[str, tuple[float, float]]] = MappingProxyType(
    {
        "random": {"CPU": (25.47, 21.92), "GPU": (1.67, 48.70), "VPU": (7.87, 23.98)},
        "adaptive": {"CPU": (10.13, 71.78), "GPU": (1.19, 75.34), "VPU": (7.58, 54.33)},
    }
)

#: Section 7.3: +-10 % accuracy on AlexNets with the Conv predictor trained on random samples.
ALEXNET_RANDOM: Mapping[str, float] = MappingProxyType({"CPU": 5.8, "GPU": 32.3, "VPU": 0.0})

#: Table 11: models measured on Adreno 630, by the Adreno 640 predictor and by the rebuilt one.
TABLE_11: Mapping[str, tuple[Hit, Hit]] = MappingProxyType(
    {
        "alexnet": (Hit(8.02, 25.40, 0.6, 2.3), Hit(0.87, 3.61, 86.5, 97.9)),
        "vgg": (Hit(154.50, 24.85, 0, 0), Hit(19.47, 3.10, 89.5, 99.9)),
        "densenet": (Hit(4.44, 7.80, 18.4, 84.0), Hit(2.41, 4.58, 67.1, 100)),
        "googlenet": (Hit(6.71, 17.03, 0, 0), Hit(1.45, 3.75, 95.8, 100)),
        "squeezenet": (Hit(8.02, 19.21, 0.4, 3.0), Hit(1.14, 3.30, 87.3, 100)),
        "resnet": (Hit(33.82, 21.36, 1.3, 11.0), Hit(2.52, 2.65, 93.4, 100)),
        "mobilenetv1": (Hit(0.28, 1.92, 98.3, 100), Hit(0.23, 1.68, 99.7, 100)),
        "mobilenetv2": (Hit(0.85, 5.43, 55.6, 97.2), Hit(0.41, 3.42, 85.7, 99.5)),
        "mobilenetv3": (Hit(0.87, 8.25, 5.2, 87.5), Hit(0.56, 6.14, 31.5, 99.6)),
        "mnasnet": (Hit(0.74, 5.45, 42.2, 99.8), Hit(0.31, 2.26, 99.9, 100)),
        "proxylessnas": (Hit(0.86, 4.33, 71.5, 100), Hit(0.21, 1.11, 100, 100)),
        "nasbench201": (Hit(0.77, 14.94, 3.2, 17.5), Hit(0.36, 6.22, 48.1, 90.6)),
    }
)
TABLE_11_OVERALL_REBUILT = 99.0

#: Table 12: measuring time in minutes (2.5, 1 and 4.4 days).
TABLE_12: Mapping[str, float] = MappingProxyType(
    {"CPU": 2.5 * MINUTES_PER_DAY, "GPU": 1.0 * MINUTES_PER_DAY, "VPU": 4.4 * MINUTES_PER_DAY}
)

#: Section 6: latency in ms of (HW 56, K 3, S 1, Cin 32, Cout 32) on the GPU by fused type.
CONV_FUSED_MS: Mapping[str, float] = MappingProxyType({"conv": 0.404, "conv++bn": 0.404, "conv++bn++relu": 0.405})


def family_key(name: str) -> str:
    """This project's name of a family, whatever the spelling: `MobileNet_V2`, `MobileNetv2s` -> `mobilenetv2`."""
    plain = "".join(c for c in name.lower() if c.isalnum())
    if plain not in TABLE_2 and plain.endswith("s") and plain[:-1] in TABLE_2:
        return plain[:-1]
    return plain
