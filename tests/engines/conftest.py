"""Every registered engine that is installed, on one thread."""

from __future__ import annotations

import pytest

from edgeplan.engines.base import Engine, EngineSettings
from edgeplan.engines.registry import ENGINES, engine_class
from edgeplan.errors import DeviceError


@pytest.fixture(params=sorted(ENGINES))
def each_engine(request: pytest.FixtureRequest) -> Engine:
    """An engine; skipped if it is not installed."""
    try:
        return engine_class(request.param)(EngineSettings(threads=1))
    except DeviceError as error:
        pytest.skip(error.what)
