"""Holds the numbers NNV12 (MobiSys 2023) reports, each with its table, figure or section; Table 4 is in the zoo."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

#: Table 1: stages of a cold inference of ResNet-50 on the CPU of a Google Pixel 5, in ms.
TABLE1_PIXEL5_MS: Mapping[str, float] = MappingProxyType(
    {"read": 36.52, "memory allocation": 1.34, "transform": 1135.28, "execute": 190.12, "total cold": 1363.23, "warm": 185.82}
)


class KernelCost(NamedTuple):
    """Holds a row of Table 2, in ms: preparation on little cores, execution on big ones (conv 3x3, stride 1, 64 -> 192)."""

    kernel: str
    read_raw_ms: float
    transform_ms: float
    read_cache_ms: float
    execute_ms: float


TABLE2 = (
    KernelCost("3x3s1-winograd-pack4", 0.70, 38.23, 5.23, 2.98),
    KernelCost("sgemm-pack4", 0.70, 2.21, 0.70, 8.14),
    KernelCost("pack4", 0.70, 2.22, 0.70, 18.63),
    KernelCost("3x3s1-winograd", 0.70, 65.67, 4.12, 3.37),
    KernelCost("3x3s1", 0.70, 0.00, 0.70, 8.01),
    KernelCost("general", 0.70, 0.00, 0.70, 87.12),
)

#: Table 4: time to generate the plan, in ms: on the CPUs of a Meizu 16T and of a Pixel 5 (MobileNet and MobileNetV2 are printed
#: with the same time), and on the GPUs of a Jetson TX2 and of a Jetson Nano.
_TABLE4_PLANNING_MS = {
    "alexnet": (1538.4, 4157.4, 8197.3, 22962.6),
    "googlenet": (1301.9, 2304.3, 6457.6, 9648.7),
    "mobilenet": (796.5, 1796.5, 5443.0, 8357.5),
    "mobilenetv2": (759.3, 1796.5, 4770.0, 8441.1),
    "resnet18": (892.6, 1896.2, 1461.1, 2599.1),
    "shufflenet": (577.8, 1005.9, 5872.3, 7996.8),
    "efficientnet_b0": (1129.9, 2446.0, 6481.2, 6031.4),
    "resnet50": (1652.2, 2974.3, 3757.6, 3854.0),
    "squeezenet": (717.9, 1788.8, 5849.8, 6738.9),
    "shufflenetv2": (532.1, 920.7, 4724.5, 5665.3),
    "mobilenetv2_yolov3": (849.2, 2544.5, 3394.3, 4979.7),
    "mobilenet_yolo": (984.2, 2485.5, 5047.5, 7710.2),
    "crnn_lite": (116.32, 375.32, 4597.6, 6257.3),
}
TABLE4_PLANNING_MEIZU_MS, TABLE4_PLANNING_PIXEL5_MS, TABLE4_PLANNING_TX2_MS, TABLE4_PLANNING_NANO_MS = (
    MappingProxyType({model: times[k] for model, times in _TABLE4_PLANNING_MS.items()}) for k in range(4)
)


#: Table 5: least, largest and mean speed-up on CPUs, by device and baseline.
TABLE5: Mapping[str, Mapping[str, tuple[float, float, float]]] = MappingProxyType(
    {
        "Meizu 16T": {"ncnn": (1.1, 10.3, 3.7), "TFLite": (4.2, 15.2, 7.5)},
        "Pixel 5": {"ncnn": (1.1, 6.4, 2.8), "TFLite": (2.1, 5.2, 2.2)},
        "Redmi 9": {"ncnn": (1.2, 8.5, 3.1), "TFLite": (1.1, 8.9, 3.2)},
        "Meizu 18 Pro": {"ncnn": (1.2, 16.4, 3.9), "TFLite": (1.5, 9.4, 5.2)},
    }
)

#: Section 2, Figure 2: cold over warm on CPUs, least and largest.
FIGURE2_COLD_OVER_WARM = (1.5, 12.7)
#: Section 3.3, Figure 6: what the big core of a Meizu 16T gains over the little one, by stage.
FIGURE6_BIG_OVER_LITTLE: Mapping[str, float] = MappingProxyType({"read": 2.0, "transform": 3.8, "execute": 6.0})
#: Section 4.2: own cold over warm, mean.
COLD_OVER_WARM = 1.72
#: Section 4.2, Figure 9: cores at which the stock engines start soonest, by device.
FIGURE9_BEST_CORES: Mapping[str, int] = MappingProxyType({"Meizu 16T": 4, "Pixel 5": 2})
#: Section 4.2, Figure 11 (GoogLeNet, Meizu 16T): slow-down under load without stealing (at most), and with it when two little
#: cores are loaded by 50 % (50 to 75 ms).
FIGURE11_WITHOUT_STEALING = 2.1
FIGURE11_WITH_STEALING = 75 / 50
#: The same of ncnn, which executes on big cores alone.
FIGURE11_STOCK = "none with little cores loaded, more with big ones"
#: Section 4.3, Figure 13: ResNet-50 on a Jetson TX2, in ms: vanilla ncnn, then each technique added.
FIGURE13_TX2_MS: Mapping[str, float] = MappingProxyType({"warm": 8272.0, "K": 2300.0, "K+C": 555.0, "K+C+P": 240.0})
#: Section 4.5, Figure 14: latency over ncnn's in the second inference, and from the third on.
FIGURE14_OVER_NCNN: Mapping[int, float] = MappingProxyType({2: 1.08, 3: 1.0})
