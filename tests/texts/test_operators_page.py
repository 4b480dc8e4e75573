"""The page of operators is what the package knows."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))

import operators_page  # noqa: E402  a script, of the folder above


def test_the_committed_page_is_of_the_present_operators() -> None:
    assert (ROOT / operators_page.PAGE).read_text() == operators_page.page(), "run `make operators-page`"
