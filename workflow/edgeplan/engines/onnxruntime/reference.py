"""ONNX Runtime's outputs are the reference that outputs of plans are checked against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgeplan.errors import ModelError
from edgeplan.support.lazy import lazily
from edgeplan.support.tensors import OUTPUT_TOLERANCE, QUANTISED_TOLERANCE, allowed_error, relative_error

compare = lazily("edgeplan.graph.onnx.compare")  # who runs plans compares none

Array = npt.NDArray[Any]
#: How many inputs near to those of a run say how far ONNX Runtime is from itself, and how near they are.
_AGAIN, _NEAR = 4, 1e-3


class Verdict(NamedTuple):
    """Differences of outputs from ONNX Runtime's, and how far they may go: shares of each output's largest magnitude."""

    difference: float
    tolerance: float


def reference_outputs(model: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return outputs of ONNX Runtime on one thread, by name; of models that round to bytes operator by operator."""
    return _outputs(model, [inputs], optimised=not compare.is_rounding(model))[0]


def judged(model: Path, inputs: Mapping[str, Array], found: Sequence[Mapping[str, Array]]) -> list[Verdict]:
    """Hold outputs of runs on the same inputs against ONNX Runtime's.

    How much differences grow on their way depends on the model: where one is further away than rounding brings it, what ONNX
    Runtime with optimisations is from itself without says how far it may be (`allowed_error`).

    Args:
        model: the ONNX file.
        inputs: arrays by name.
        found: outputs of each run by name, all of the same ones.
    """
    rounds = compare.is_rounding(model)
    tolerance, reference = QUANTISED_TOLERANCE if rounds else OUTPUT_TOLERANCE, reference_outputs(model, inputs)
    expected = [reference[name] for name in found[0]]
    verdicts = [Verdict(relative_error([run[name] for name in found[0]], expected), tolerance) for run in found]
    if all(one.difference <= tolerance for one in verdicts):
        return verdicts
    rng = np.random.default_rng(0)
    near = [inputs, *({name: _moved(value, rng) for name, value in inputs.items()} for _ in range(_AGAIN))]
    usual, others = ([[one[n] for n in found[0]] for one in _outputs(model, near, optimised=o)] for o in (not rounds, rounds))
    own = [*zip(usual, others, strict=True)]
    return [
        one._replace(tolerance=allowed_error([run[name] for name in found[0]], expected, own, tolerance))
        for one, run in zip(verdicts, found, strict=True)
    ]


def _moved(value: Array, rng: np.random.Generator) -> Array:
    if value.dtype.kind != "f":
        return value
    return np.asarray(value * (1 + _NEAR * rng.uniform(-1, 1, value.shape)), value.dtype)


def _outputs(model: Path, each: Sequence[Mapping[str, Array]], *, optimised: bool) -> list[dict[str, Array]]:
    try:
        session = compare.opened(model, optimised=optimised)
        names = [output.name for output in session.get_outputs()]
        return [dict(zip(names, session.run(names, dict(inputs)), strict=True)) for inputs in each]
    except Exception as error:  # the types that ONNX Runtime raises derive from nothing else
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"ONNX Runtime cannot run the model: {reason}", where=str(model), next_step="run without --check"
        ) from error
