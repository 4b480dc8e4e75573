"""Sorts things that wait for each other into an order in which they can run."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence


def topological(before: Sequence[Collection[int]]) -> list[int]:
    """Return places so that each comes after those it waits for (each once), otherwise in the order given.

    Those in a circle, and what waits for them, are left out.
    """
    waits = [len(places) for places in before]
    readers: list[list[int]] = [[] for _ in before]
    for i, places in enumerate(before):
        for j in places:
            readers[j].append(i)
    ready = [i for i, count in enumerate(waits) if not count]
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for reader in readers[i]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    return order
