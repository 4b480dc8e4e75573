"""A workload is the input of the memory planner: steps in order, tensors that live across them, weights; and how it executes.

Plans are priced by a model of when steps and loads begin and end. A lane that is free takes the next read as
soon as the step that its load waits for has ended: loads in order of their steps, neighbours in the file
together, up to the bytes of one read. Each read takes a time of its own before its bytes come, which other
reads may use; the bytes of one read at a time have the whole bandwidth. What is stored in half its bytes is
widened then, one read at a time. A step begins when the one before has ended and all loads up to its own are
done. These are the rules of the reader (`native/src/session`). What stalls tells which weights to keep in
memory for good, where inferences follow each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush, heapreplace

import numpy as np
import numpy.typing as npt

from edgeplan.planning.layout import Buffers, Ints

Floats = npt.NDArray[np.float64]
#: Bytes of one read: smaller ones cost bandwidth, larger ones gain none.
CHUNK_BYTES = 2 << 20
#: Of the memory that tensors leave, for weights that are kept, the most first.
SHARES = (0.98, 0.93, 0.85, 0.7, 0.4)


@dataclass(frozen=True)
class Reader:
    """A reader loads weights in reads of bounded size, a few of them (`lanes`) in flight.

    A read takes a time of its own, until the disk answers and its thread runs, before its bytes come. Reads in flight share the
    bandwidth, and one that is alone has all of it. Where weights are stored in half their bytes, values are widened read by
    read, so many bytes in a ms; 0: nothing is. All bytes are counted as memory holds them.
    """

    bytes_per_ms: float
    lanes: int = 1
    read_ms: float = 0.0
    chunk_bytes: int = CHUNK_BYTES
    widened_per_ms: float = 0.0

    @classmethod
    def measured(cls, bytes_per_ms: float, lanes: int, read_ms: float, widened_per_ms: float) -> Reader:
        """Make the reader of a profile: where halves are widened, a read brings twice its bytes to memory."""
        chunk = 2 * CHUNK_BYTES if widened_per_ms else CHUNK_BYTES
        return cls(bytes_per_ms, lanes, read_ms, chunk, widened_per_ms)


@dataclass(frozen=True)
class Workload:
    """A workload describes one inference: times, weights, and tensors of its steps. A step is a layer or a slice of one.

    Times are those with the weights in memory, weights 0 bytes where there are none, both of shape (steps,); tensors are
    activations and scratch, alive from step `lower` to before step `upper`. Addresses of weights are multiples of the
    alignment.
    """

    compute_ms: Floats
    weight_bytes: Ints
    tensors: Buffers
    weight_alignment: int = 1

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return len(self.compute_ms)

    @cached_property
    def live_bytes(self) -> Ints:
        """Return bytes of tensors that are alive in each step."""
        change = np.zeros(self.steps + 1, dtype=np.int64)
        np.add.at(change, self.tensors.lower, self.tensors.size)
        np.add.at(change, self.tensors.upper, -self.tensors.size)
        return np.cumsum(change)[:-1]

    @cached_property
    def by_begin(self) -> Ints:
        """Return positions of the tensors by the step in which they begin."""
        return np.argsort(self.tensors.lower, kind="stable")


@dataclass(frozen=True)
class Placement:
    """Where tensors and weights lie, and when each load may begin.

    Attributes:
        tensor_offset: one a tensor.
        weight_offset: one a step, -1 without weights.
        after: the load of a step begins when this step has ended, -1 for loads that wait for none.
            Beside weights that stay it never falls from one load to the next, so that counting
            loads is enough, however many are in flight.
        again: in the next inference, for steps with `after` -1, the step of the inference before
            that the load waits for; its own where nothing else uses the memory: then its weights
            stay, and are never loaded again.
        height: the largest address in use.
    """

    tensor_offset: Ints
    weight_offset: Ints
    after: Ints
    again: Ints
    height: int

    @property
    def stays(self) -> npt.NDArray[np.bool_]:
        """Return steps whose weights are not loaded again in the next inference."""
        own = np.arange(len(self.after))
        stays: npt.NDArray[np.bool_] = (self.after < 0) & (self.again == own) & (self.weight_offset >= 0)
        return stays


def placement(workload: Workload, tensor_offset: Ints, weight_offset: Ints, after: Ints) -> Placement:
    """Return a placement, with what follows from the addresses; O(steps (steps + tensors))."""
    tensors, weights = workload.tensors, workload.weight_bytes
    again = _last_users(weight_offset, weights, after, tensor_offset, tensors.size, tensors.upper)
    ends = np.where(weight_offset >= 0, weight_offset + weights, 0)
    height = max(int(ends.max()), int((tensor_offset + tensors.size).max(initial=0)))
    return Placement(tensor_offset, weight_offset, after, again, height)


def _last_users(offset: Ints, size: Ints, after: Ints, tensor_offset: Ints, tensor_size: Ints, upper: Ints) -> Ints:
    """For loads that wait for nothing: the last step that uses their memory."""
    again = np.full(len(offset), -1, dtype=np.int64)
    steps = np.arange(len(offset))
    for k in np.flatnonzero((offset >= 0) & (after < 0)).tolist():
        low, high = offset[k], offset[k] + size[k]
        weights = (offset >= 0) & (offset < high) & (low < offset + size) & (steps >= k)
        tensors = (tensor_offset < high) & (low < tensor_offset + tensor_size)
        again[k] = max(k, steps[weights].max(initial=k), upper[tensors].max(initial=0) - 1)
    return again


@dataclass(frozen=True)
class Timeline:
    """A timeline shows inferences that follow each other; ms from the begin of the first, shape (inferences, steps).

    Loads are at 0 for weights that are in memory at the begin, those of the inference before where they stay.
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


def simulated(workload: Workload, reader: Reader, placement: Placement, inferences: int = 1) -> Timeline:
    """Run inferences one after the other; memory is filled when the first one begins."""
    n, rate = workload.steps, reader.bytes_per_ms
    widening = 1 / reader.widened_per_ms if reader.widened_per_ms else 0.0  # ms a byte
    compute, size = workload.compute_ms.tolist() * inferences, workload.weight_bytes.tolist() * inferences
    queue, waits, follows = _queue(workload, placement, inferences)
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


def _queue(workload: Workload, placement: Placement, inferences: int) -> tuple[list[int], list[int], list[bool]]:
    """The loads in order: step, the step that it waits for (-1: none), whether it lies in the file behind the load before.

    Steps are counted on from one inference to the next.
    """
    n = workload.steps
    own = placement.after >= 0  # loads that wait for a step of their own inference
    loads = placement.weight_offset >= 0
    place = np.cumsum(workload.weight_bytes > 0)  # in the file
    queue, waits, follows = [], [], []
    for m in range(inferences):
        steps = np.flatnonzero(loads & ~placement.stays if m else loads & own)
        queue.append(steps + m * n)
        waits.append(np.where(own[steps], placement.after[steps] + m * n, placement.again[steps] + (m - 1) * n))
        follows.append(np.diff(place[steps], prepend=-1) == 1)
    return tuple(np.concatenate(values).tolist() for values in (queue, waits, follows))


def stalls_ms(timeline: Timeline) -> Floats:
    """Return the time that each step of the last inference waits for its weights, in ms."""
    ends = timeline.step_end
    before = np.concatenate([[ends[-2, -1] if len(ends) > 1 else 0.0], ends[-1, :-1]])
    waits: Floats = timeline.step_start[-1] - before
    return waits


def kept_candidates(
    workload: Workload, budget: int, timeline: Timeline, shares: Sequence[float] = SHARES, first: Sequence[int] = ()
) -> Iterator[npt.NDArray[np.bool_]]:
    """Yield sets of weights that may be worth keeping, the largest first.

    Weights whose loads hold their step up most for each byte come first, then those of the steps
    that need most memory at once, which makes room for streaming the rest. The timeline is of inferences that stream all
    weights; steps in `first` come before all others: they stay at a smaller budget.
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


def least_bytes(workload: Workload) -> int:
    """No budget below it is enough: what a step uses is in memory together."""
    return int((workload.live_bytes + workload.weight_bytes).max())


def isolated_ms(workload: Workload, reader: Reader, budget: int) -> float:
    """Bound from below the latency of one inference by any plan that begins with memory filled; infinite if it is too small.

    With e_i the earliest start of step i, c_i its compute time, A_i the bytes of tensors alive in it,
    W(i..k) the weights of steps i to k, B the budget, r the bandwidth and l the time of a read besides
    its bytes:

        e_k = max(e_(k-1) + c_(k-1), max over i < k of e_i + c_i + l + (W(i..k) - (B - A_i)) / r)

    where the inner maximum is over those i for which more than nothing is left to read. While step i
    runs, its tensors and weights stay, so at most B - A_i bytes of the weights of steps i to k are in
    memory or on their way there; the reads of the others begin once it has ended. Each i counts from one
    k on, since W grows, so the inner maximum is a running one.
    """
    if budget < least_bytes(workload):
        return math.inf
    live, weights = workload.live_bytes.tolist(), workload.weight_bytes.tolist()
    compute, rate = workload.compute_ms.tolist(), reader.bytes_per_ms
    waiting: list[tuple[int, float]] = []  # a heap: bytes of weights from which on a step counts, and what it adds
    needed, start, read = -math.inf, 0.0, 0  # read: weights up to step k
    for k in range(workload.steps):
        before, read = read, read + weights[k]
        while waiting and waiting[0][0] < read:
            needed = max(needed, heappop(waiting)[1])
        start = max(start, needed + read / rate)
        heappush(waiting, (before + budget - live[k], start + compute[k] + reader.read_ms - (before + budget - live[k]) / rate))
        start += compute[k]
    return start


def period_ms(workload: Workload, reader: Reader, budget: int, stride: int = 1) -> float:
    """Bound of the mean time between inferences that follow each other.

    Infinite if the budget is too small. Counted from step i of one inference to step i of the next,
    all weights are used once, and what is in memory at first is bounded as in one inference; so the
    bound of any i holds. O(steps^2 / stride), all i side by side.

    Only each `stride`-th step is counted from: all of these bounds hold, the largest over all steps is the tightest.
    """
    if budget < least_bytes(workload):
        return math.inf
    n, rate = workload.steps, reader.bytes_per_ms
    firsts = range(0, n, stride)
    compute = np.tile(workload.compute_ms, 2)
    prefix = np.concatenate([[0], np.cumsum(np.tile(workload.weight_bytes, 2))])
    room = prefix[:-1] + budget - np.tile(workload.live_bytes, 2)
    counting: list[list[int]] = [[] for _ in range(2 * n + 1)]  # the steps that count from each step on
    for i, k in enumerate(np.searchsorted(prefix[1:], room, side="right").tolist()):
        counting[max(k, i + 1)].append(i)
    start = np.zeros(len(firsts))  # of the step that is looked at, counted from the start of each first step
    needed = np.full(len(firsts), -math.inf)
    added: dict[int, Floats] = {}
    longest, begun, ended = 0.0, 0, 0
    for k in range(2 * n):
        read = float(prefix[k + 1]) / rate
        if ended < len(firsts) and k == firsts[ended] + n:  # the same step again, whose weights may have stayed
            longest = max(longest, float(start[ended]), float(needed[ended]) + float(prefix[k]) / rate)
            ended += 1
        for i in counting[k]:
            np.maximum(needed[: len(added[i])], added[i], out=needed[: len(added[i])])
            del added[i]
        active = slice(ended, begun)
        np.maximum(start[active], needed[active] + read, out=start[active])
        begun += begun < len(firsts) and k == firsts[begun]
        added[k] = start[:begun] + (float(compute[k]) + reader.read_ms - float(room[k]) / rate)
        start[ended:begun] += compute[k]
    return longest
