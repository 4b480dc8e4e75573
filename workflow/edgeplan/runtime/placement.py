"""Places for the weights of a program: in its cache in the order of execution, and in the session's memory."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from edgeplan.planning.document import Plan
from edgeplan.runtime.creation import aligned
from edgeplan.runtime.linked import Linked, linked_of
from edgeplan.runtime.weight_cache import description, paged, segments

_LOG = logging.getLogger(__name__)
_WIDEST = (1 << 56) - 1


def placed(document: dict[str, Any], plan: Plan, limit_bytes: int | None) -> Linked:
    """The program with places for all weights: in the cache in the order of execution, and in memory."""
    steps: list[dict[str, Any]] = document["steps"]
    _limit(steps, limit_bytes)
    at = 0
    for row in (*steps, *(row for row in document["later"] if row is not None)):
        if row["source"] in ("raw", "cached_read"):  # what is mapped or shared has a place
            row["place"] = at
            at += aligned(row["weight_bytes"])
    cached = [row for row in steps if row["source"].startswith("cached")]
    names = ("model", "threads", "layout", "equal_cores", "little_ratio", "main", "queues", "widen_from")
    given = {name: getattr(plan, name) for name in names} | {"weights_bytes": at, "cache_key": "", "cache_bytes": 0}
    size = 0
    if cached:
        for row in cached:
            row["segment"] = row["checksum"] = _WIDEST  # the room for the description depends on them
        longest = linked_of({**document, **given, "cache_bytes": 2 * _WIDEST})
        start = paged(len(description(longest.program, longest.reserve.steps)))
        for row, offset in zip(cached, segments((row["weight_bytes"] for row in cached), start), strict=True):
            row["segment"] = offset
            size = offset + paged(row["weight_bytes"])
    return linked_of({**document, **given, "cache_bytes": size})


def _limit(steps: Sequence[dict[str, Any]], limit_bytes: int | None) -> None:
    """Keep the smallest weights in the cache while they fit, so that most steps are spared their transformation."""
    cached = sorted((row for row in steps if row["source"].startswith("cached")), key=lambda row: row["weight_bytes"])
    total = 0
    dropped = 0
    for row in cached:
        total += paged(row["weight_bytes"])
        if limit_bytes is not None and total > limit_bytes:
            row["source"] = "raw"
            dropped += 1
    if dropped:
        _LOG.warning(
            "%d of %d steps do not fit into a cache of %d bytes: slower than planned", dropped, len(cached), limit_bytes
        )
