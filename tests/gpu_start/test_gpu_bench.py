"""The bench of cold starts on a GPU: a small model is planned, started in fresh processes in all ways, and kept as rows."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from edgeplan.chapters.cold_start.gpu.page import GPU_REPORT, TOLERANCE, GpuStartEvidence, gpu_metrics
from edgeplan.chapters.cold_start.settings import GpuStartSettings
from edgeplan.chapters.cold_start.stages.cold_gpu import COLUMNS, GpuStartBench
from edgeplan.devices.config import load_device
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx

pytestmark = pytest.mark.skipif(find_spec("pyopencl") is None, reason="pyopencl is an extra")


@pytest.mark.long
def test_a_model_is_started_in_all_ways_and_one_that_cannot_says_why(tmp_path: Path) -> None:
    path = tmp_path / "opencl-here.yaml"
    options = {"platform": "Portable Computing Language", "cores": str(max(os.sched_getaffinity(0)))}
    path.write_text(yaml.safe_dump({"format_version": 1, "name": path.stem, "engine": "opencl", "options": options}))
    settings = GpuStartSettings(
        devices=[], models=("squeezenet",), plans=("warm", "K+C", "K", "default"), settings=("onnxruntime-cuda",),
        states=("cached",), repeats=1, compiled_repeats=1, warm_runs=1, gap=0.001, time_limit_s=5.0, lock_timeout_seconds=60.0,
    )  # fmt: skip
    b = GraphBuilder("small", (1, 3, 12, 12))
    model = save_onnx(b.build(b.fc(b.flatten(b.gap(b.conv_bn(b.input, 16, 3, 2))), 10)), tmp_path / "small.onnx")
    bench = GpuStartBench(load_device(path), settings, 0, tmp_path)
    rows = {kind: frame.assign(model="small") for kind, frame in bench.rows(model).items()}
    for kind, columns in COLUMNS.items():
        assert set(columns) < set(rows[kind].columns)
    own = rows["starts"].query("stock == 0")
    assert sorted(own["way"]) == sorted(settings.planners)
    assert (own["reason"] == "").all()
    assert own["error"].max() <= TOLERANCE
    stock = rows["starts"].query("stock == 1")
    assert ("onnxruntime" in stock["reason"].item()) != (stock["cold_ms"].item() > 0)
    evidence = GpuStartEvidence(path.stem, rows["starts"], rows["plans"], {"cores": 2, "fingerprint": "f"})
    found = gpu_metrics(evidence)
    assert found["cold_gpu.plan_gap_max"] <= 0.01
    assert found["cold_gpu.speedup_over_default"] > 1, "compiling takes many times as long as loading"
    GPU_REPORT.show(evidence, folder=tmp_path, metrics=tmp_path / "m.json", chapter=tmp_path / path.stem / "page.json")

    b = GraphBuilder("recurrent", (5, 1, 8))
    lost = bench.rows(save_onnx(b.build(b.lstm(b.input, 8)), tmp_path / "recurrent.onnx"))
    assert "no kernel of the device runs" in lost["starts"]["reason"].item()
