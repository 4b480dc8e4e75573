"""Starts a model by ONNX Runtime, on an NVIDIA GPU where a provider is asked for, as a program of one's own does.

Nothing of edgeplan is imported.
"""

import json
import sys
import time
from typing import Any

import numpy as np
import onnxruntime as ort

job = json.loads(sys.argv[1])
inputs = dict(np.load(job["inputs"]))
ort.set_default_logger_severity(3)  # creates the environment; errors only
options = ort.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads = job["threads"], 1
options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, job.get("level", "ORT_ENABLE_ALL"))
options.enable_cpu_mem_arena = options.enable_mem_pattern = job.get("arena", True)
for name in job.get("entries", ()):
    options.add_session_config_entry(name, "1")
providers: list[Any] = ["CPUExecutionProvider"]
if "provider" in job:
    providers.insert(0, ("CUDAExecutionProvider", job["provider"]))
    if hasattr(ort, "preload_dlls"):
        ort.preload_dlls()
    context = ort.InferenceSession(job["companions"]["one_step"], options, providers)  # made here, as ours is before a start
    if "CUDAExecutionProvider" not in context.get_providers():
        sys.exit("the CUDA provider of onnxruntime does not load here: its CUDA and cuDNN are missing")
    context.run(None, {"x": np.zeros(1, np.float32)})
print("{}", flush=True)
sys.stdin.readline()

start = time.perf_counter()
session = ort.InferenceSession(job["main"], options, providers)
opened = time.perf_counter()
outputs = session.run(None, inputs)
print(json.dumps({"open": opened - start, "first_run": time.perf_counter() - opened}), flush=True)
for asked in sys.stdin:
    start = time.perf_counter()
    if asked == "run\n":
        outputs = session.run(None, inputs)
    elif asked == "inputs\n":
        inputs = dict(np.load(job["inputs"]))
    else:
        np.savez(job["outputs"], *outputs)
    print(json.dumps({"run": time.perf_counter() - start}), flush=True)
