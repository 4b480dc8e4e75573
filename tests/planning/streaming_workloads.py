"""Workloads to plan the streaming of: two published networks, and random ones."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from edgeplan.planning.layout.buffers import buffers
from edgeplan.planning.memory.simulate import Timeline
from edgeplan.planning.memory.workload import Placement, Workload

_FLOAT = 4
_SLICE = 2 << 20  # no slice of weights is larger


class Network:
    """Steps and tensors of a network, added in order of execution."""

    def __init__(self, macs_per_ms: float, bytes_per_ms: float) -> None:
        self.macs_per_ms, self.bytes_per_ms = macs_per_ms, bytes_per_ms
        self.compute: list[float] = []
        self.weights: list[int] = []
        self.tensors: list[list[int]] = []  # begin, end, bytes

    def tensor(self, count: int) -> int:
        """A tensor of so many values that begins with the next step."""
        self.tensors.append([len(self.compute), len(self.compute) + 1, _FLOAT * count])
        return len(self.tensors) - 1

    def layer(self, macs: int, weights: int, inputs: list[int]) -> None:
        """A layer, in slices; its output has been added before."""
        slices = max(1, -(-_FLOAT * weights // _SLICE))
        ms = max(macs / self.macs_per_ms, _FLOAT * weights / self.bytes_per_ms)  # fully connected: bound by memory
        for part in range(slices):
            self.compute.append(ms / slices)
            self.weights.append(-(-_FLOAT * weights // slices // 64) * 64 if part or weights else 0)
        for index in [*inputs, len(self.tensors) - 1]:
            self.tensors[index][1] = len(self.compute)

    def workload(self) -> Workload:
        rows = np.array(self.tensors, dtype=np.int64)
        aligned = -(-rows[:, 2] // 64) * 64
        alive = buffers(rows[:, 0], rows[:, 1], aligned, np.full(len(rows), 64))
        return Workload(np.array(self.compute), np.array(self.weights, dtype=np.int64), alive, weight_alignment=64)

    def convolution(self, x: int, channels: int, out: int, side: int, kernel: int, extra: tuple[int, ...] = ()) -> int:
        """Returns the output; `side` is of the output."""
        y = self.tensor(out * side * side)
        weights = channels * out * kernel * kernel
        self.layer(weights * side * side, weights + out, [x, *extra])
        return y


def vgg19() -> Workload:
    """VGG-19 (arXiv 1409.1556, table 1, column E) at about 380 ms."""
    network = Network(macs_per_ms=54e6, bytes_per_ms=25e6)
    side, channels = 224, 3
    x = network.tensor(channels * side * side)
    for out, convolutions in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(convolutions):
            x = network.convolution(x, channels, out, side, 3)
            channels = out
        side //= 2
        y = network.tensor(channels * side * side)
        network.layer(0, 0, [x])
        x = y
    for inputs, outputs in ((25088, 4096), (4096, 4096), (4096, 1000)):
        y = network.tensor(outputs)
        network.layer(inputs * outputs, inputs * outputs + outputs, [x])
        x = y
    return network.workload()


def resnet152() -> Workload:
    """ResNet-152 (arXiv 1512.03385, table 1) at about 205 ms."""
    network = Network(macs_per_ms=56e6, bytes_per_ms=25e6)
    x = network.tensor(3 * 224 * 224)
    x = network.convolution(x, 3, 64, 112, 7)
    y = network.tensor(64 * 56 * 56)
    network.layer(0, 0, [x])
    x, channels = y, 64
    for width, blocks, side in ((64, 3, 56), (128, 8, 28), (256, 36, 14), (512, 3, 7)):
        for block in range(blocks):
            shortcut = x if block else network.convolution(x, channels, 4 * width, side, 1)
            first_side = 2 * side if block == 0 and width > 64 else side
            y = network.convolution(x, channels, width, first_side, 1)
            y = network.convolution(y, width, width, side, 3)
            x = network.convolution(y, width, 4 * width, side, 1, (shortcut,))
            channels = 4 * width
    y = network.tensor(2048)
    network.layer(0, 0, [x])
    network.tensor(1000)
    network.layer(2048 * 1000, 2048 * 1000 + 1000, [y])
    return network.workload()


@st.composite
def workloads(draw: st.DrawFn, steps: int = 12, tensors: int = 12, largest: int = 20) -> Workload:
    """Any workload: tensors that begin and end anywhere, steps with and without weights."""
    n = draw(st.integers(1, steps))
    compute = draw(st.lists(st.floats(0, 5), min_size=n, max_size=n))
    weights = draw(st.lists(st.integers(0, largest), min_size=n, max_size=n))
    spans = draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(1, n), st.integers(0, largest)), max_size=tensors))
    rows = np.array([(begin, min(begin + length, n), size) for begin, length, size in spans], dtype=np.int64).reshape(-1, 3)
    alignment = draw(st.sampled_from([1, 1, 4]))
    alive = buffers(rows[:, 0], rows[:, 1], rows[:, 2], np.full(len(rows), draw(st.sampled_from([1, 1, 2]))))
    return Workload(np.array(compute), np.array(weights, dtype=np.int64), alive, weight_alignment=alignment)


def assert_sound(workload: Workload, placement: Placement, timeline: Timeline, budget: int) -> None:
    """Nothing overlaps at any time, is used before it is loaded, or is out of the arena."""
    tensors, inferences = workload.tensors, len(timeline.step_end)
    held = []  # what, from when to when (ms), from address to address
    for m in range(inferences):
        for t in range(len(tensors)):
            since, until = timeline.step_start[m, tensors.lower[t]], timeline.step_end[m, tensors.upper[t] - 1]
            low = int(placement.tensor_offset[t])
            assert low % tensors.alignment[t] == 0
            held.append((("tensor", m, t), since, until, low, low + int(tensors.size[t])))
        for k in np.flatnonzero(workload.weight_bytes):
            low = int(placement.weight_offset[k])
            assert low >= 0
            assert low % workload.weight_alignment == 0
            since, until = timeline.load_start[m, k], timeline.step_end[m, k]
            assert timeline.load_end[m, k] <= timeline.step_start[m, k] + 1e-9
            if placement.stays[k]:
                since, until = 0.0, timeline.step_end[-1, -1]
                if m:
                    continue
            held.append((("weights", m, k), since, until, low, low + int(workload.weight_bytes[k])))
    for at, (what, since, until, low, high) in enumerate(held):
        assert 0 <= low <= high <= placement.height <= budget
        for other, other_since, other_until, other_low, other_high in held[:at]:
            apart = until <= other_since + 1e-9 or other_until <= since + 1e-9 or high <= other_low or other_high <= low
            assert apart, f"{what} and {other} share memory"
    assert (np.diff(timeline.step_start.ravel()) >= 0).all()
