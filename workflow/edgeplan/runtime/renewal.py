"""A session renews its plan folder: a cache that had to be made again, stamps of files that were looked at."""

from __future__ import annotations

import logging
from pathlib import Path

from msgspec.structs import replace as changed

from edgeplan.errors import EdgeplanError
from edgeplan.runtime.folder import PROGRAM_NAME
from edgeplan.runtime.folder_lock import changing
from edgeplan.runtime.linked import LinkedProgram
from edgeplan.runtime.linked_file import read_linked, write_linked
from edgeplan.runtime.preparation import CACHE_NAME, Preparer, Shared
from edgeplan.runtime.weight_cache import stamp, stamped

_LOG = logging.getLogger(__name__)


def renew(shared: Shared, folder: Path) -> None:
    """Write the cache again if something was wrong with it, and note by which stamps the files of the model are known now.

    The outputs are handed over already, so whatever fails here is told and no more: the next start is slower.
    """
    files = shared.raw.renewed
    if not shared.cache.problem and not files:
        return
    what = (
        "the weight cache could not be built again" if shared.cache.problem else "the model's new time stamp could not be noted"
    )
    try:
        with changing(folder):
            there = read_linked(folder / PROGRAM_NAME)
            if not _same(there, shared.program):
                return
            known = tuple(files.get(number, file) for number, file in enumerate(there.files))
            new = changed(there, files=known)
            if shared.cache.problem and not _renewed(there, shared.program, folder):
                shared.cache.rebuild(Preparer(shared).transformed)
                new = stamped(new, folder / CACHE_NAME)
            if new != there:
                write_linked(new, folder / PROGRAM_NAME)
    except (EdgeplanError, OSError) as error:
        _LOG.warning("%s, starts stay slower: %s", what, error)


def _same(there: LinkedProgram, ours: LinkedProgram) -> bool:
    """Tell whether the program in the folder is still ours: with the cache of another one it could not be run."""

    def known(program: LinkedProgram) -> tuple[str, ...]:
        return program.plan_sha256, program.reserve_sha256, program.tape_sha256, program.cache_key

    return known(there) == known(ours)


def _renewed(there: LinkedProgram, ours: LinkedProgram, folder: Path) -> bool:
    """Tell whether another process has written the cache again meanwhile, and nobody touched it since."""
    try:
        return there.cache_stamp != ours.cache_stamp and there.cache_stamp == stamp((folder / CACHE_NAME).stat())
    except FileNotFoundError:
        return False
