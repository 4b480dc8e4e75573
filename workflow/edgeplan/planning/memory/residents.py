"""Which weights to keep in memory for good, where inferences follow each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from edgeplan.planning.memory.simulate import Timeline
from edgeplan.planning.memory.workload import Floats, Workload

_SHARES = (0.98, 0.93, 0.85, 0.7, 0.4)


def stalls_ms(timeline: Timeline) -> Floats:
    """How long each step of the last inference waits for its weights."""
    ends = timeline.step_end
    before = np.concatenate([[ends[-2, -1] if len(ends) > 1 else 0.0], ends[-1, :-1]])
    waits: Floats = timeline.step_start[-1] - before
    return waits


def candidates(workload: Workload, budget: int, timeline: Timeline) -> Iterator[npt.NDArray[np.bool_]]:
    """Sets of weights that may be worth keeping, the largest first.

    Weights whose loads hold their step up most for each byte come first, then those of the steps
    that need most memory at once, which makes room for streaming the rest.

    Args:
        workload: the steps.
        budget: bytes.
        timeline: of inferences that stream all weights.
    """
    size = workload.weight_bytes
    benefit = np.round(stalls_ms(timeline) / np.maximum(size, 1), 12)
    order = np.lexsort((-(workload.live_bytes + size), -benefit))
    order = order[size[order] > 0]
    for share in _SHARES:
        left = int(share * (budget - int(workload.live_bytes.max())))
        pinned = np.zeros(workload.steps, dtype=np.bool_)
        for k in order.tolist():
            if size[k] <= left:
                pinned[k] = True
                left -= int(-(-size[k] // workload.weight_alignment) * workload.weight_alignment)
        yield pinned
