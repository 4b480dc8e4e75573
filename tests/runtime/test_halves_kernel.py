"""Weights in half their bytes that the kernel reads: the computing thread widens them."""

from __future__ import annotations

from pathlib import Path

import pytest
from streamed_models import MODELS, streamed

from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.quick import Mode
from edgeplan.runtime.dnnl import Dnnl


@pytest.mark.parametrize("name", MODELS)
def test_outputs_do_not_depend_on_who_reads(dnnl: Dnnl, tmp_path: Path, name: str) -> None:
    halved = streamed(dnnl, name, tmp_path, 8192, halved=True)
    with halved.session(dnnl, halved.resident(), lambda: True) as session:
        assert session.threaded
        expected = session.run(halved.inputs)
    for mode in Mode:
        schedule = halved.planned(bounds.least_bytes(halved.workload) + 16384, mode)
        with halved.session(dnnl, schedule, lambda: False) as session:
            assert not session.threaded
            session.expect(3)
            assert [session.run(halved.inputs) for _ in range(3)] == [expected] * 3
            assert session.bytes_read > 0
