"""Converts ONNX to MNN by the converter of MNN's wheel.

It is called in its native module: the Python wrapper around it, `MNN.tools.mnnconvert`, installs a package and reports the
machine's identity to a server whenever it is imported.
"""

from __future__ import annotations

from contextlib import chdir
from pathlib import Path

from edgeplan.engines.cold import UnsupportedError
from edgeplan.support.lazy import lazily

_tools, onnx = lazily("_tools"), lazily("onnx")  # the first lies at the top level of the wheel


def convert(model: Path, folder: Path) -> Path:
    """Write MNN's file of an ONNX model, f32, into `folder`; the working directory of this process is there meanwhile.

    Raises:
        UnsupportedError: the converter wrote no model.
    """
    converted = folder.resolve() / "model.mnn"
    arguments = {"-f": "ONNX", "--modelFile": str(model.resolve()), "--MNNModel": str(converted), "--bizCode": "edgeplan"}
    command = ["mnnconvert", *(part for pair in arguments.items() for part in pair)]
    if any(node.op_type == "LSTM" for node in onnx.load(model, load_external_data=False).graph.node):
        command.append("--useOriginRNNImpl")  # MNN 3.6 crashes where it unrolls an LSTM into a loop, its default
    with chdir(folder):  # it leaves a file of its own in the working directory when it crashes
        _tools.mnnconvert(command)
    if not converted.is_file():
        raise UnsupportedError("MNN's converter wrote no model")
    return converted
