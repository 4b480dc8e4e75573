"""What crosses between two copies of an arena: all that is read elsewhere, once, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.partitioned.program import Split, _strided, crossings, partition
from edgeplan.runtime.partitioned.sections import Dimension
from edgeplan.runtime.processor import Region
from edgeplan.runtime.program import activation_layouts

_BLOCK = 16


def _graph() -> Graph:
    b = GraphBuilder("crossing", (1, 16, 8, 8))
    x = b.conv_bn(b.input, 32, 3)
    return b.build(b.gap(b.conv_bn(b.conv_bn(x, 32, 1), 32, 1)))


def _bytes(moves: tuple[tuple[Region, ...], ...]) -> list[int]:
    return [sum(width * rows for _, width, rows, _ in regions) for regions in moves]


@pytest.mark.parametrize(
    ("assigned", "moved_in", "moved_out"),
    [
        ([0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]),
        ([1, 1, 1, 1], [4096, 0, 0, 0], [0, 0, 0, 128]),  # the input, and the output
        ([0, 1, 1, 0], [0, 8192, 0, 0], [0, 0, 8192, 0]),
        ([1, 0, 1, 1], [4096, 0, 8192, 0], [8192, 0, 0, 128]),
    ],
)
def test_what_one_writes_and_the_other_reads_is_moved(assigned: list[int], moved_in: list[int], moved_out: list[int]) -> None:
    lowered = lower(_graph())
    made = partition(lowered, activation_layouts(lowered, BLOCKED), _BLOCK, assigned)
    found = crossings(made, _BLOCK)
    assert [_bytes(one) for one in found] == [moved_in, moved_out]


def test_halves_move_halves() -> None:
    """The other half of a tensor comes in, one's own goes out; both are dense."""
    lowered = lower(_graph())
    halves = [Split(16), Split(16), Split(16), 1]
    made = partition(lowered, activation_layouts(lowered, BLOCKED), _BLOCK, halves)
    moved_in, moved_out = (
        [size for size, lane in zip(_bytes(one), made.lanes, strict=True) if lane] for one in crossings(made, _BLOCK)
    )
    assert moved_in == [4096, 4096, 4096, 4096]
    assert moved_out == [4096, 4096, 0, 128]


def test_columns_of_several_rows_are_moved_row_by_row() -> None:
    b = GraphBuilder("rows", (6, 32))
    lowered = lower(b.build(b.fc(b.relu(b.fc(b.input, 64)), 16)))
    made = partition(lowered, activation_layouts(lowered, BLOCKED), _BLOCK, [Split(48, Dimension.channels), 0])
    _, moved_out = crossings(made, _BLOCK)
    (region,) = next(regions for regions in moved_out if regions)
    assert region[1:] == (16 * 4, 6, 64 * 4)


def test_strides_become_rows() -> None:
    """A region for each place of the axes before; what follows each other is one row."""
    rng = np.random.default_rng(5)
    for _ in range(50):
        shape = tuple(int(n) for n in rng.integers(1, 4, 4))
        whole = tuple(int(n + rng.integers(0, 3)) for n in shape)
        strides = tuple(int(np.prod(whole[axis + 1 :])) for axis in range(4))
        touched = np.zeros(whole, bool)
        touched[tuple(slice(0, n) for n in shape)] = True
        found = np.zeros(touched.size * 4, bool)
        for at, width, rows, pitch in _strided(0, 4, shape, strides):
            for row in range(rows):
                assert not found[at + row * pitch : at + row * pitch + width].any(), "moved twice"
                found[at + row * pitch : at + row * pitch + width] = True
        assert (found.reshape(-1, 4).all(axis=1) == touched.ravel()).all()
