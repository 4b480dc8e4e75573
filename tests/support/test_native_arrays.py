"""Arrays reach the native library as it reads them, or not at all."""

from ctypes import ArgumentError, c_int, c_int64

import numpy as np
import pytest

from edgeplan.support.native_arrays import array, when_needed

_both_ends = when_needed("both_ends", c_int, array(np.int64), c_int64, array(np.int64), c_int64)


@pytest.mark.parametrize("order", [[0, 1], np.zeros(2), np.zeros(2, np.int32), np.zeros(2, ">i8"), np.zeros(4, np.int64)[::2]])
def test_arrays_of_another_kind_or_with_gaps_are_refused(order: object) -> None:
    with pytest.raises(ArgumentError):
        _both_ends()(np.ones((5, 2), np.int64), 2, order, 4)


def test_what_is_written_is_seen() -> None:
    rows = np.array([[-1, -1], [2, 1], [0, 0], [1, 1], [1, 1]])
    assert _both_ends()(rows, 2, np.arange(2), 3)
    assert rows[0].tolist() == [0, 2]
