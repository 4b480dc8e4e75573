"""Starts a model by LiteRT through XNNPACK, f32, as a program of one's own does: nothing of edgeplan is imported."""

import json
import sys
import time
from typing import Any

import numpy as np
from ai_edge_litert import compiled_model, cpu_options, environment, options

job = json.loads(sys.argv[1])


def channels_last() -> dict[str, Any]:
    """Return the inputs, images with their channels last."""
    given = np.load(job["inputs"]).items()
    return {name: np.ascontiguousarray(v.transpose(0, 2, 3, 1) if v.ndim == 4 else v) for name, v in given}


inputs = channels_last()
here = environment.Environment.create()
print("{}", flush=True)
sys.stdin.readline()

start = time.perf_counter()
cpu = cpu_options.CpuOptions(num_threads=job["threads"], xnnpack_weight_cache_path=job["companions"].get("cache", ""))
model = compiled_model.CompiledModel.from_file(job["main"], environment=here, options=options.Options(cpu_options=cpu))
given = {name: model.create_input_buffer_by_name("serving_default", name) for name in inputs}
taken = {name: model.create_output_buffer_by_name("serving_default", name) for name in job["shapes"]}


def run() -> list[Any]:
    """Run one inference; its outputs, flat."""
    for name, buffer in given.items():
        buffer.write(inputs[name])
    model.run_by_name("serving_default", given, taken)
    return [taken[name].read(int(np.prod(shape)), np.float32) for name, shape in job["shapes"].items()]


def channels_first(value: Any, shape: list[int]) -> Any:
    """Bring an output to the shape that the ONNX model has."""
    if len(shape) != 4:
        return value.reshape(shape)
    n, c, h, w = shape
    return value.reshape(n, h, w, c).transpose(0, 3, 1, 2)


opened = time.perf_counter()
outputs = run()
print(json.dumps({"open": opened - start, "first_run": time.perf_counter() - opened}), flush=True)
for asked in sys.stdin:
    start = time.perf_counter()
    if asked == "run\n":
        outputs = run()
    elif asked == "inputs\n":
        inputs = channels_last()
    else:
        np.savez(job["outputs"], *map(channels_first, outputs, job["shapes"].values()))
    print(json.dumps({"run": time.perf_counter() - start}), flush=True)
