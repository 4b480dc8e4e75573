"""A session renews its plan folder: a cache that had to be made again, stamps of files that were looked at."""

from __future__ import annotations

import logging
from pathlib import Path

from edgeplan.errors import EdgeplanError
from edgeplan.runtime.folder import COLD_START, PlanFolder, read_folder
from edgeplan.runtime.folder_lock import changing
from edgeplan.runtime.linked import LinkedProgram
from edgeplan.runtime.preparation import CACHE_NAME, Preparer, Shared
from edgeplan.runtime.weight_cache import settled_stamp, stamp

_LOG = logging.getLogger(__name__)


def renew(shared: Shared, plan: PlanFolder) -> None:
    """Write the cache again if something was wrong with it, and note by which stamps the files of the model are known now.

    The outputs are handed over already, so whatever fails here is told and no more: the next start is slower.
    """
    files, folder = shared.raw.renewed, plan.path
    if not shared.cache.problem and not files:
        return
    what = (
        "the weight cache could not be built again" if shared.cache.problem else "the model's new time stamp could not be noted"
    )
    try:
        with changing(folder):
            there = read_folder(folder, COLD_START)
            if there.files != plan.files:  # with the cache of another program ours could not be run
                return
            found = there.program_of(LinkedProgram)
            known = tuple(files.get(number, file) for number, file in enumerate(found.files))
            written = found.cache_stamp
            if shared.cache.problem and not _renewed(found, shared.program, folder):
                shared.cache.rebuild(shared.steps, Preparer(shared).transformed)
                written = settled_stamp(folder / CACHE_NAME)
            if (known, written) != (found.files, found.cache_stamp):
                there.reschedule(there.scheduled(dict) | {"files": known, "cache_stamp": written})
    except (EdgeplanError, OSError) as error:
        _LOG.warning("%s, starts stay slower: %s", what, error)


def _renewed(there: LinkedProgram, ours: LinkedProgram, folder: Path) -> bool:
    """Tell whether another process has written the cache again meanwhile, and nobody touched it since."""
    try:
        return there.cache_stamp != ours.cache_stamp and there.cache_stamp == stamp((folder / CACHE_NAME).stat())
    except FileNotFoundError:
        return False
