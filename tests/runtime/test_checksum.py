"""The checksum of programs and weights tells apart what differs in any way that storage brings about."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from edgeplan.runtime.program_file import checksum

_BITS = 2**64 - 1
WORDS = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40)


def _of(words: list[int]) -> int:
    return checksum(np.array(words, np.uint64).view(np.uint8))


def _mixed(state: int, word: int) -> int:
    product = (state ^ word) * 0x9E3779B97F4A7C15 & _BITS
    return (product << 29 | product >> 35) & _BITS


@given(WORDS, st.binary(max_size=7))
def test_a_checksum_is_what_plan_folders_hold(words: list[int], rest: bytes) -> None:
    states, whole = [1, 2, 3, 4], len(words) // 4 * 4
    for k, word in enumerate(words):
        lane = k % 4 if k < whole else 0
        states[lane] = _mixed(states[lane], word)
    found = states[0]
    for word in (*states[1:], int.from_bytes(rest, "little"), 8 * len(words) + len(rest)):
        found = _mixed(found, word)
    assert checksum(np.array(words, np.uint64).tobytes() + rest) == found


@given(WORDS, st.data())
def test_flipped_bits_show(words: list[int], data: st.DataObject) -> None:
    bit = st.tuples(st.integers(0, len(words) - 1), st.integers(0, 63))
    changed = list(words)
    for place, shift in data.draw(st.lists(bit, min_size=1, max_size=2, unique=True)):
        changed[place] ^= 1 << shift
    assert _of(changed) != _of(words)


@given(WORDS, st.data())
def test_exchanged_words_show(words: list[int], data: st.DataObject) -> None:
    one, other = (data.draw(st.integers(0, len(words) - 1)) for _ in range(2))
    changed = list(words)
    changed[one], changed[other] = changed[other], changed[one]
    assert (_of(changed) != _of(words)) == (changed != words)


@given(WORDS)
def test_missing_words_show(words: list[int]) -> None:
    behind, before = [*words, 0], [0, *words]
    assert _of(words) not in {_of(behind), _of(before)}
    assert (_of(behind) == _of(before)) == (behind == before)


def test_signs_of_two_weights_that_meet_in_one_state_show() -> None:
    """The highest bit moves nowhere in a multiplication: without turning, two of them would cancel."""
    words = [1] * 16
    assert _of([w ^ (1 << 63) if i in (0, 4) else w for i, w in enumerate(words)]) != _of(words)
