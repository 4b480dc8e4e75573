"""Generated files are what the package knows."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "workflow/scripts"))

import operators_page  # noqa: E402  a script, of the folder above
import params_schema  # noqa: E402  likewise


def test_the_committed_page_is_of_the_present_operators() -> None:
    assert (ROOT / operators_page.PAGE).read_text() == operators_page.page(), "run `make operators-page`"


def test_the_committed_schema_is_that_of_the_settings() -> None:
    assert (ROOT / "config/schema/params.schema.json").read_text() == params_schema.schema(), "run `make schema`"
    assert (ROOT / "config/schema/worker.schema.json").read_text() == params_schema.worker_schema(), "run `make schema`"
