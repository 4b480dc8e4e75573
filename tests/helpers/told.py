"""What a text tells, whatever its wording: its numbers, and the names it puts between backticks."""

from __future__ import annotations

import re


def numbers(text: str) -> list[float]:
    """The numbers of a text in their order, without those that are part of a name."""
    return [float(found.replace(",", "")) for found in re.findall(r"(?<![\w`+.-])-?\d[\d,]*(?:\.\d+)?(?![\w`])", text)]


def names(text: str) -> set[str]:
    """What a text puts between backticks."""
    return set(re.findall(r"`([^`]+)`", text))
