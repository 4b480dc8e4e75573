"""Budgets of memory as users write them: bytes, MB, MiB, or per cent of what ONNX Runtime takes."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from edgeplan.errors import ParamsError

MIB = 1 << 20
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 1 << 10, "mib": MIB, "gib": 1 << 30}
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([a-zA-Z]{0,3}|%)")


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget.

    Attributes:
        size: bytes; 0 where it is a share.
        share: of what ONNX Runtime takes by default; 0 where it is a size.
    """

    size: int = 0
    share: float = 0.0

    @classmethod
    def parsed(cls, text: str) -> Budget:
        """A budget as a user writes it: `64MB`, `64MiB`, `10%`.

        Raises:
            ParamsError: it is none.
        """
        match = _AMOUNT.fullmatch(text.strip())
        unit = match[2].lower() if match else ""
        number = float(match[1]) if match else 0.0
        if match is None or (unit != "%" and unit not in _UNITS) or number <= 0 or not math.isfinite(number):
            raise ParamsError(
                f"{text!r} is no budget of memory",
                where="--budget",
                next_step="give bytes as in 64MB or 64MiB, or a share as in 10%",
            )
        if unit == "%":
            return cls(share=number / 100)
        return cls(size=int(number * _UNITS[unit]))


def mib(size: float) -> str:
    """A size as messages name it."""
    return f"{size / MIB:.2f} MiB"
