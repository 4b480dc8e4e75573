"""Searches exactly for a layout within a capacity.

It follows MiniMalloc (Moffitt, ASPLOS 2023), with stronger inference. Only layouts in which no
buffer can fall are searched, and each is built in one order alone: by offset, then by position. So
a buffer is placed right above the highest of its neighbours that are placed, and what could have
been placed before and was not (it is skipped) has to be blocked later. Beyond the rules of the
paper:

* A skipped buffer k fits below what is still to come unless a neighbour is placed at an offset
  below hard[k] + size[k]. In a layout where nothing can fall there is one, and k lies above it.
  Without such a neighbour the branch is dead; with them, k lies at the least end among them or
  above (`low`).
* In every section of time the buffers to come, each from its `low` on, take at least as much as one
  machine takes for jobs with release dates in that order.

Where the buffers to come fall apart in time, the components are searched one after the other; when
one has no layout, the search goes back to the buffer whose placing made it a component.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from edgeplan.planning.layout.buffers import Buffers, Ints
from edgeplan.planning.layout.parts import Indices, InterferenceGraph
from edgeplan.support.compiled import compiled

FOUND, EXHAUSTED, PAUSED, FULL = 0, 1, 2, 3
_FAR = np.int64(2**62)
_LIST, _LIST_END, _NEXT, _FIRST, _LAST, _BACK, _AGENDA, _TRAIL, _POOL, _HEIGHT, _AGENDAS = range(11)
_DEPTH, _TRAIL_TOP, _POOL_TOP, _AGENDA_TOP, NODES = range(5)


class State(NamedTuple):
    """A state holds a search that can be paused. Buffers are numbered in the order that breaks ties.

    Attributes:
        size, alignment: size and alignment of the buffers.
        first, last: sections of each buffer.
        pointer, neighbour: see `parts.InterferenceGraph`.
        offset: offset of the placed buffers, -1 for the others.
        hard: the highest end of placed neighbours, aligned.
        low: lower bound of the offset of a buffer to come, at least `hard`.
        trail, old: what was changed, buffer + n * kind, and its value before; kinds are `hard`,
            `low` and `offset`.
        pool: lists of the buffers to come, sorted by `low`.
        frames: one row a decision, columns `_LIST` to `_AGENDAS`.
        agenda: components that wait, rows of list, list end, first, last section, frame to go back
            to, next component.
        registers: depth, tops of trail, pool and agenda, nodes.
        level, cover: scratch, one entry a section.
    """

    size: Ints
    alignment: Ints
    first: Ints
    last: Ints
    pointer: Ints
    neighbour: Indices
    offset: Ints
    hard: Ints
    low: Ints
    trail: Indices
    old: Ints
    pool: Indices
    frames: Ints
    agenda: Ints
    registers: Ints
    level: Ints
    cover: Ints


def begin(graph: InterferenceGraph, part: Buffers, order: Ints, room: int) -> State:
    """Return a search that has not begun.

    Args:
        graph: interference graph of the part.
        part: its buffers.
        order: positions of the buffers, the first to try first.
        room: entries in the trail and in the pool; a search that needs more gives up.
    """
    n = len(order)
    rank = np.empty(n, dtype=np.int32)
    rank[order] = np.arange(n, dtype=np.int32)
    degree = np.diff(graph.pointer)
    pointer = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(degree[order])])
    neighbour = np.concatenate([rank[graph.neighbour[graph.pointer[k] : graph.pointer[k + 1]]] for k in order])
    frames = np.zeros((n + 1, 11), dtype=np.int64)
    frames[0, :7] = (0, n, 0, 0, graph.sections, -1, -1)
    pool = np.zeros(max(room, n), dtype=np.int32)
    pool[:n] = np.arange(n)
    registers = np.array([0, 0, n, 0, 0], dtype=np.int64)
    frames[0, _POOL] = n
    frames[0, _HEIGHT] = part.size.min()
    return State(
        size=part.size[order],
        alignment=part.alignment[order],
        first=graph.first[order],
        last=graph.last[order],
        pointer=pointer,
        neighbour=neighbour.astype(np.int32),
        offset=np.full(n, -1, dtype=np.int64),
        hard=np.zeros(n, dtype=np.int64),
        low=np.zeros(n, dtype=np.int64),
        trail=np.zeros(room, dtype=np.int32),
        old=np.zeros(room, dtype=np.int64),
        pool=pool,
        frames=frames,
        agenda=np.zeros((n + 1, 6), dtype=np.int64),
        registers=registers,
        level=np.zeros(graph.sections, dtype=np.int64),
        cover=np.zeros(graph.sections + 1, dtype=np.int64),
    )


@compiled
def advance(s: State, capacity: int, nodes: int) -> int:  # noqa: C901  one loop of a search, in compiled code
    """Continue the search for a number of decisions.

    Args:
        s: the search; `s.offset` holds the layout where one is found.
        capacity: no buffer ends above it.
        nodes: decisions to try before pausing.

    Returns:
        `FOUND`, `EXHAUSTED` (there is no layout), `PAUSED` or `FULL` (it gives up).
    """
    n = len(s.size)
    depth = s.registers[_DEPTH]
    frames = s.frames
    while depth >= 0:
        frame = frames[depth]
        _undo(s, frame[_TRAIL])
        s.registers[_POOL_TOP] = frame[_POOL]
        s.registers[_AGENDA_TOP] = frame[_AGENDAS]
        chosen = -1
        at = frame[_LIST] + frame[_NEXT]
        while at < frame[_LIST_END]:
            k = s.pool[at]
            if s.low[k] >= frame[_HEIGHT]:
                break
            if s.low[k] == s.hard[k]:
                chosen = k
                break
            at += 1
        if chosen < 0:
            depth = frame[_BACK]
            continue
        if s.registers[NODES] >= nodes:
            s.registers[_DEPTH] = depth
            return PAUSED
        s.registers[NODES] += 1
        frame[_NEXT] = at + 1 - frame[_LIST]
        room = frame[_LIST_END] - frame[_LIST]
        if s.registers[_TRAIL_TOP] + 3 * n > len(s.trail) or s.registers[_POOL_TOP] + 2 * room > len(s.pool):
            return FULL
        if not _place(s, chosen, capacity) or not _skip(s, frame, at, capacity):
            continue
        end = _remaining(s, frame, chosen)
        if not _bounded(s, frame[_POOL], end, frame[_FIRST], frame[_LAST], capacity):
            continue
        waiting = _split(s, frame[_POOL], end, frame[_FIRST], frame[_LAST], depth, frame[_AGENDA])
        if waiting < 0:
            return FOUND
        part = s.agenda[waiting]
        depth += 1
        child = frames[depth]
        child[_LIST], child[_LIST_END], child[_NEXT] = part[0], part[1], 0
        child[_FIRST], child[_LAST], child[_BACK], child[_AGENDA] = part[2], part[3], part[4], part[5]
        child[_TRAIL] = s.registers[_TRAIL_TOP]
        child[_POOL] = s.registers[_POOL_TOP]
        child[_AGENDAS] = s.registers[_AGENDA_TOP]
        height = _FAR
        for q in range(child[_LIST], child[_LIST_END]):
            k = s.pool[q]
            height = min(height, s.hard[k] + s.size[k])
        child[_HEIGHT] = height
    s.registers[_DEPTH] = -1
    return EXHAUSTED


@compiled
def _undo(s: State, mark: int) -> None:
    n = len(s.size)
    top = s.registers[_TRAIL_TOP]
    while top > mark:
        top -= 1
        kind, k = divmod(s.trail[top], n)
        if kind == 0:
            s.hard[k] = s.old[top]
        elif kind == 1:
            s.low[k] = s.old[top]
        else:
            s.offset[k] = -1
    s.registers[_TRAIL_TOP] = top


@compiled
def _note(s: State, entry: int, old: int) -> None:
    top = s.registers[_TRAIL_TOP]
    s.trail[top] = entry
    s.old[top] = old
    s.registers[_TRAIL_TOP] = top + 1


@compiled
def _place(s: State, k: int, capacity: int) -> bool:
    """Place a buffer at `low`: its neighbours to come lie above it."""
    n = len(s.size)
    s.offset[k] = s.low[k]
    _note(s, k + 2 * n, 0)
    end = s.low[k] + s.size[k]
    for q in range(s.pointer[k], s.pointer[k + 1]):
        j = s.neighbour[q]
        if s.offset[j] >= 0 or s.hard[j] >= end:
            continue
        above = -(-end // s.alignment[j]) * s.alignment[j]
        if above + s.size[j] > capacity:
            return False
        _note(s, j, s.hard[j])
        s.hard[j] = above
        if s.low[j] < above:
            _note(s, j + n, s.low[j])
            s.low[j] = above
    return True


@compiled
def _skip(s: State, frame: Ints, chosen_at: int, capacity: int) -> bool:  # noqa: C901  likewise
    """Raise skipped candidates above what can block them; tell whether each can still be blocked and fit."""
    n = len(s.size)
    offset = s.low[s.pool[chosen_at]]
    changed = True
    while changed:
        changed = False
        for q in range(frame[_LIST], frame[_LIST_END]):
            k = s.pool[q]
            # Above what was just placed, or not skipped: an ordinary candidate.
            if s.hard[k] > offset or q == chosen_at or (q > chosen_at and s.low[k] == s.hard[k]):
                continue
            fits_below = s.hard[k] + s.size[k]
            least = _FAR
            for p in range(s.pointer[k], s.pointer[k + 1]):
                j = s.neighbour[p]
                if s.offset[j] < 0:
                    at = max(s.low[j], offset)
                    if at < fits_below:
                        least = min(least, at + s.size[j])
            if least == _FAR:
                return False
            least = -(-least // s.alignment[k]) * s.alignment[k]
            if least + s.size[k] > capacity:
                return False
            if least > s.low[k]:
                _note(s, k + n, s.low[k])
                s.low[k] = least
                changed = True
                if s.registers[_TRAIL_TOP] + n > len(s.trail):
                    return True  # a weaker bound is a bound
    return True


@compiled
def _remaining(s: State, frame: Ints, chosen: int) -> int:
    """Write the list without the chosen buffer, sorted again. Returns its end."""
    start = end = frame[_POOL]
    for q in range(frame[_LIST], frame[_LIST_END]):
        k = s.pool[q]
        if k == chosen:
            continue
        at = end
        while at > start:
            j = s.pool[at - 1]
            if s.low[j] < s.low[k] or (s.low[j] == s.low[k] and j < k):
                break
            s.pool[at] = j
            at -= 1
        s.pool[at] = k
        end += 1
    return int(end)


@compiled
def _bounded(s: State, start: int, end: int, first: int, last: int, capacity: int) -> bool:
    level = s.level
    level[first:last] = 0
    for q in range(start, end):
        k = s.pool[q]
        low, size = s.low[k], s.size[k]
        top = 0
        for t in range(s.first[k], s.last[k]):
            level[t] = max(level[t], low) + size
            top = max(top, level[t])
        if top > capacity:
            return False
    return True


@compiled
def _split(s: State, start: int, end: int, first: int, last: int, back: int, after: int) -> int:
    """Put the components of a list on the agenda.

    Returns:
        The first, or what comes after if there is none; -1 for nothing.
    """
    if start == end:
        return after
    crossing = s.cover  # borders between sections
    crossing[first : last + 1] = 0
    for q in range(start, end):
        k = s.pool[q]
        crossing[s.first[k] + 1] += 1
        crossing[s.last[k]] -= 1
    begun = top = s.registers[_AGENDA_TOP]
    live, since = 0, first
    for t in range(first + 1, last + 1):
        live += crossing[t]
        if live > 0 and t < last:
            continue
        if s.level[since] > 0:  # as `_bounded` left it: there is a buffer
            s.agenda[top, 2] = since
            s.agenda[top, 3] = t
            top += 1
        since = t
    return _write_parts(s, start, end, begun, top, back, after)


@compiled
def _write_parts(s: State, start: int, end: int, begun: int, top: int, back: int, after: int) -> int:
    write = end
    for p in range(begun, top):
        part = s.agenda[p]
        since, until = part[2], part[3]
        part[0], part[1] = start, end
        part[4] = back
        part[5] = p + 1 if p + 1 < top else after
        if top - begun > 1:
            part[0] = write
            for q in range(start, end):
                k = s.pool[q]
                if since <= s.first[k] < until:
                    s.pool[write] = k
                    write += 1
            part[1] = write
    s.registers[_AGENDA_TOP] = top
    s.registers[_POOL_TOP] = write
    return begun
