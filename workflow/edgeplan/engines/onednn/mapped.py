"""Our own kernels on mapped weights: no plan of memory, the page cache decides what of the weights is there.

The program and its file of weights are those of a memory plan whose steps are whole. Kernels read weights where the file is
mapped, as llama.cpp does it; a page that is not in memory is read when a kernel touches it.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from edgeplan.engines.cold import Artefact
from edgeplan.engines.description import UnsupportedError
from edgeplan.errors import DeviceError
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.planning.layout import greedy
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import MEMORY, PROGRAM_NAME, WEIGHTS_NAME, decoded, encoded
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.streaming.again import buffers_of
from edgeplan.runtime.streaming.build import build, write_weights
from edgeplan.runtime.streaming.calls import BoundCalls
from edgeplan.runtime.streaming.program import Border, StreamProgram
from edgeplan.runtime.streaming.reader import WeightsFile
from edgeplan.support.tensors import Array

_LAYOUT_NAME = "layout.json"
_WHOLE_BYTES = 1 << 40  # of the weights of a part: no step is cut


def prepare(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Keep activations in one arena and leave all weights to the page cache."""
    del inputs
    try:
        dnnl = Dnnl()
    except DeviceError as error:
        raise UnsupportedError(f"oneDNN is not installed: {error.what}") from error
    lowered = lower(simplify(load_onnx(model)))
    with dnnl.without_primitive_cache():  # what is chosen must be offered in a fresh process, too
        built = build(dnnl, lowered, BLOCKED, _WHOLE_BYTES, threads)
    weights, program, layout = (folder / name for name in (WEIGHTS_NAME, PROGRAM_NAME, _LAYOUT_NAME))
    write_weights(dnnl, model, lowered, built, weights)
    program.write_bytes(encoded(built.program))
    buffers = buffers_of(built.program)
    offsets = greedy.lowest(buffers)
    size = max(mmap.PAGESIZE, int((offsets + buffers.size).max(initial=0)))
    layout.write_text(json.dumps({"offsets": offsets.tolist(), "bytes": size}))
    return Artefact(main=program, files=(program, weights, layout), companions={"weights": weights, "layout": layout})


def open_mapped(dnnl: Dnnl, main: Path, files: Mapping[str, Path], inputs: Mapping[str, Array]) -> MappedSession:
    """Open a program that `prepare` has built.

    Args:
        dnnl: the library.
        main: file of the program.
        files: `companions` of the artefact.
        inputs: of all inferences.
    """
    return MappedSession(dnnl, decoded(main.read_bytes(), StreamProgram, main, MEMORY), files, inputs)


class MappedSession:
    """A program whose weights are mapped, and its inputs."""

    def __init__(self, dnnl: Dnnl, program: StreamProgram, files: Mapping[str, Path], inputs: Mapping[str, Array]) -> None:
        layout = json.loads(files["layout"].read_text())
        self._dnnl, self._program, self._inputs, self._offsets = dnnl, program, inputs, layout["offsets"]
        self._arena = np.frombuffer(mmap.mmap(-1, layout["bytes"], flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)
        self._file = WeightsFile(files["weights"], program.weights_bytes)  # for steps that read rows alone
        with dnnl.without_primitive_cache():
            self._calls = BoundCalls(dnnl, program, dnnl.stream(), file=self._file)
        self._mapped = self._map(files["weights"])
        buffers, columns = self._arena.ctypes.data, self._calls.columns
        weights = self._mapped.ctypes.data if self._mapped is not None else 0
        self._calls.place([buffers + at for at in self._offsets], [weights + at for at in columns.weights_at])
        steps, rows = len(program.step_names), self._calls.rows
        self._ranges = tuple(pairwise(sorted({0, steps, *rows, *(k + 1 for k in rows)})))

    def _map(self, weights: Path) -> Array | None:
        """Map the file; None of a model without weights."""
        if not self._program.weights_bytes:
            return None
        with weights.open("rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)

    def _view(self, border: Border) -> Array:
        at = self._offsets[border.operand.buffer] + border.operand.offset
        return self._arena[at : at + border.size].view(border.dtype).reshape(border.shape)

    def run(self) -> None:
        """Execute one inference on the inputs."""
        self._dnnl.set_threads(self._program.threads)
        for border in self._program.inputs:
            self._view(border)[...] = self._inputs[border.name]
        for first, end in self._ranges:
            self._calls.run(first, end)

    def outputs(self) -> Mapping[str, Array]:
        """Return copies of the last outputs, by name."""
        return {border.name: self._view(border).copy() for border in self._program.outputs}
