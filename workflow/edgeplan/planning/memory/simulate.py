"""The execution model that plans are priced by: when steps and loads begin and end.

A lane that is free takes the next read as soon as the step that its load waits for has ended: loads
in order of their steps, neighbours in the file together, up to the bytes of one read. Each read
takes a time of its own before its bytes come, which other reads may use; the bytes of one read at a
time have the whole bandwidth. What is stored in half its bytes is widened then, one read at a time. A
step begins when the one before has ended and all loads up to its
own are done. These are the rules of the reader (`native/src/session`).
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapreplace

import numpy as np

from edgeplan.planning.memory.workload import Floats, Placement, Reader, Workload


@dataclass(frozen=True)
class Timeline:
    """A timeline shows inferences that follow each other; ms from the begin of the first, shape (inferences, steps).

    Attributes:
        load_start, load_end: 0 for weights that are in memory at the begin, those of the inference
            before where they stay.
        step_start, step_end: of the computing.
    """

    load_start: Floats
    load_end: Floats
    step_start: Floats
    step_end: Floats

    @property
    def latency_ms(self) -> float:
        """Return the latency of the first inference in ms, which begins with memory filled."""
        return float(self.step_end[0, -1])

    @property
    def period_ms(self) -> float:
        """Mean time from a step to the same of the next inference, of the step with the longest.

        Over the second half of the inferences, of which there are at least three.
        """
        starts = self.step_start[len(self.step_start) // 2 :]
        return float(((starts[-1] - starts[0]) / (len(starts) - 1)).max())


def run(
    workload: Workload,
    reader: Reader,
    placement: Placement,
    inferences: int = 1,
    *,
    filled: bool = True,
) -> Timeline:
    """Run inferences one after the other.

    Args:
        workload: the steps.
        reader: what weights are read with.
        placement: where they go.
        inferences: how many.
        filled: whether memory is filled when the first one begins; else nothing is in it.
    """
    n, rate = workload.steps, reader.bytes_per_ms
    widening = 1 / reader.widened_per_ms if reader.widened_per_ms else 0.0  # ms a byte
    compute, size = workload.compute_ms.tolist() * inferences, workload.weight_bytes.tolist() * inferences
    queue, waits, follows = _queue(workload, placement, inferences, filled=filled)
    begun, done, starts, ends = ([0.0] * (n * inferences) for _ in range(4))
    lanes = [0.0] * reader.lanes  # a heap of when each is free
    step, now = 0, 0.0  # the next step, and when the one before ends

    def computed(last: int) -> float:
        """When a step ends; the loads of all steps up to it are known."""
        nonlocal step, now
        while step <= last:
            starts[step] = now = max(now, done[step])
            ends[step] = now = now + compute[step]
            step += 1
        return ends[last] if last >= 0 else 0.0

    issued = wire = widened = 0.0
    at, left = 0, size[queue[0]] if queue else 0  # of the load that is next: its place, and the bytes to read
    while at < len(queue):
        first, room = queue[at], reader.chunk_bytes
        issued = max(issued, lanes[0], computed(waits[at]))
        complete: list[int] = []
        while True:
            own = queue[at]
            if left == size[own]:
                begun[own] = issued
            part = min(left, room)
            left, room = left - part, room - part
            if left:
                break
            complete.append(own)
            at += 1
            if at == len(queue):
                break
            left = size[queue[at]]
            if not room or not follows[at] or waits[at] >= first or computed(waits[at]) > issued:
                break
        wire = max(wire, issued + reader.read_ms) + (reader.chunk_bytes - room) / rate
        widened = max(widened, wire) + (reader.chunk_bytes - room) * widening
        heapreplace(lanes, widened)
        for own in complete:
            done[own] = widened
    computed(n * inferences - 1)
    return Timeline(*(np.array(values).reshape(inferences, n) for values in (begun, done, starts, ends)))


def _queue(
    workload: Workload, placement: Placement, inferences: int, *, filled: bool
) -> tuple[list[int], list[int], list[bool]]:
    """The loads in order: step, the step that it waits for (-1: none), whether it lies in the file behind the load before.

    Steps are counted on from one inference to the next.
    """
    n = workload.steps
    own = placement.after >= 0  # loads that wait for a step of their own inference
    loads = placement.weight_offset >= 0
    place = np.cumsum(workload.weight_bytes > 0)  # in the file
    queue, waits, follows = [], [], []
    for m in range(inferences):
        steps = np.flatnonzero(loads & ~placement.stays if m else loads & own if filled else loads)
        queue.append(steps + m * n)
        waits.append(np.where(own[steps], placement.after[steps] + m * n, placement.again[steps] + (m - 1) * n))
        follows.append(np.diff(place[steps], prepend=-1) == 1)
    return tuple(np.concatenate(values).tolist() for values in (queue, waits, follows))
