"""What FlexNN (MobiCom 2024) prints."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Section 5.2: peak memory saved against NCNN as it comes, Pixel 6 Pro.
REDUCTION: Mapping[str, float] = MappingProxyType({"resnet152": 0.9381, "vgg19": 0.9295})
#: Section 5.2: latency gained at that reduction.
OVERHEAD: Mapping[str, float] = MappingProxyType({"resnet152": 0.0364})
