"""Which weights to keep in memory for good, where inferences follow each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from edgeplan.planning.memory.simulate import Timeline
from edgeplan.planning.memory.workload import Floats, Workload

#: Of what tensors leave, the most first.
SHARES = (0.98, 0.93, 0.85, 0.7, 0.4)


def stalls_ms(timeline: Timeline) -> Floats:
    """Return the time that each step of the last inference waits for its weights, in ms."""
    ends = timeline.step_end
    before = np.concatenate([[ends[-2, -1] if len(ends) > 1 else 0.0], ends[-1, :-1]])
    waits: Floats = timeline.step_start[-1] - before
    return waits


def candidates(
    workload: Workload, budget: int, timeline: Timeline, shares: Sequence[float] = SHARES, first: Sequence[int] = ()
) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield sets of weights that may be worth keeping, the largest first.

    Weights whose loads hold their step up most for each byte come first, then those of the steps
    that need most memory at once, which makes room for streaming the rest.

    Args:
        workload: the steps.
        budget: bytes.
        timeline: of inferences that stream all weights.
        shares: of the memory that tensors leave, for weights that are kept.
        first: steps that come before all others: they stay at a smaller budget.
    """
    size = workload.weight_bytes
    benefit = np.round(stalls_ms(timeline) / np.maximum(size, 1), 12)
    others = np.ones(workload.steps, dtype=np.bool_)
    others[list(first)] = False
    order = np.lexsort((-(workload.live_bytes + size), -benefit, others))
    rows = [
        (k, bytes_of, -(-bytes_of // workload.weight_alignment) * workload.weight_alignment)
        for k in order.tolist()
        if (bytes_of := int(size[k]))
    ]
    for share in shares:
        left = int(share * (budget - int(workload.live_bytes.max())))
        pinned = np.zeros(workload.steps, dtype=np.bool_)
        chosen = []
        for k, bytes_of, taken in rows:
            if bytes_of <= left:
                chosen.append(k)
                left -= taken
        pinned[chosen] = True
        yield pinned
