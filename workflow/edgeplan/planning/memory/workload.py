"""A workload is the input of the memory planner: steps in order, the tensors that live across them, and their weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from edgeplan.planning.layout.buffers import Buffers, Ints

Floats = npt.NDArray[np.float64]
#: Bytes of one read: smaller ones cost bandwidth, larger ones gain none.
CHUNK_BYTES = 2 << 20


@dataclass(frozen=True)
class Reader:
    """A reader loads weights in reads of bounded size, a few of them in flight.

    A read takes a time of its own before its bytes come. Reads in flight share the bandwidth, and one
    that is alone has all of it.

    Attributes:
        bytes_per_ms: of all lanes together.
        lanes: reads in flight.
        read_ms: of each read, besides its bytes: until the disk answers and its thread runs.
        chunk_bytes: the most bytes of one read.
        widened_per_ms: bytes of values that are widened in a ms, read by read, where weights are stored in half their bytes; 0:
            nothing is. All bytes are counted as memory holds them.
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
    """A workload describes one inference: times, weights, and tensors of its steps.

    A step is a layer or a slice of one.

    Attributes:
        compute_ms: of each step, its weights in memory; shape (steps,).
        weight_bytes: of each step, 0 without weights; shape (steps,).
        tensors: activations and scratch, alive from step `lower` to before step `upper`.
        weight_alignment: addresses of weights are multiples of it.
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
