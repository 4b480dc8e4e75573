"""Budgets of memory as users write them: bytes, MB, MiB, or per cent of what ONNX Runtime takes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from edgeplan.errors import ParamsError
from edgeplan.support.cgroups import free_memory

MIB = 1 << 20
_UNITS = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
_UNITS |= {"kib": 1 << 10, "mib": MIB, "gib": 1 << 30, "tib": 1 << 40}
_MOST_BYTES = 1 << 50  # more is a mistake
_AMOUNT = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([a-zA-Z]{0,3}|%)")


@dataclass(frozen=True, slots=True)
class Budget:
    """A budget is a number of bytes or a share of what ONNX Runtime takes.

    Attributes:
        size: bytes; 0 where it is a share.
        share: of what ONNX Runtime takes by default; 0 where it is a size.
    """

    size: int = 0
    share: float = 0.0

    @classmethod
    def parsed(cls, text: str, where: str = "--budget", most_share: float = 1.0) -> Budget:
        """A budget as a user writes it: `64MB`, `64MiB`, `10%`.

        No larger share than `most_share` makes sense; `where` is the option, for messages.
        """
        match = _AMOUNT.fullmatch(text.strip())
        unit = match[2].lower() if match else ""
        number = float(match[1]) if match else 0.0
        if unit == "%" and 0 < number / 100 <= most_share:
            return cls(share=number / 100)
        if unit in _UNITS and 1 <= number * _UNITS[unit] <= _MOST_BYTES:
            return cls(size=int(number * _UNITS[unit]))
        raise ParamsError(
            f"{text!r} is no budget of memory",
            where=where,
            next_step=f"give bytes as in 64MB or 64MiB, or a share as in 10%, up to {100 * most_share:g}%",
        )


def require_free(budget: Budget, where: str) -> None:
    """Refuse a budget above the memory that this process may still take: beyond it, it would be killed."""
    free = free_memory()
    if budget.size > free.size:
        what = f"a budget of {mib(budget.size)} is more than the {mib(free.size)} that are left by {free.limited_by}"
        raise ParamsError(what, where=where, next_step=f"give less than {free.size // MIB}MiB, or free some memory")


def budget_sizes(budgets: Sequence[str]) -> list[int]:
    """Parse budgets of a run into bytes.

    Raises:
        ParamsError: one is no size, or more than is free.
    """
    parsed = [Budget.parsed(text, "--budgets") for text in budgets]
    if any(not budget.size for budget in parsed):
        raise ParamsError("a budget of a run is a size, not a share", where="--budgets", next_step="give sizes: 300MB,100MB")
    for budget in parsed:
        require_free(budget, "--budgets")
    return [budget.size for budget in parsed]


def mib(size: float) -> str:
    """A size as messages name it."""
    return f"{size / MIB:.2f} MiB" if size >= MIB // 10 else f"{size / 1024:.2f} KiB"
