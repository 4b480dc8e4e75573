"""Words mixed into a few, at the speed of memory: what `runtime.memory.checksum` is made from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgeplan.runtime.native.words import LANES
from edgeplan.support.compiled import compiled

Words = npt.NDArray[np.uint64]

#: Odd, so that multiplying loses nothing: the fraction of the golden ratio.
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
#: A multiplication moves bits up only; turned by so much, the highest come to matter for those of the next word.
_UP, _DOWN = np.uint64(29), np.uint64(35)


@compiled
def _mixed(state: np.uint64, word: np.uint64) -> np.uint64:
    product = (state ^ word) * _FACTOR
    return (product << _UP) | (product >> _DOWN)


@compiled
def mix(words: Words, states: Words) -> None:
    """Mix words into `LANES` states, in turn. A step can be undone, so no change of a word is lost."""
    a, b, c, d = states[0], states[1], states[2], states[3]
    whole = len(words) // LANES * LANES
    for i in range(0, whole, LANES):
        a, b = _mixed(a, words[i]), _mixed(b, words[i + 1])
        c, d = _mixed(c, words[i + 2]), _mixed(d, words[i + 3])
    for i in range(whole, len(words)):
        a = _mixed(a, words[i])
    states[0], states[1], states[2], states[3] = a, b, c, d
