"""Rounds results of linear algebra to as many digits as are the same everywhere."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def nine_digits(value: float) -> float:
    """Return a number to nine significant digits; a whole number stays as it is.

    What is built from the same rows is to be the same on every machine, byte by byte. The last digits of a solver depend on
    where its arrays lie and on the kernels that its linear algebra chooses for the processor.
    """
    return value if isinstance(value, int) else float(f"{value:.9g}")


def nine_digits_each(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Round each of some numbers to nine significant digits (n,)."""
    return np.array([nine_digits(float(value)) for value in values], dtype=np.float64)
