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
