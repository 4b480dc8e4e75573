"""What tests of pairs share: synthetic samples and evidence whose laws are known, small instances, and opened pairs."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from shipped_params import PARAMS_FILE

from edgeplan.chapters.partition import layers as drawing
from edgeplan.chapters.partition.evaluation.checked_page import CheckedEvidence
from edgeplan.chapters.partition.evaluation.tables import PartitionEvidence
from edgeplan.chapters.partition.layers import KINDS
from edgeplan.chapters.partition.learning.predictors import augmented, save_pair_predictors
from edgeplan.chapters.partition.learning.training import LAYER, OTHER, Trained, train_pair
from edgeplan.chapters.partition.measuring.opened import Opened, opened
from edgeplan.chapters.partition.settings import PartitionParams
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import DeviceError
from edgeplan.opencl.processor import OpenclDispatcher
from edgeplan.support.machine import fingerprint

DISPATCHER = OpenclDispatcher({"units": 1, "vector": 8, "block": 8, "work_group": 4096, "local_bytes": 0, "constant_bytes": 0})
DISPATCH = DISPATCHER.features
ABOUT = {
    "pair": "pair-test",
    "fingerprint": "machine",
    "versions": ("1", "2"),
    "handshake_us": {"polling": 2.0, "events": 30.0},
    "anchors_us": {"cpu": (100.0,) * len(drawing.ANCHORS), "gpu": (200.0,) * len(drawing.ANCHORS)},
}


def samples(count: int = 60, seed: int = 3) -> pd.DataFrame:
    """Layers whose time on the GPU follows the padded work of their dispatch, on the CPU the plain work; and other steps."""
    rows: list[dict[str, Any]] = []
    for kind in KINDS:
        layers = drawing.sampled(kind, count, (1e5, 1e9), seed)
        names, matrix = augmented(layers, DISPATCHER)
        for layer, name, row in zip(layers, names, matrix[:, -len(DISPATCH) :], strict=True):
            features = dict(zip(DISPATCH, row.tolist(), strict=True))
            times = {"cpu_us": layer.flops / 1e5, "gpu_us": 2 * features["padded_work"] / 8e4 + 1.0}
            about = {"name": layer.name, "family": "", "terms": "", "cpu_implementation": "jit", "gpu_implementation": name}
            rows.append({**asdict(layer), **about, **times, "dispatch": json.dumps(features)})
    none = {**dict.fromkeys(LAYER, 0), "kind": OTHER, "dispatch": "", "cpu_implementation": "", "gpu_implementation": ""}
    for k in range(1, 13):
        terms = {"cpu_us": 1 + 0.001 * k, "gpu_us": 2 + 0.002 * k, "terms": json.dumps([1.0, 4.0 * k, 0.0])}
        rows.append({**none, "name": "pool", "family": "pool.max", **terms})
    return pd.DataFrame(rows)


@cache
def trained(count: int = 60) -> Trained:
    return train_pair(samples(count), DISPATCHER, ABOUT, trials=1, test_share=0.2, seed=1)


def layer_rows(kind: str, name: str, us: dict[str, float], **more: float) -> pd.DataFrame:
    about = {"kind": kind, "name": name, "channels": 16, "now": 16, "outputs": 64, **more}
    return pd.DataFrame([{**about, "way": way, "us": value} for way, value in us.items()])


def model_rows(model: str, ms: dict[str, float], **ours: float) -> pd.DataFrame:
    """Rows of one model; `ours` are columns of our plan."""
    nothing = dict.fromkeys(("predicted_ms", "peak_mib", "cpu_ms", "splits", "steps", "plan_seconds", "plan_gap"), np.nan)
    rows = []
    for way, median in ms.items():
        own = ours if way == "ours" else {}
        row = {**nothing, "slowdown": 1.0, "repeat": 1.01, "error": 1e-7, "tolerance": 1e-5, "reason": "", **own}
        rows.append({"model": model, "way": way, "median_ms": median, **row})
    return pd.DataFrame(rows)


def checked_rows() -> pd.DataFrame:
    """Three models: a plan for both processors, all cores, and one on whose fresh runs another way was faster."""
    rows: list[dict[str, Any]] = []
    for model, way, times, over in (
        ("vgg16", "planned", {"cpu": 20.0, "gpu": 16.0, "cpu, all cores (nhwc)": 12.0, "planned": 10.0, "openvino": 11.0}, 0.8),
        ("resnet18", "cpu, all cores (nhwc)", {"cpu": 20.0, "gpu": 30.0, "cpu, all cores (nhwc)": 12.0, "planned": 16.0}, 0.6),
        ("alexnet", "gpu", {"cpu": 8.0, "gpu": 10.0, "openvino": 9.0}, 1.25),
    ):
        for name, ms in times.items():
            row = {"model": model, "way": name, "median_ms": ms, "chosen": float(name == way)}
            row |= {"over_best": over, "over_low": over - 0.02, "over_high": over + 0.02, "planned_ms": 9.0}
            row |= {"machine": "here", "check_ms": ms, "ops_ms": {"planned": 8.0, "cpu": 19.0, "gpu": 15.0}.get(name, np.nan)}
            rows.append(row | {"stock": float(name == "openvino"), "seconds": 12.0, "splits": 3, "steps": 20})
    return pd.DataFrame(rows).assign(reason="")


def later_rows() -> pd.DataFrame:
    """Three models, each in three processes later: one as it says, one by the median alone, and one that did not run."""
    rows = [("vgg16", 10.0, (10.0, 11.0, 10.5)), ("resnet18", 12.0, (9.0, 13.0, 30.0)), ("alexnet", 8.0, (np.nan,) * 3)]
    return pd.DataFrame(
        {"model": model, "process": float(k), "written_ms": says, "unscaled_ms": 7.0, "median_ms": ms, "waited_s": 600.0}
        for model, says, times in rows
        for k, ms in enumerate(times)
    ).assign(reason="", machine="here")


def checked_evidence(**changes: Any) -> CheckedEvidence:
    """Three models, by hand."""
    parts: dict[str, Any] = {"pair": "pair-test", "checked": checked_rows(), "later": later_rows()}
    machines = {name: {"cpu": f"a processor {name}", "cores": 2} for name in ("here", "there")}
    parts |= {"environment": {"cores": 2, "fingerprint": "f", "machines": machines, "second_on_cores": True}}
    parts["environment"]["asked"] = ["vgg16", "resnet18", "alexnet"]
    return CheckedEvidence(**(parts | changes))


def evidence(**changes: Any) -> PartitionEvidence:
    """Two layers, one model, handshakes and curves by hand."""
    plain = "without dispatch features"
    linear = {"cpu": 100, "gpu": 200, "search": 50, "ours": 60, "equal": 110, "fixed": 80, plain: 50}
    conv = {"cpu": 300, "gpu": 150, "search": 100, "ours": 100, "equal": 150, "fixed": 160, plain: 150}
    layers = [layer_rows("linear", "a", linear), layer_rows("conv", "b", conv)]
    ms = {"ours": 10.0, "cpu": 15.0, "gpu": 20.0, "equal": 12.0, "fixed": 12.5, "greedy": 10.5, "ncnn": 9.0}
    models = model_rows("resnet18", ms, predicted_ms=9.0, splits=4, steps=20, plan_seconds=0.5, plan_gap=0.0)
    handshakes = pd.DataFrame(
        {"synchronisation": ["polling", "events"], "least_us": [2.0, 25.0], "median_us": [3.0, 40.0], "note": ["", ""]}
    )
    outputs = np.array([16, 32, 48])
    curve = {"outputs": outputs, "implementation": ["x", "x", "y"], "work_groups": outputs / 16}
    for name in ("cpu", "gpu"):
        curve |= {f"{name}_{part}": outputs * 2.0 for part in ("us", "low_us", "high_us")}
    curve |= {f"{name}_us": outputs * 2.1 for name in ("ours", "plain", "linear regression", "network")}
    figures = ("figure_02", "figure_03", "figure_05", "figure_06")
    importance = pd.DataFrame({"kind": "conv", "feature": ["flops", "dispatch.waves"], "gain": [1.0, 3.0]})
    parts: dict[str, Any] = {
        "pair": "pair-test",
        "errors": trained().errors,
        "importance": importance.assign(implementation="x"),
        "layers": pd.concat(layers, ignore_index=True),
        "models": models,
        "handshakes": handshakes,
        "curves": pd.concat([pd.DataFrame(curve).assign(figure=figure) for figure in figures], ignore_index=True),
        "environment": {"cores": 2, "layers_by_rule": {"linear": 8610, "conv": 2038}, "fingerprint": "f"},
    }
    return PartitionEvidence(**(parts | changes))


def partition_params(**changes: object) -> PartitionParams:
    """The shipped parameters, changed."""
    document = yaml.safe_load(PARAMS_FILE.read_text())
    document["partition"] |= changes
    return PartitionParams.model_validate({name: document[name] for name in ("seed", "devices", "partition")})


PAIR = "pair-pocl"
_ROOT = Path(__file__).parents[2]


@contextlib.contextmanager
def opened_here(workspace: Path) -> Iterator[Opened]:
    """Open `pair-pocl` of a workspace, as for measuring."""
    try:
        with opened(load_pair(workspace / f"config/pairs/{PAIR}.yaml"), profiling=True) as found:
            yield found
    except DeviceError as error:
        if "no OpenCL platform" in error.what:
            pytest.skip(error.what)
        raise


def write_workspace(folder: Path) -> Path:
    """Write the shipped devices, and a pair of two cores that this process may use."""
    shutil.copytree(_ROOT / "config/devices", folder / "config/devices")
    document = yaml.safe_load((_ROOT / f"config/pairs/{PAIR}.yaml").read_text())
    for side, core in zip(document["processors"], sorted(os.sched_getaffinity(0)), strict=False):
        side["cores"] = [core]
    (folder / "config/pairs").mkdir()
    (folder / f"config/pairs/{PAIR}.yaml").write_text(yaml.safe_dump(document))
    return folder


def save_predictors(workspace: Path) -> Path:
    """Save those of synthetic laws, as if they were measured on the pair of a workspace."""
    found = trained().predictors
    with opened_here(workspace) as pair:
        versions, numbers = pair.versions, pair.numbers
    known = {"pair": PAIR, "fingerprint": fingerprint(), "versions": versions, "numbers": numbers}
    card = found.card.model_copy(update={**known, "fixed_share": {"linear": 0.5, "conv": 0.5}})
    folder = workspace / f"results/{PAIR}/partition/predictors"
    save_pair_predictors(replace(found, card=card), folder)
    return folder


_SPREAD = 2.2


def chain(steps: int, seed: int, *, mb_per_ms: float = 0.0, **more: Any) -> dict[str, Any]:
    """The cost document of convolutions one behind the other, whose outputs are moved at a speed (0: they are not)."""
    rng = random.Random(seed)  # noqa: S311 (instances, not secrets)
    operators: list[dict[str, Any]] = []
    for k in range(steps):
        image, channels, affinity = rng.choice((56, 28, 14)), 16 * rng.randint(2, 16), rng.uniform(1 / _SPREAD, _SPREAD)
        cpu, gpu = (image * image * 64 * channels * 18 / 1e6 / speed for speed in (115.0 / affinity, 160.0 * affinity))
        options: list[dict[str, Any]] = [{"on": "cpu", "cpu_ms": cpu}, {"on": "gpu", "gpu_ms": gpu}]
        for share in (c / channels for c in range(16, channels, 16)):
            wobble = rng.uniform(1.0, 1.08)
            parts = {"cpu_ms": cpu * share * wobble + 0.002, "gpu_ms": gpu * (1 - share) * wobble + 0.003}
            options.append({"on": "split", "cpu_share": share, "dimension": "channels", **parts})
        entry = {"name": f"conv{k}", "inputs": [f"conv{k - 1}"] if k else [], "options": options}
        moved_ms = image * image * channels * 4 / 1e6 / mb_per_ms if mb_per_ms else 0.0
        operators.append({**entry, "to_cpu_ms": moved_ms, "to_gpu_ms": moved_ms})
    head = {"format_version": 1, "model": "instance", "cpu_to_gpu_ms": 0.002, "gpu_to_cpu_ms": 0.002}
    return {**head, **more, "operators": operators}
