"""Starts a model by ncnn, f32, on the CPU or by Vulkan, as a program of one's own does: nothing of edgeplan is imported."""

import json
import os
import sys
import time
from typing import Any

import ncnn
import numpy as np

job = json.loads(sys.argv[1])


def matrices() -> dict[str, Any]:
    """Return the inputs without their batch axis; cloned: a Mat around numpy's array neither owns nor aligns its memory."""
    return {f"in{k}": ncnn.Mat(value[0]).clone() for k, value in enumerate(np.load(job["inputs"]).values())}


inputs = matrices()
gpu = job.get("gpu", False)
if gpu:
    os.environ.update(job.get("environment", {}))  # a driver reads it when it is loaded
    ncnn.create_gpu_instance()
    if not ncnn.get_gpu_count():
        sys.exit("Vulkan finds no GPU: its loader (libvulkan1) or the driver's file (VK_DRIVER_FILES) is missing")
    ncnn.get_gpu_device(0)
print("{}", flush=True)
sys.stdin.readline()

start = time.perf_counter()
net = ncnn.Net()
net.opt.num_threads, net.opt.use_vulkan_compute = job["threads"], gpu
for option in ("fp16_packed", "fp16_storage", "fp16_arithmetic", "bf16_packed", "bf16_storage", *job.get("without", ())):
    if hasattr(net.opt, f"use_{option}"):  # the newer ones are unknown to older versions
        setattr(net.opt, f"use_{option}", False)
failed = net.load_param(job["main"])
graph = time.perf_counter()
if failed or net.load_model(job["companions"]["weights"]):
    sys.exit("ncnn cannot load the converted model: it holds a layer that ncnn does not have")


def run() -> list[Any]:
    """Run one inference; its outputs."""
    extractor = net.create_extractor()
    for name, value in inputs.items():
        extractor.input(name, value)
    found = [extractor.extract(name) for name in job["shapes"]]
    if any(code for code, _ in found):
        sys.exit("ncnn could not compute the outputs of the converted model")
    return [value for _, value in found]


opened = time.perf_counter()
outputs = run()
parts = {"load_graph": graph - start, "load_and_transform_weights": opened - graph}
print(json.dumps({"open": opened - start, "first_run": time.perf_counter() - opened, **parts}), flush=True)
for asked in sys.stdin:
    start = time.perf_counter()
    if asked == "run\n":
        outputs = run()
    elif asked == "inputs\n":
        inputs = matrices()
    else:
        shapes = job["shapes"].values()
        np.savez(job["outputs"], *(np.array(value).reshape(shape) for value, shape in zip(outputs, shapes, strict=True)))
    print(json.dumps({"run": time.perf_counter() - start}), flush=True)
