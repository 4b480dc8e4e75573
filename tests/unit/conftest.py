"""What the tests of the cold-start chapter share."""

from __future__ import annotations

import pandas as pd
import pytest
from cold_chapter_frames import evidence

from edgeplan.chapters.cold_start.evaluation.evidence import ColdEvidence
from edgeplan.chapters.cold_start.evaluation.metrics import cold_metrics
from edgeplan.chapters.cold_start.evaluation.tables import COLD_TABLES
from edgeplan.reporting import kit


@pytest.fixture(scope="session")
def e() -> ColdEvidence:
    """The chapter's frames, as the stage writes them."""
    return evidence()


@pytest.fixture(scope="session")
def figures(e: ColdEvidence) -> dict[str, float]:
    """The chapter's figures of merit, from `e`."""
    return cold_metrics(e)


@pytest.fixture(scope="session")
def tables(e: ColdEvidence) -> dict[str, pd.DataFrame]:
    """The chapter's tables, from `e`."""
    return kit.make_or_explain(COLD_TABLES, e)
