"""These numbers are those that FlexNN (MobiCom 2024) prints."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Section 5.2: peak memory saved against NCNN as it comes, Pixel 6 Pro.
REDUCTION: Mapping[str, float] = MappingProxyType({"resnet152": 0.9381, "vgg19": 0.9295})
#: Section 5.2: latency gained at that reduction, over NCNN as it comes.
OVERHEAD: Mapping[str, float] = MappingProxyType({"resnet152": 0.0364})
#: Table 2: MB of transformed weights, and milliseconds of slicing, profiling and planning.
OFFLINE: Mapping[str, tuple[float, float, float, float]] = MappingProxyType(
    {
        "vgg19": (781.0, 2458.96, 689.25, 5.27),
        "resnet152": (547.0, 2228.76, 540.94, 864.67),
        "vit_b_16": (337.0, 888.84, 1438.84, 390.55),
    }
)
#: Section 2: phones compute for about so many times as long as they read the same weights.
COMPUTE_OVER_READING = 3.0
#: How far from it a slowed processor may be.
RATIO_TOLERANCE = 0.2
#: Section 5.2: memory saved on Pixel 6 Pro against engines and strategies by our names, and time saved in as much memory.
SAVED: Mapping[tuple[str, str], tuple[float, float]] = MappingProxyType(
    {
        ("vgg19", "ncnn"): (0.9295, 0.0637),
        ("vgg19", "ncnn-direct"): (0.9001, 0.8363),
        ("vgg19", "on demand"): (0.8513, 0.5833),
        ("resnet152", "ncnn"): (0.9381, 0.1108),
        ("resnet152", "ncnn-direct"): (0.8545, 0.6111),
        ("resnet152", "on demand"): (0.2521, 0.6333),
    }
)
#: Section 5.4: energy gained over NCNN, whose weights stay in memory.
ENERGY: Mapping[str, float] = MappingProxyType({"resnet152": 0.0102, "vgg19": 0.2839})
