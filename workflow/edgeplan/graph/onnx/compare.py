"""A prepared model held against the original, on ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from edgeplan.errors import CheckError, ModelError
from edgeplan.graph.onnx.prepare import Preparation, given_values, in_single_precision
from edgeplan.graph.onnx.quantised import rounds_to_bytes
from edgeplan.support.lazy import lazily
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.tensors import OUTPUT_TOLERANCE, QUANTISED_TOLERANCE, allowed_error, relative_error

ort = lazily("onnxruntime")  # an extra

Array = npt.NDArray[Any]
_INPUTS = 5
_ERRORS_ONLY = 3  # warnings of ONNX Runtime come with colour codes, into files, too


def is_rounding(model: Path) -> bool:
    """Tell whether a model rounds to bytes: the reference is then ONNX Runtime without optimisations, which round elsewhere."""
    return rounds_to_bytes(onnx.load(model, load_external_data=False))


def opened_session(model: Path, *, optimised: bool) -> Any:
    """Open a session of one thread."""
    return ort.InferenceSession(str(model), session_options(1, optimised=optimised), providers=["CPUExecutionProvider"])


def session_options(
    threads: int, entries: Mapping[str, str] = MappingProxyType({}), *, severity: int = _ERRORS_ONLY, optimised: bool = True
) -> Any:
    """Return the options of a session whose operators run one after the other, with entries of its configuration."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, severity
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, value in entries.items():
        options.add_session_config_entry(name, value)
    return options


def largest_difference(original: Path, made: Path, wanted: Preparation) -> float:
    """Return the largest difference of their outputs on seeded inputs, over the largest magnitude of each output.

    Of an original of half precision it is its own arithmetic in single precision: what half precision rounds off is no fault of
    the prepared model, which is the more exact of the two.
    """
    rounds = is_rounding(original)
    tolerance = QUANTISED_TOLERANCE if rounds else OUTPUT_TOLERANCE
    try:
        with ScratchFolder("compare") as folder:
            known = in_single_precision(original, Path(folder) / "single.onnx")
            first, second = (opened_session(path, optimised=not rounds) for path in (known, made))
            types = {i.name: i.type for i in first.get_inputs()}
            fixed = given_values(onnx.load(original, load_external_data=False), wanted.values, str(original))
            before, drawn = list[dict[str, Array]](), list[dict[str, Array]]()
            for seed in range(_INPUTS):
                rng = np.random.default_rng(seed)
                drawn.append({i.name: _drawn(rng, i.shape, i.type) for i in second.get_inputs()})
                given = (drawn[-1] | fixed).items()
                before.append({name: value.astype(_numpy_type(types[name]), copy=False) for name, value in given})
            expected, found = [first.run(None, given) for given in before], [second.run(None, given) for given in drawn]
            each = [*zip(found, expected, strict=True)]
            errors, allowed = [relative_error(*pair) for pair in each], [tolerance] * _INPUTS
            if not max(errors) <= tolerance:
                own = [
                    (one, other.run(None, given))
                    for path, usual, inputs in ((known, expected, before), (made, found, drawn))
                    for other in (opened_session(path, optimised=rounds),)
                    for one, given in zip(usual, inputs, strict=True)
                ]
                allowed = [allowed_error(*pair, own, tolerance) for pair in each]
    except ImportError as error:
        raise ModelError("ONNX Runtime is not installed", where="--check", next_step="pip install onnxruntime") from error
    except ort.capi.onnxruntime_pybind11_state.Fail as error:
        raise ModelError(f"ONNX Runtime cannot run it: {error}", where=str(made), next_step="report the model") from error
    if not all(error <= most for error, most in zip(errors, allowed, strict=True)):
        what = f"the prepared model differs from the original by {max(errors):.1e} of the largest magnitude"
        raise CheckError(what, where=str(made), next_step="do not use it; report the model")
    return max(errors)


def _numpy_type(name: str) -> np.dtype[Any]:
    kinds = {"tensor(float)": "FLOAT", "tensor(double)": "DOUBLE", "tensor(float16)": "FLOAT16", "tensor(bool)": "BOOL"}
    kind = kinds.get(name, name.removeprefix("tensor(").removesuffix(")").upper())
    found: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(kind)))
    return found


def _drawn(rng: np.random.Generator, shape: list[int], kind: str) -> Array:
    found = _numpy_type(kind)
    if np.issubdtype(found, np.floating):
        return np.asarray(rng.standard_normal(shape).astype(found))
    return np.asarray(rng.integers(0, 2, shape).astype(found))
