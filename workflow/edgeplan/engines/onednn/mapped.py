"""Our own kernels on mapped weights: no plan of memory, the page cache decides what of the weights is there.

The program and its file of weights are those of a memory plan whose steps are whole. Kernels read weights where the file is
mapped, as llama.cpp does it; a page that is not in memory is read when a kernel touches it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from edgeplan.engines.cold import Artefact
from edgeplan.engines.description import UnsupportedError
from edgeplan.errors import DeviceError
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import WEIGHTS_NAME
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.packed_programs import Budgeted, TapedProgram
from edgeplan.runtime.program_file import PROGRAM_BIN
from edgeplan.runtime.streaming.build import build
from edgeplan.runtime.streaming.schedules import Schedule
from edgeplan.runtime.streaming.weights_file import write_weights
from edgeplan.runtime.streaming.workloads import all_resident

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
    weights, program = folder / WEIGHTS_NAME, folder / PROGRAM_BIN
    write_weights(dnnl, model, lowered, built, weights)
    placed = Budgeted(0, 0.0, 0.0, Schedule.of(all_resident(built.program)))
    program.write_bytes(TapedProgram(built.program).packed(weights, [placed]))
    return Artefact(main=program, files=(program, weights))
