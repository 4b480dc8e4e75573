"""The time of an inference: until its outputs are there, told in digits that tell something."""

from __future__ import annotations

import pytest

from edgeplan.terminal import milliseconds

LANE = "processes"  # see tests/conftest.py


@pytest.mark.parametrize(
    ("ms", "told"), [(1234.567, "1234.57 ms"), (0.1, "0.10 ms"), (0.0987, "0.099 ms"), (0.0041, "0.0041 ms"), (0.0, "0.00 ms")]
)
def test_times_have_two_digits_however_short_they_are(ms: float, told: str) -> None:
    assert milliseconds(ms) == told
