"""Without the native library plans say how to build it, and predictions do without."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from edgeplan import native
from edgeplan.errors import DeviceError
from edgeplan.predictors.trees import Forest
from edgeplan.predictors.walking import Walk


@pytest.fixture
def unbuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose library is not there."""
    monkeypatch.setattr(native, "PATH", str(tmp_path / "libedgeplan.so"))


@pytest.mark.usefixtures("unbuilt")
def test_a_library_that_is_not_there_is_to_be_built() -> None:
    assert not native.is_built()
    with pytest.raises(DeviceError) as refused:
        native.library.__wrapped__()
    assert refused.value.next_step == "make native"


@pytest.mark.usefixtures("unbuilt")
def test_trees_are_walked_by_numpy_then() -> None:
    zeros, ones = np.zeros(1, np.int32), np.ones(1, np.int32)
    leaf = {"feature": np.array([-1], np.int16), "value": np.ones(1), "child": np.zeros((1, 2), np.int32)}
    start = {"tree_start": np.array([0, 1], np.int32), "roots": zeros, "outputs": ones, "scale": np.ones(1)}
    assert Walk.of(Forest.from_arrays({**start, **leaf}, features=1), 0, 1) is None


def test_a_library_of_other_sources_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_ABI", native._ABI + 1)
    with pytest.raises(DeviceError, match="has version"):
        native.library.__wrapped__()
