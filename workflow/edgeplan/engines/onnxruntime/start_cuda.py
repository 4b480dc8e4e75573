"""Starts a model by ONNX Runtime on an NVIDIA GPU as a program of one's own does: nothing of edgeplan is imported."""

import json
import sys
import time

import numpy as np
import onnxruntime as ort

job = json.loads(sys.argv[1])
inputs = dict(np.load(job["inputs"]))
if hasattr(ort, "preload_dlls"):
    ort.preload_dlls()
options = ort.SessionOptions()
options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = job["threads"], 1, 3
providers = [("CUDAExecutionProvider", job["provider"]), "CPUExecutionProvider"]
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
