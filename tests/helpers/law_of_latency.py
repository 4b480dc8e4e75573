"""Labels of a known law, and predictors trained on them: shared by the tests of predictors."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
from edgeplan.predictors.kernel_tables import ModelKernels
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.training import train_predictor

from edgeplan.graph.kernels import KernelConfig
from edgeplan.predictors.settings import TrainingSettings

SETTINGS = TrainingSettings(trials=0, folds=3, min_rows_per_implementation=25)
TUNED = SETTINGS.model_copy(update={"trials": 2})
ABOUT = {
    "device": "bench",
    "engine": "law",
    "engine_version": "1",
    "call_us": 7.0,
    "plain_layouts": {"4": "nchw"},
    "measured_at": "2026-01-01",
}


def conv(cin: int, cout: int, size: int, kernel: int = 3) -> KernelConfig:
    pad = kernel // 2
    return KernelConfig(
        "conv", "conv++bn++relu", in_channels=cin, in_height=size, in_width=size, out_channels=cout, out_height=size,
        out_width=size, kernel_h=kernel, kernel_w=kernel, pad_top=pad, pad_left=pad, pad_bottom=pad, pad_right=pad, bias=True,
        activation="relu",
    )  # fmt: skip


def relu(channels: int, size: int) -> KernelConfig:
    sizes = {"in_channels": channels, "in_height": size, "in_width": size}
    return KernelConfig("relu", "relu", **sizes, out_channels=channels, out_height=size, out_width=size)  # type: ignore[arg-type]


def reorder(channels: int, size: int) -> KernelConfig:
    sizes = {"in_channels": channels, "in_height": size, "in_width": size}
    return KernelConfig("reorder", "reorder", **sizes, out_channels=channels, out_height=size, out_width=size)  # type: ignore[arg-type]


def law(config: KernelConfig, implementation: str) -> float:
    """Blocked convolutions are twice as fast; channels that are no multiple of 16 cost their padding."""
    elements = config.out_channels * config.out_height * config.out_width
    if config.kind != "conv":
        return 0.5 + elements / (4e3 if config.kind == "relu" else 2e3)
    padded = -(-config.out_channels // 16) * 16
    macs = padded * config.out_height * config.out_width * config.in_channels * config.kernel_h * config.kernel_w
    return 2.0 + macs / (4e4 if implementation == "Conv.blocked" else 2e4)


def without_samples(predictor: DevicePredictor) -> DevicePredictor:
    """The same, telling no sizes of samples: those of the law are in no model, and so far from the kernels of any."""
    silent = tuple(r.model_copy(update={"samples": "", "near": 0.0, "far": 0.0}) for r in predictor.card.regressors)
    return DevicePredictor(predictor.card.model_copy(update={"regressors": silent}), predictor.texts)


def rows(count: int = 700, *, told: bool = True) -> pd.DataFrame:
    """Labels of the law. Convolutions of 32 channels and more are dispatched to the blocked implementation."""
    rng = np.random.default_rng(3)
    found = []
    for number in range(count):
        kind = ("conv", "conv", "conv", "relu", "reorder")[number % 5]
        channels, size = int(rng.integers(8, 129)), int(rng.integers(7, 57))
        state = ("nchw", "nchwc")[int(rng.integers(2))]
        if kind == "conv":
            config = conv(channels, int(rng.integers(8, 129)), size, (1, 3, 5)[int(rng.integers(3))])
            blocked = config.in_channels >= 32
            names = ("Conv.blocked", "nchwc", "nchwc") if blocked else ("Conv.plain", "nchw", "nchw")
        elif kind == "relu":
            config, names = relu(channels, size), ("Relu", state, state)
        else:
            to = "nchw" if state == "nchwc" else "nchwc"
            config, names = reorder(channels, size), (f"{state}>{to}", state, to)
        found.append(
            {
                "subject": f"carrier{number // 10}",
                "sampler": "frozen" if number >= count * 0.85 else "adaptive",
                "kind": kind,
                "type": config.type,
                "config": config.to_json(),
                "implementation": names[0] if told else "",
                "input_state": state if told else "",
                "input_layout": names[1] if told else "",
                "output_layout": names[2] if told else "",
                "latency_us": law(config, names[0]) * float(rng.lognormal(0, 0.01)),
                "noise": 0.01,
            }
        )
    return pd.DataFrame(found)


def model(name: str = "net") -> ModelKernels:
    """Plain conv, blocked conv, relu, blocked conv (graph output); the relu is read by a plain conv too (graph output)."""
    configs = (conv(16, 64, 28), conv(64, 64, 28), relu(64, 28), conv(64, 48, 28), conv(24, 32, 28))
    shapes = (reorder(16, 28), reorder(64, 28), reorder(64, 28), reorder(64, 28), reorder(48, 28), reorder(32, 28))
    return ModelKernels(
        name,
        ("c0", "c1", "r2", "c3", "c4"),
        configs,
        ((0,), (1,), (2,), (3,), (3,)),
        shapes,
        (4,) * 6,
        (-1, 0, 1, 2, 3, 4),
        (4, 5),
    )


@cache
def trained_once() -> tuple[DevicePredictor, pd.DataFrame]:
    """Predictors of the law, and what they say of rows that were held out; not to be changed."""
    return train_predictor(rows(), SETTINGS, **ABOUT)
