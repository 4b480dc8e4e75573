"""Halves of layers are timed where each processor has its own copy of the activations, so that what crosses is moved.

    python workflow/scripts/halves_without_sharing.py [--pair PAIR] [--runs N]

Six convolutions in a chain, each processor alone and every layer in halves, one inference of each in turn, in one process. The
second processor is opened with `sharing: mirrored`, as one that shares no memory at once is.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from edgeplan.chapters.partition.eop.sweeps import subject_of
from edgeplan.chapters.partition.measuring.opened import specs_of
from edgeplan.devices.pairs import load_pair
from edgeplan.engines.pair import open_processors
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.runtime.partitioned.program import Assignment, Split, partition
from edgeplan.runtime.partitioned.sections import Dimension, extent
from edgeplan.runtime.partitioned.session import PairSession
from edgeplan.terminal import say

CHANNELS, SIDE, LAYERS, SHARE = 128, 28, 6, 0.5


def chain() -> Graph:
    """The convolutions, of 3 x 3 windows."""
    b = GraphBuilder("chain", (1, CHANNELS, SIDE, SIDE))
    x = b.input
    for _ in range(LAYERS):
        x = b.conv_bn(x, CHANNELS, 3)
    return b.build(b.gap(x))


def main() -> None:
    """Run all ways in turn, and print their medians."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pair", default="pair-pocl")
    parser.add_argument("--runs", type=int, default=100)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        subject = subject_of("chain", save_onnx(chain(), Path(folder) / "chain.onnx"), 0)
        host, other = specs_of(load_pair(given.pair))
        if other.engine == "opencl":
            other = replace(other, options={**other.options, "sharing": "mirrored"})
        cpu, gpu = open_processors((host, other), stack)
        block, lowered = cpu.dnnl.info.block, subject.lowered
        halves: list[Assignment] = [
            Split(extent(lowered, block, step, Dimension.channels).nearest(SHARE)) if step.kind == "conv" else 1
            for step in lowered.steps
        ]
        ways = {"cpu": [0] * len(halves), "gpu": [1] * len(halves), "halves": halves}
        sessions = {}
        for name, assigned in ways.items():
            made = partition(lowered, subject.layouts, block, assigned)
            sessions[name] = stack.enter_context(PairSession.of(cpu, gpu, made, subject.model))
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(given.runs + 3):
            for name, session in sessions.items():
                session.bind(subject.inputs)
                began = time.perf_counter()
                session.execute()
                times[name].append((time.perf_counter() - began) * 1e3)
        medians = {name: statistics.median(own[3:]) for name, own in times.items()}
        say(f"{gpu.capabilities.name}, {gpu.capabilities.sharing}: {sessions['halves'].synchronisation}")
        say(", ".join(f"{name} {ms:.2f} ms" for name, ms in medians.items()))
        over = [ms / medians["halves"] for ms in (medians["cpu"], min(medians["cpu"], medians["gpu"]))]
        say(f"halves: {over[0]:.2f} times as fast as the CPU, {over[1]:.2f} as the better of both")


if __name__ == "__main__":
    main()
