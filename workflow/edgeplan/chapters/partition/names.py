"""Names in stored rows that what measures, what shows and EOP's part have in common."""

from __future__ import annotations

#: A way to run a layer or a model: oneDNN alone on all cores of the pair.
ALL_CORES = "cpu, all cores"
#: A choice of kernel: the white-box dispatcher's own.
DISPATCHER = "dispatcher"
