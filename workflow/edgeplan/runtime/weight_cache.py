"""The weight cache of a plan: transformed weights in one file, in the order of execution, each step's at a page.

Every segment has a checksum in the program. They are looked at unless the file system vouches that the file was not touched
since it was written (`support.stamps`): reading all bytes once more takes longer than a small model's first inference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from edgeplan.runtime.linked import Linked, LinkedStep
from edgeplan.runtime.program_file import checksum
from edgeplan.support.files import write_atomically

Bytes = npt.NDArray[np.uint8]
PAGE_BYTES = 4096  # segments begin at multiples of it


def paged(size: int) -> int:
    """The next multiple of a page."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def write_cache(linked: Linked, path: Path, weights: Callable[[int], Bytes]) -> tuple[LinkedStep, ...]:
    """Write the cache of a program, atomically.

    Args:
        linked: the program.
        path: of the cache.
        weights: gives the transformed weights of a step by its number.

    Returns:
        The steps, with the checksums of their weights.
    """
    steps = list(linked.steps)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            for k, step in enumerate(steps):
                if step.cached:
                    data = weights(k)
                    file.seek(step.segment)
                    file.write(data.data)
                    steps[k] = replace(step, checksum=checksum(data))
            file.truncate(linked.program.cache_bytes)

    write_atomically(path, write)
    return tuple(steps)
