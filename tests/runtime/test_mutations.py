"""Mutated programs of both kinds: each is refused or run, and none ends the process or takes for ever."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mutated_programs
import pytest
from cold_session_support import small_net
from made_programs import Chain, FakeOnednn, build_fake, write_cold, write_memory
from mutated_programs import mutated
from streamed_models import streamed
from streamed_plans import write_streamed_plan

from depth import MANY
from edgeplan.errors import FormatError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.program_file import HEADER, PROGRAM_BIN, SECTION

#: Programs of each plan, and of one process, which a limit of time is for.
_COUNT, _BATCH, _SECONDS = 2500 if MANY else 60, 250, 300
KINDS = ("cold", "memory", "made-cold", "made-memory")


@pytest.fixture(scope="module")
def fake(tmp_path_factory: pytest.TempPathFactory) -> FakeOnednn:
    """The library that stands for oneDNN."""
    return build_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture(params=KINDS)
def plan(
    request: pytest.FixtureRequest, dnnl: Dnnl, fake: FakeOnednn, planned: Callable[..., Plan], tmp_path: Path
) -> tuple[Path, str]:
    """A plan folder, and the library that runs it."""
    folder, chain = tmp_path / "plan", Chain.of(6)
    if request.param == "cold":
        graph = small_net()
        model = save_onnx(graph, tmp_path / "net.onnx")
        sources = ["raw", "cached_read", "cached_mmap"]
        plan = planned(model, graph, sources=sources, picks=[1] * 40, widen_from=5)
        warm = planned(model, graph)
        names = [warm.implementations[i] for i in warm.implementation]
        return build_plan_folder(dnnl, model, plan, folder, warm=names), dnnl.info.path
    if request.param == "memory":
        return write_streamed_plan(dnnl, streamed(dnnl, "tokens", tmp_path, 1 << 14, halved=True), folder).path, dnnl.info.path
    if request.param == "made-cold":
        sources = ["raw", "cached_read", "cached_mmap"]
        write_cold(fake, chain, folder, sources=sources, queues=((1, 3), (2,)), later=True, widen_from=4)
    else:
        write_memory(fake, chain, folder, resident=2)
    return folder, fake.path


@pytest.mark.long
def test_mutated_programs_are_refused_or_run(plan: tuple[Path, str]) -> None:
    folder, library = plan
    told: list[str] = []
    for first in range(0, _COUNT, _BATCH):
        count = min(_BATCH, _COUNT - first)
        arguments = (str(mutated_programs.__file__), str(folder), library, str(first), str(count))
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False, env=dict(os.environ)
        )
        told += done.stdout.splitlines()
        assert done.returncode == 0, f"program {told[-1:]}: {done.stderr[-2000:]}"
    assert len(told) == _COUNT
    refused = [line for line in told if " refused " in line]
    assert len(refused) > _COUNT // 4


def test_what_was_changed_after_it_was_written_is_refused(fake: FakeOnednn, tmp_path: Path) -> None:
    """Whatever it is, as long as nobody puts the checksum right."""
    for write in (write_cold, write_memory):
        folder = tmp_path / write.__name__
        write(fake, Chain.of(3), folder)
        content = (folder / PROGRAM_BIN).read_bytes()
        for at in range(0, len(content), 61):
            (folder / PROGRAM_BIN).write_bytes(content[:at] + bytes([content[at] ^ 0x10]) + content[at + 1 :])
            if 40 <= at < HEADER.struct.size:
                continue  # reserved
            with pytest.raises(FormatError):
                open_session(folder, library=fake.path)


def test_mutations_change_something_of_each_section(fake: FakeOnednn, tmp_path: Path) -> None:
    write_cold(fake, Chain.of(3), tmp_path / "plan", sources=["raw"], later=True)
    content = (tmp_path / "plan" / PROGRAM_BIN).read_bytes()
    table = content[HEADER.struct.size :]
    sections = [SECTION.values(table, k) for k in range(HEADER.values(content)["sections"])]
    changed = set()
    for seed in range(400):
        found = mutated(content, seed)
        assert len(found) == len(content)
        for one in sections:
            begin, end = one["offset"], one["offset"] + one["count"] * one["row_bytes"]
            if found[begin:end] != content[begin:end]:
                changed.add(one["id"])
    assert changed == {one["id"] for one in sections if one["count"]}
