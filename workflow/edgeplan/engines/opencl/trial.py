"""Tries vectors of one width in a process: a model of the kernels is run and checked by ONNX Runtime (`opencl.widest`)."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from edgeplan.engines.base import Array, random_inputs
from edgeplan.engines.onnxruntime.reference import reference_outputs
from edgeplan.engines.opencl.dispatching import Loaded, program_of
from edgeplan.errors import EdgeplanError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.opencl.platforms import OpenclOptions, find_device, is_pocl
from edgeplan.opencl.widest import TrialJob, TrialResult
from edgeplan.processors.opencl import OpenclProcessor
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.support.answers import take_stdout
from edgeplan.support.scratch import ScratchFolder

#: Processor time for all kernels, six times what PoCL takes on a slow core, and the memory that may be taken meanwhile.
_SECONDS, _BYTES = 30, 1 << 30
#: Of the largest output. Convolutions by Winograd's algorithm lose 3e-6 of what is added up.
_TOLERANCE = 1e-4


def model() -> Graph:
    """Return a model of every kernel that the graph builder has operators for, with channels that fill no block."""
    b = GraphBuilder("trial", (1, 3, 33, 33))
    x = b.conv_bn(b.input, 24, 3, 2, act="relu6")  # from row-major pixels
    x = b.conv_bn(x, 40, 3)  # by Winograd's algorithm
    x = b.activation(b.bn(b.dwconv(x, 3)), "hswish")
    x = b.add(x, b.relu(b.conv(x, 40, 1, bias=True)))
    x = b.mul(x, b.activation(b.conv(b.gap(x), 40, 1), "sigmoid"))
    x = b.conv_bn(x, 21, 3, 2)  # directly
    x = b.concat([b.maxpool(x, 3, 2, 1), b.avgpool(x, 3, 2, 1)])
    x = b.channel_shuffle(b.lrn(x), 2)
    x = b.fc(b.flatten(b.activation(x, "tanh")), 37)
    return b.build(b.softmax(b.relu(x)))


def _limit(*, memory: bool) -> None:
    """Limit this process's CPU time and, if told, its memory, so that a compiler that never ends is ended.

    Only PoCL compiles in this memory: drivers of GPUs map what they please.
    """
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + _SECONDS,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[5])
        resource.setrlimit(resource.RLIMIT_DATA, (pages * os.sysconf("SC_PAGE_SIZE") + _BYTES,) * 2)


def _difference(found: Mapping[str, Array], wanted: Mapping[str, Array]) -> float:
    """Return the largest difference, as a share of the largest value; what is no number is infinitely far."""
    each = [np.abs(found[name] - value).max() / np.abs(value).max() for name, value in wanted.items()]
    return float(np.nan_to_num(max(each, key=lambda one: np.inf if np.isnan(one) else one), nan=np.inf))


def tried(options: OpenclOptions) -> str:
    """Return why vectors of the width that the options name are not to be used, or ""."""
    graph, dnnl = model(), Dnnl()
    with ScratchFolder("trial") as folder:
        path = save_onnx(graph, Path(folder) / "model.onnx")
        wanted = reference_outputs(path, random_inputs(graph))
        program = program_of(dnnl, path, graph, threads=1)
        _limit(memory=is_pocl(find_device(options)))
        with OpenclProcessor(options, dnnl.info.block, apart=False) as processor:
            loaded = Loaded(dnnl, program, Path(folder), processor, 1)
            loaded.bind(random_inputs(graph))
            loaded.run()
            difference = _difference(loaded.outputs(), wanted)
    return "" if difference <= _TOLERANCE else f"outputs differ from ONNX Runtime's by {difference:.1e} of the largest value"


def main() -> None:
    """Do the job on stdin, answer on stdout."""
    answer = os.fdopen(take_stdout(), "wb")
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=TrialJob)
    try:
        problem = tried(OpenclOptions(**job.device))  # type: ignore[arg-type]
    except EdgeplanError as error:
        problem = error.what
    with answer:
        answer.write(msgspec.json.encode(TrialResult(problem=problem)))


if __name__ == "__main__":
    main()
