"""What a profile offers of each step."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from tiny_profiled import tiny

from edgeplan.graph.onnx.write import save_onnx
from edgeplan.profiling import subjects
from edgeplan.profiling.subjects import subject
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import locate_weights


def test_nothing_is_offered_from_the_library_s_cache(dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model of the process may have filled it, and what it offers for that one is not there in a fresh process."""

    def capacity() -> int:
        found = ctypes.c_int()
        dnnl.check(dnnl.function("dnnl_get_primitive_cache_capacity")(ctypes.byref(found)), "capacity of the cache")
        return found.value

    seen: list[int] = []
    plain = subjects.candidates

    def watched(*arguments: Any) -> Any:
        seen.append(capacity())
        return plain(*arguments)

    monkeypatch.setattr(subjects, "candidates", watched)
    # whatever was run in this process before
    dnnl.check(dnnl.function("dnnl_set_primitive_cache_capacity")(64), "capacity of the cache")
    before, lowered = capacity(), lower(tiny())
    subject(dnnl, lowered, "nhwc", locate_weights(save_onnx(tiny(), tmp_path / "tiny.onnx"), lowered), 1)
    assert set(seen) == {0}
    assert capacity() == before == 64, "for whoever runs models in this process"
