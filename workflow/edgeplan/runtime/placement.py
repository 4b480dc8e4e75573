"""Places for the weights of a program: in its cache in the order of execution, and in the session's memory."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from edgeplan.planning.document import Plan
from edgeplan.runtime.creation import aligned
from edgeplan.runtime.linked import Linked, Tables, converted, linked_of
from edgeplan.runtime.recipes import can_be_raw
from edgeplan.runtime.weight_cache import paged

_LOG = logging.getLogger(__name__)
Row = dict[str, Any]


def narrow_width(plan: Plan) -> int:
    """Cores that execute while others prepare."""
    return max(1, plan.threads - len(plan.queues)) if plan.equal_cores else plan.threads


def placed(
    plan: Plan,
    head: Mapping[str, Any],
    tables: Tables,
    rows: tuple[Sequence[Row], Sequence[Row | None]],
    limit_bytes: int | None,
) -> Linked:
    """The program with places for all weights: in the cache in the order of execution, and in memory.

    Args:
        plan: whose.
        head: fields of the program that the plan does not name.
        tables: of its calls.
        rows: of its steps, and of those of later runs.
        limit_bytes: most bytes of the cache; None: any.
    """
    steps, later = rows
    _limit(steps, limit_bytes)
    at = end = 0
    for row in (*steps, *(row for row in later if row is not None)):
        if row["source"] in ("raw", "cached_read"):  # what is mapped or shared has a place
            row["place"] = at
            at += aligned(row["weight_bytes"])
    for row in steps:
        if row["source"].startswith("cached"):
            row["segment"] = end
            end += paged(row["weight_bytes"])
    names = ("model", "threads", "layout", "equal_cores", "little_ratio", "main", "queues", "widen_from")
    given = {name: getattr(plan, name) for name in names} | {"weights_bytes": at, "cache_bytes": end}
    return linked_of({**head, **given}, tables, steps, later)


def _limit(steps: Sequence[Row], limit_bytes: int | None) -> None:
    """Keep the smallest weights in the cache while they fit, so that most steps are spared their making; others always."""
    if limit_bytes is None:
        return
    cached = sorted((row for row in steps if row["source"].startswith("cached")), key=lambda row: row["weight_bytes"])
    leaving = [row for row in cached if can_be_raw(converted(row))]
    total = sum(paged(row["weight_bytes"]) for row in cached)
    dropped = 0
    while leaving and total > limit_bytes:
        row = leaving.pop()
        row["source"] = "raw"
        total -= paged(row["weight_bytes"])
        dropped += 1
    if dropped:
        what = "%d of %d steps do not fit into a cache of %d bytes: slower than planned"
        _LOG.warning(what, dropped, len(cached), limit_bytes)
    if total > limit_bytes:
        _LOG.warning("the cache has %d bytes: the rest cannot be made from the model's weights at a start", total)
