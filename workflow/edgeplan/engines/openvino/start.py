"""Starts a model by OpenVINO, held to f32, as a program of one's own does: nothing of edgeplan is imported."""

import json
import sys
import time

import numpy as np
import openvino as ov
import openvino.frontend

job = json.loads(sys.argv[1])


def tensors() -> dict[str, ov.Tensor]:
    """Return the inputs of the job."""
    return {name: ov.Tensor(value, shared_memory=True) for name, value in np.load(job["inputs"]).items()}


inputs = tensors()
config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": job["threads"]}
core = ov.Core()
core.get_property("CPU", "FULL_DEVICE_NAME")  # loads the plugin of the device
reader = openvino.frontend.FrontEndManager().load_by_framework("onnx")  # and the reader of ONNX files: libraries, no model
print("{}", flush=True)
sys.stdin.readline()

start = time.perf_counter()
compiled = core.compile_model(job["main"], "CPU", config | job.get("config", {}))
request = compiled.create_infer_request()
for name, value in inputs.items():
    request.set_tensor(name, value)
opened = time.perf_counter()
request.infer()
print(json.dumps({"open": opened - start, "first_run": time.perf_counter() - opened}), flush=True)
for asked in sys.stdin:
    start = time.perf_counter()
    if asked == "run\n":
        request.infer()
    elif asked == "inputs\n":
        inputs = tensors()
        for name, value in inputs.items():
            request.set_tensor(name, value)
    else:
        np.savez(job["outputs"], *(request.get_output_tensor(k).data for k in range(len(compiled.outputs))))
    print(json.dumps({"run": time.perf_counter() - start}), flush=True)
