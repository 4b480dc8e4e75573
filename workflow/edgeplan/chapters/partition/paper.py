"""This module holds what LiPG (EPEW 2025) prints."""

from __future__ import annotations

from collections.abc import Mapping

#: Table 1: MAPE in percent by device and kind: GPU, then 1, 2 and 3 CPU threads.
MAPE: Mapping[tuple[str, str], tuple[float, float, float, float]] = {
    ("Pixel 4", "linear"): (4.4, 11.5, 7.1, 5.8),
    ("Pixel 4", "conv"): (8.5, 11.4, 8.8, 7.2),
    ("Pixel 5", "linear"): (3.7, 6.2, 7.8, 7.2),
    ("Pixel 5", "conv"): (7.7, 6.9, 8.1, 7.1),
    ("Moto 2022", "linear"): (4.0, 2.5, 2.6, 2.4),
    ("Moto 2022", "conv"): (9.0, 4.0, 3.6, 3.5),
    ("OnePlus 11", "linear"): (3.7, 3.1, 2.9, 3.1),
    ("OnePlus 11", "conv"): (7.4, 4.8, 4.2, 4.4),
}
#: Table 2: mean speedup by device and method: linear layers on 1, 2 and 3 threads beside the GPU, then convolutions.
SPEEDUP: Mapping[tuple[str, str], tuple[float, float, float, float, float, float]] = {
    ("Pixel 4", "GBDT"): (1.21, 1.52, 1.84, 1.22, 1.46, 1.69),
    ("Pixel 4", "search"): (1.29, 1.59, 1.92, 1.31, 1.56, 1.79),
    ("Pixel 5", "GBDT"): (1.51, 1.78, 1.89, 1.45, 1.69, 1.75),
    ("Pixel 5", "search"): (1.63, 1.92, 2.01, 1.49, 1.80, 1.87),
    ("Moto 2022", "GBDT"): (1.20, 1.32, 1.44, 1.16, 1.27, 1.39),
    ("Moto 2022", "search"): (1.23, 1.36, 1.49, 1.22, 1.34, 1.46),
    ("OnePlus 11", "GBDT"): (1.06, 1.17, 1.26, 1.07, 1.22, 1.35),
    ("OnePlus 11", "search"): (1.13, 1.25, 1.35, 1.12, 1.27, 1.40),
}
#: Table 3, by device and network: the GPU alone in ms, individual operators in ms and their speedup over it, end to end in ms
#: and its speedup.
OPERATORS: Mapping[str, Mapping[str, tuple[float, float, float, float, float]]] = {
    "Pixel 4": {
        "vgg16": (83.3, 70.8, 1.18, 73.0, 1.14),
        "resnet18": (17.5, 11.0, 1.59, 11.4, 1.54),
        "resnet34": (37.5, 22.2, 1.69, 22.5, 1.67),
        "inception_v3": (99.5, 59.1, 1.68, 61.5, 1.62),
    },
    "Pixel 5": {
        "vgg16": (194.8, 119.8, 1.63, 125.1, 1.56),
        "resnet18": (33.2, 18.2, 1.82, 18.6, 1.78),
        "resnet34": (65.2, 36.9, 1.77, 37.1, 1.76),
        "inception_v3": (184.3, 99.9, 1.85, 102.9, 1.79),
    },
    "Moto 2022": {
        "vgg16": (32.0, 28.7, 1.11, 29.7, 1.08),
        "resnet18": (7.5, 6.3, 1.18, 6.7, 1.11),
        "resnet34": (14.7, 12.2, 1.20, 12.9, 1.14),
        "inception_v3": (52.0, 38.8, 1.34, 41.1, 1.27),
    },
    "OnePlus 11": {
        "vgg16": (27.4, 25.3, 1.09, 26.2, 1.05),
        "resnet18": (8.5, 6.6, 1.29, 6.8, 1.25),
        "resnet34": (17.6, 13.5, 1.31, 13.8, 1.27),
        "inception_v3": (44.2, 36.2, 1.22, 37.8, 1.17),
    },
}
#: Its end-to-end speedups by network, on these four devices.
END_TO_END: Mapping[str, tuple[float, ...]] = {
    network: tuple(of_device[network][-1] for of_device in OPERATORS.values()) for network in OPERATORS["Pixel 4"]
}
#: Table 4: on the Moto 2022 with 1, 2 and 3 threads, linear layers and convolutions.
ABLATION: Mapping[str, tuple[float, float, float, float, float, float]] = {
    "ours": (1.20, 1.32, 1.44, 1.16, 1.27, 1.39),
    "without dispatch features": (1.12, 1.24, 1.37, 1.08, 1.19, 1.31),
    "waiting for events": (0.76, 0.81, 0.88, 0.98, 1.07, 1.17),
}
#: Of Table 2's 24 pairs, GBDT's gain over search's: the sums of both.
POOLED_SHARE = 0.841
#: Section 5.5: handshakes of linear layers in us, waiting for events and polling.
HANDSHAKE_US = (162.0, 7.0)
#: Section 5.3: as many layers as it says that its rules give.
LAYERS: Mapping[str, int] = {"linear": 2039, "conv": 2051}


#: Table 1: subgraphs and operators of TVM's graphs.
KEY_OPERATORS: Mapping[str, tuple[int, int]] = {
    "inception_v3": (47, 416),
    "mobilenetv1": (28, 113),
    "yolov3": (106, 354),
    "lstm": (2, 347),
    "gru": (2, 337),
    "bert": (12, 903),
}
#: Table 4: equal, fixed, EOP. It says us; ms is meant, else YOLOv3 of 16 images would be 11 PFLOP/s.
CNNS: Mapping[str, tuple[float, float, float]] = {
    "inception_v3": (4999.43, 2539.66, 1498.49),
    "mobilenetv1": (164.20, 43.29, 33.57),
    "yolov3": (827.66, 234.02, 221.51),
}
#: Table 5: operator -> the CPU's and the GPU's share, and the dimension. Two pairs do not add to 1.
RATIOS: Mapping[tuple[str, str], tuple[float, float, str]] = {
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
#: Sections 2.3 and 3.2: operator, dimension, processor -> the pattern that the text names (its figure 4 names more, but which
#: curve is which operator's cannot be read).
PATTERNS: Mapping[tuple[str, str, str], str] = {
    **{("conv2d", "batch", side): "linear" for side in ("cpu", "gpu")},
    ("dense", "HW1W2", "gpu"): "linear",
    ("dense", "HW1W2", "cpu"): "staircase",
    ("multiply", "HW", "cpu"): "staircase",
    **{("split", dimension, side): "constant" for dimension in ("batch", "HW") for side in ("cpu", "gpu")},
}
#: Section 5.5, figure 11: EOP over the better baseline, BERT.
BOTH_CONDITIONS = 1.45
