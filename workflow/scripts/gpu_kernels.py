"""Times of the package's kernels on an NVIDIA GPU over those of cuDNN and cuBLAS: float32 without tf32, warm, by events.

    python workflow/scripts/gpu_kernels.py [--multiprocessors N] [--json FILE]

The layers are nine that stand for their kinds, and the costliest different ones of the models of the chapter on partition. It
needs PyTorch, which calls cuDNN and cuBLAS, and the extra `cuda`. PyTorch has the whole GPU; a slice is for our own times. What
a handshake takes is told besides, over the wait of a thread that sleeps until an event.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from edgeplan.chapters.partition.measuring.opened import opened
from edgeplan.chapters.partition.settings import PartitionParams
from edgeplan.chapters.registry import load_params
from edgeplan.devices.pairs import load_pair
from edgeplan.engines.gpu.cuda import CudaOptions, CudaProcessor
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Executable
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.session import Synchronisation, handshake
from edgeplan.runtime.program import default_program
from edgeplan.terminal import say
from edgeplan.workloads.registry import WORKLOADS

RUNS, COSTLIEST = 50, 20
#: Channels in, side, channels out, window, stride of convolutions; rows, values in, columns of fully connected layers.
CONVOLUTIONS = ((128, 56, 128, 3, 1), (512, 14, 512, 3, 1), (256, 28, 512, 1, 1), (512, 7, 2048, 1, 1), (64, 56, 128, 3, 2))
PRODUCTS = ((50, 768, 3072), (512, 1024, 1024), (1, 2048, 1000), (1, 25088, 4096))
Layer = tuple[int, ...]


def main() -> None:
    """Time all layers, and print the geometric means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--multiprocessors", type=int, default=0)
    parser.add_argument("--pair", default="pair-h200-8sm", help="whose handshake is told")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    with CudaProcessor(CudaOptions(0, given.multiprocessors), Dnnl().info.block, profiling=True) as processor:
        for layer in dict.fromkeys((*CONVOLUTIONS, *PRODUCTS, *costliest())):
            name, own = own_us(processor, layer)
            rows.append({"layer": layer, "kernel": name, "own_us": own, "library_us": library_us(layer)})
            say("{layer!s:<28} {kernel:<16} {own_us:>9.1f} us, library {library_us:>9.1f} us".format(**rows[-1]))
    for kind, length in (("convolutions", 5), ("fully connected", 3)):
        ratios = [row["own_us"] / row["library_us"] for row in rows if len(row["layer"]) == length]
        say(f"{kind}: {statistics.geometric_mean(ratios):.2f} times the library's time, {len(ratios)} layers")
    with CudaProcessor(CudaOptions(0, given.multiprocessors), Dnnl().info.block) as processor:
        sleeping = sleeping_us(processor)
    with opened(load_pair(given.pair)) as pair:
        polling = handshake(*pair.processors, Synchronisation.polling).median_us
    say(f"handshake: {polling:.1f} us by polling, {sleeping:.1f} by sleeping until an event: {polling / sleeping:.2f}")
    rows.append({"layer": [], "kernel": "handshake", "own_us": polling, "library_us": sleeping})
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def sleeping_us(processor: CudaProcessor) -> float:
    """The median time of a kernel that does nothing, until a thread that sleeps meanwhile goes on."""
    driver, stream, kernel = processor.driver, processor.stream, processor.empty()
    event = driver.call("cuEventCreate", driver.api.CUevent_flags.CU_EVENT_BLOCKING_SYNC)
    times = []
    for _ in range(4 * RUNS):
        began = time.perf_counter()
        processor.enqueue(kernel)
        driver.call("cuEventRecord", event, stream)
        driver.call("cuEventSynchronize", event)
        times.append((time.perf_counter() - began) * 1e6)
    driver.call("cuEventDestroy", event)
    return statistics.median(times)


def costliest() -> list[Layer]:
    """The layers of the models with the most multiplications, square ones without groups."""
    found: dict[Layer, int] = {}
    for name in cast("PartitionParams", load_params(Path("params.yaml"))).partition.models:
        lowered = lower(WORKLOADS[name]())
        for step in lowered.steps:
            source, target = lowered.shapes[step.inputs[0]], lowered.shapes[step.outputs[0]]
            if step.kind == "conv" and step.integer("groups") == 1 and source[2] == source[3] and source[1] >= 16:
                kernel, stride = step.sizes("kernel"), step.sizes("strides")[0]
                if kernel[0] == kernel[1] and target[2] == -(-source[2] // stride):
                    layer: Layer = (source[1], source[2], target[1], kernel[0], stride)
                    found[layer] = math.prod(target) * source[1] * math.prod(kernel)
            elif step.kind == "fc" and len(target) == 2:
                found[target[0], math.prod(source[1:]), target[1]] = math.prod(source) * target[1]
    return sorted(found, key=lambda layer: -found[layer])[:COSTLIEST]


def graph_of(layer: Layer) -> Graph:
    """A model of the layer alone."""
    if len(layer) == 3:
        rows, inner, columns = layer
        b = GraphBuilder("layer", (rows, inner))
        return b.build(b.fc(b.input, columns))
    channels, side, out, window, stride = layer
    b = GraphBuilder("layer", (1, channels, side, side))
    return b.build(b.gap(b.conv(b.relu(b.conv(b.input, channels, 1)), out, window, stride, pad=window // 2)))


def own_us(processor: CudaProcessor, layer: Layer) -> tuple[str, float]:
    """The kernel of a layer, and its median time."""
    graph, dnnl = graph_of(layer), Dnnl()
    with tempfile.TemporaryDirectory() as folder:
        program = default_program(dnnl, save_onnx(graph, Path(folder) / "layer.onnx"), graph, BLOCKED)
        index = [k for k, step in enumerate(program.steps) if step.kind in ("conv", "fc")][-1]
        arena = processor.allocate(program.arena_bytes)
        with Executable(dnnl, program, Path(folder), arena) as executable:
            kernel = processor.prepare(executable, index)
            for _ in range(RUNS + 5):
                processor.enqueue(kernel)
            processor.finish()
            times = [end - begin for begin, end in processor.spans()][5:]
        processor.free(arena)
    return kernel.implementation, statistics.median(times) / 1e3


def library_us(layer: Layer) -> float:
    """The median time of a layer by PyTorch."""
    torch: Any = import_module("torch")
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    if len(layer) == 3:
        rows, inner, columns = layer
        x, w = (torch.randn(*shape, device="cuda") for shape in ((rows, inner), (columns, inner)))
        bias = torch.randn(columns, device="cuda")

        def run() -> object:
            return torch.nn.functional.linear(x, w, bias)
    else:
        channels, side, out, window, stride = layer
        x, w = (torch.randn(*shape, device="cuda") for shape in ((1, channels, side, side), (out, channels, window, window)))

        def run() -> object:
            return torch.nn.functional.conv2d(x, w, stride=stride, padding=window // 2)

    marks = []
    for _ in range(RUNS + 5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        marks.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in marks[5:]) * 1e3


if __name__ == "__main__":
    main()
