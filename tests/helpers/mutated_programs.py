"""Mutated programs, opened and run in this process: python mutated_programs.py FOLDER LIBRARY FIRST COUNT.

FOLDER is a plan that runs, LIBRARY the file of oneDNN, or of the library that stands for it. A line is printed before each
program and one after it: so whoever started this process knows which one ended it.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np

from edgeplan.errors import EdgeplanError, InfeasibleError, InputError
from edgeplan.runtime.native_session import NativeSession, open_session
from edgeplan.runtime.program_file import HEADER, PROGRAM_BIN, SECTION, Section, checksum

_WORD, _OFTEN = 8, 4
#: Sections whose numbers say most of what is done.
_DECISIVE = (Section.VALUES, Section.CONSTANTS, Section.RECORDS, Section.OPERANDS, Section.STEPS, Section.RECIPES)
_EXTREMES = (
    0,
    1,
    -1,
    2,
    7,
    8,
    63,
    64,
    4095,
    4096,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    1 << 40,
    (1 << 63) - 1,
    -(1 << 63),
)


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
