"""Mutated programs of both kinds: each is refused or run, and none ends the process or takes for ever.

`python test_mutations.py FOLDER LIBRARY FIRST COUNT` opens and runs some: FOLDER is a plan that runs, LIBRARY the file of
oneDNN, or of the library that stands for it. A line is printed before each program and one after it: so whoever started this
process knows which one ended it.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from made_programs import Chain, FakeOnednn, build_fake, write_cold, write_memory
from plan_folders import small_net
from streamed_models import streamed, write_streamed_plan

from depth import MANY
from edgeplan.errors import EdgeplanError, FormatError, InfeasibleError, InputError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native_session import NativeSession, open_session
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.program_file import HEADER, PROGRAM_BIN, SECTION, Section, checksum

#: Programs of each plan, and of one process, which a limit of time is for.
_COUNT, _BATCH, _SECONDS = 2500 if MANY else 60, 250, 300
_TESTS = Path(__file__).parents[1]
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
        command = [sys.executable, __file__, str(folder), library, str(first), str(count)]
        paths = (*map(str, (_TESTS, _TESTS / "helpers")), os.environ.get("PYTHONPATH", ""))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, env=environment)
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


_WORD, _OFTEN = 8, 4
#: Sections whose numbers say most of what is done.
_DECISIVE = (Section.VALUES, Section.CONSTANTS, Section.RECORDS, Section.OPERANDS, Section.STEPS, Section.RECIPES)
_EXTREMES = (0, 1, -1, 2, 7, 8, 63, 64, 4095, 4096, *(1 << bits for bits in (20, 31, 32, 40)), 2**31 - 1, 2**63 - 1, -(2**63))


def mutated(content: bytes, seed: int) -> bytes:
    """A program of which something is another, with a checksum that says that it was written so."""
    rng = np.random.default_rng(seed)
    found = bytearray(content)
    table = HEADER.struct.size
    sections = [SECTION.values(content[table:], k) for k in range(HEADER.values(content)["sections"])]
    weights = np.array([_OFTEN if one["id"] in _DECISIVE else 1 for one in sections], float)
    for _ in range(int(rng.integers(1, 3))):
        number = int(rng.choice(len(sections), p=weights / weights.sum()))
        _mutate(found, sections[number], table + number * SECTION.struct.size, rng)
    struct.pack_into("<Q", found, 24, checksum(bytes(found[table:])))
    return bytes(found)


def _mutate(found: bytearray, section: dict[str, int], at_table: int, rng: np.random.Generator) -> None:
    begin, row, count = section["offset"], section["row_bytes"], section["count"]
    size = row * count
    how = int(rng.integers(7))
    if how == 0 or size == 0:  # it ends earlier, later, or elsewhere
        field = 8 * int(rng.integers(3))
        before = struct.unpack_from("<Q", found, at_table + field)[0]
        after = int(rng.choice([0, before - 1, before + 1, before // 2, before + 64])) % (1 << 64)
        struct.pack_into("<Q", found, at_table + field, after)
    elif how == 1:  # a byte
        found[begin + int(rng.integers(size))] ^= 1 << int(rng.integers(8))
    elif how == 2 and count > 1:  # two rows
        a, b = (begin + row * int(k) for k in rng.integers(count, size=2))
        found[a : a + row], found[b : b + row] = found[b : b + row], found[a : a + row]
    elif size >= _WORD:  # a word: an extreme, another one of the section, near to what it was
        drawn = [begin + _WORD * int(k) for k in rng.integers(size // _WORD, size=8)]
        other, place = drawn[0], next((at for at in drawn if any(found[at : at + _WORD])), drawn[0])  # rather none of 0
        (before,) = struct.unpack_from("<q", found, place)
        near = before + int(rng.choice([-4096, -256, -64, -8, -4, -1, 1, 4, 8, 64, 256, 4096]))
        taken = struct.unpack_from("<q", found, other)[0]
        after = (_EXTREMES[int(rng.integers(len(_EXTREMES)))], taken, near, -1 - before)[int(rng.integers(4))]
        struct.pack_into("<q", found, place, (after + (1 << 63)) % (1 << 64) - (1 << 63))


def inputs_of(session: NativeSession) -> dict[str, np.ndarray]:
    """The same numbers each time."""
    rng = np.random.default_rng(0)
    return {
        one.name: (
            rng.standard_normal(one.shape).astype(one.dtype)
            if one.dtype == "float32"
            else rng.integers(0, min(max(one.below, 2), 100), one.shape).astype(one.dtype)
        )
        for one in session.inputs
    }


def results_of(folder: Path, library: str) -> list[bytes]:
    """What a plan's outputs are in two inferences, one after the other."""
    with open_session(folder, library=library) as session:
        first = session.run(inputs_of(session))
        session.prepare_later()
        with suppress(InfeasibleError, InputError):  # there is no other schedule, or no budget
            session.set_budget(1 << 40)
        second = session.run(inputs_of(session))
        session.trace()
    return [value.tobytes() for found in (first, second) for value in found.values()]


def tell(text: str) -> None:
    """Print something at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def main(folder: str, library: str, first: str, count: str) -> None:
    """See above."""
    content = (Path(folder) / PROGRAM_BIN).read_bytes()
    wanted = results_of(Path(folder), library)
    with tempfile.TemporaryDirectory() as made:
        copy = Path(made) / "plan"
        shutil.copytree(Path(folder).resolve(), copy, copy_function=os.symlink)  # files keep their stamps
        (copy / PROGRAM_BIN).unlink()
        for seed in range(int(first), int(first) + int(count)):
            tell(f"{seed} ")
            (copy / PROGRAM_BIN).write_bytes(mutated(content, seed))
            try:
                told = "same" if results_of(copy, library) == wanted else "another"
            except EdgeplanError as error:
                told = f"refused {error.what!a}"
            tell(f"{told}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
