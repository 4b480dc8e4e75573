"""Reads labelled convolutions of carriers as the models that steer the sampling see them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from edgeplan.chapters.prediction.sampling.prior import ConvShape
from edgeplan.graph.kernels import KernelConfig
from edgeplan.predictors.features import features

Row = dict[str, object]
CONVOLUTIONS = ("conv", "dwconv")


def shape_of(config: KernelConfig) -> ConvShape:
    """Return the convolution of a kernel, as samplers draw it."""
    depthwise = config.kind == "dwconv"
    return ConvShape(config.in_height, config.in_channels, config.out_channels, config.kernel_h, config.stride_h, depthwise)


def config_of(row: Row) -> KernelConfig:
    """Return the configuration of a labelled row."""
    return KernelConfig.from_json(str(row["config"]))


def latency_of(row: Row) -> float:
    """Return the label of a row, microseconds."""
    return float(str(row["latency_us"]))


def design(configs: Sequence[KernelConfig]) -> npt.NDArray[np.float64]:
    """Return features of convolutions of both kinds (kernels, features): those of the predictors, and which kind it is."""
    return np.hstack([features(configs), np.array([[float(c.kind == "dwconv")] for c in configs])])


def log_work(configs: Sequence[KernelConfig]) -> npt.NDArray[np.float64]:
    """Return the logarithm of the multiply-adds of convolutions (kernels,)."""
    return np.log(np.array([shape_of(c).macs for c in configs], dtype=np.float64))
