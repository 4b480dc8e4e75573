"""What a process that runs plans sets up before it opens one."""

from __future__ import annotations

from edgeplan.runtime.code_memory import pool_code
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.memory import share_heap
from edgeplan.runtime.objects import library_places


def prepare_process(dnnl: Dnnl) -> None:
    """For programs that run plans and little else, once, beside loading the library: it holds for the process.

    Where the system does not let it, the same is computed, in more time.
    """
    library_places(dnnl)  # looked up once
    share_heap()
    pool_code(dnnl.info.path)
