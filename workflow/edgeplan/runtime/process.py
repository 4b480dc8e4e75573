"""A process that runs plans sets these things up before it opens one."""

from __future__ import annotations

import os

from edgeplan.runtime.code_memory import pool_code
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.heaps import grow_heaps
from edgeplan.runtime.objects import library_places


def prepare_process(dnnl: Dnnl) -> None:
    """For programs that run plans and little else, once, beside loading the library: it holds for the process.

    Where the system does not let it, the same is computed, in more time.
    """
    library_places(dnnl)  # looked up once
    grow_heaps(len(os.sched_getaffinity(0)))  # at least one for each thread that prepares, and one for what reads ahead
    pool_code(dnnl.info.path)
