"""This module holds what EOP (VEE 2022) prints. Its times are sums of estimates (equation 4); none was run end to end."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

#: Table 1: subgraphs and operators of TVM's graphs.
OPERATORS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "inception_v3": (47, 416),
        "mobilenetv1": (28, 113),
        "yolov3": (106, 354),
        "lstm": (2, 347),
        "gru": (2, 337),
        "bert": (12, 903),
    }
)
#: Table 4: equal, fixed, EOP. It says us; ms is meant, else YOLOv3 of 16 images would be 11 PFLOP/s.
CNNS: Mapping[str, tuple[float, float, float]] = MappingProxyType(
    {
        "inception_v3": (4999.43, 2539.66, 1498.49),
        "mobilenetv1": (164.20, 43.29, 33.57),
        "yolov3": (827.66, 234.02, 221.51),
    }
)
#: Table 5: operator -> the CPU's and the GPU's share, and the dimension. Two pairs do not add to 1.
RATIOS: Mapping[tuple[str, str], tuple[float, float, str]] = MappingProxyType(
    {
        ("RNNs", "split"): (0.62, 0.38, "HW"),
        ("RNNs", "concatenate"): (0.23, 0.77, "HW"),
        ("RNNs", "dense"): (0.15, 0.85, "batch"),
        ("RNNs", "add"): (0.90, 0.10, "batch"),
        ("RNNs", "sigmoid"): (0.80, 0.20, "HW"),
        ("RNNs", "tanh"): (0.87, 0.12, "HW"),
        ("RNNs", "multiply"): (0.18, 0.22, "HW1W2"),
        ("Transformers", "subtract"): (0.32, 0.68, "batch"),
        ("Transformers", "transpose"): (0.70, 0.30, "HW1W2"),
        ("Transformers", "dense"): (0.28, 0.72, "HW1W2"),
    }
)
#: Sections 2.3 and 3.2: operator, dimension, processor -> the pattern that the text names (its figure 4 names more, but which
#: curve is which operator's cannot be read).
PATTERNS: Mapping[tuple[str, str, str], str] = MappingProxyType(
    {
        **{("conv2d", "batch", side): "linear" for side in ("cpu", "gpu")},
        ("dense", "HW1W2", "gpu"): "linear",
        ("dense", "HW1W2", "cpu"): "staircase",
        ("multiply", "HW", "cpu"): "staircase",
        **{("split", dimension, side): "constant" for dimension in ("batch", "HW") for side in ("cpu", "gpu")},
    }
)
#: Section 5.5, figure 11: EOP over the better baseline, BERT.
BOTH_CONDITIONS = 1.45
