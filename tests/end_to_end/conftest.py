"""A workspace in which the tiny profile has run."""

from __future__ import annotations

import pytest
from workspace import Workspace, make_workspace


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The tiny profile, run once and committed."""
    workspace = make_workspace(tmp_path_factory.mktemp("tiny"))
    workspace.run("dvc", "exp", "run", *workspace.values())
    workspace.commit("tiny results")
    return workspace
