"""Properties of layouts: nothing overlaps, and what is proven agrees with trying everything."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.errors import FormatError
from edgeplan.planning.layout import Buffers, FirstFit, buffers, least, lowest, max_live
from layout_checks import overlapping

_quick = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def problems(draw: st.DrawFn, most: int = 14, largest: int = 9, alignments: tuple[int, ...] = (1, 1, 2, 4)) -> Buffers:
    rows = draw(
        st.lists(
            st.tuples(st.integers(-3, 12), st.integers(1, 8), st.integers(0, largest), st.sampled_from(alignments)),
            min_size=1,
            max_size=most,
        )
    )
    columns = np.array(rows, dtype=np.int64)
    return buffers(columns[:, 0], columns[:, 0] + columns[:, 1], columns[:, 2], columns[:, 3])


def assert_laid_out(all_of: Buffers, offsets: np.ndarray, capacity: int) -> None:
    assert (offsets >= 0).all()
    assert (offsets % all_of.alignment == 0).all()
    assert (offsets + all_of.size).max() <= capacity
    assert overlapping(all_of, offsets) is None


def _least_by_trying(all_of: Buffers) -> int:
    """The least height over all orders of placing each at its lowest address."""
    made, shown = FirstFit(all_of), np.flatnonzero(all_of.size)
    rest = np.flatnonzero(all_of.size == 0).tolist()
    found = [made.laid_out([*order, *rest]) for order in itertools.permutations(shown.tolist())]
    return min(int((offsets + all_of.size).max()) for offsets in found if offsets is not None)


@settings(_quick, max_examples=examples(200))
@given(problem=problems(), ends=st.data())
def test_layouts_are_valid_and_the_least_is_no_higher_than_greedy(problem: Buffers, ends: st.DataObject) -> None:
    found = least(problem, work=100)
    assert_laid_out(problem, found.offsets, found.height)
    assert found.height >= found.lower_bound >= max_live(problem)
    for offsets in FirstFit(problem).greedy().values():
        assert_laid_out(problem, offsets, int((offsets + problem.size).max()))
        assert (offsets + problem.size).max() >= (lowest(problem) + problem.size).max() >= found.height
    order = ends.draw(st.permutations(range(len(problem))))
    upper = ends.draw(st.lists(st.booleans(), min_size=len(problem), max_size=len(problem)))
    made = FirstFit(problem).laid_out(order, upper, found.height)
    if made is not None:
        assert_laid_out(problem, made, found.height)


@settings(_quick, max_examples=examples(150))
@given(problem=problems(most=6))
def test_what_is_proven_agrees_with_trying_everything(problem: Buffers) -> None:
    by_trying = _least_by_trying(problem)
    found = least(problem)
    assert found.height == by_trying  # random orders of so few buffers are all of them
    assert not found.proven or found.lower_bound == by_trying


@pytest.mark.parametrize("seed", range(12))
def test_random_orders_go_below_the_greedy_ones_to_the_bound(seed: int) -> None:
    draw = np.random.default_rng(seed)
    problem = buffers([0], [1], [1])
    while (lowest(problem) + problem.size).max() == max_live(problem):
        lower = draw.integers(0, 30, 20)
        problem = buffers(lower, lower + draw.integers(1, 12, 20), draw.integers(1, 40, 20))
    found = least(problem)
    assert found.height < (lowest(problem) + problem.size).max()
    assert found.height == least(problem).height  # seeded


@pytest.mark.parametrize("lowers", [(0, 1), (0, 0)])
def test_alignments_without_a_common_multiple_of_64_bits_are_laid_out(lowers: tuple[int, int]) -> None:
    problem = buffers(lowers, (2, 3), (5, 5), (2199023255551, 2199023255550))
    found = least(problem)
    assert found.height == 2199023255555
    assert_laid_out(problem, found.offsets, found.height)


@pytest.mark.parametrize(
    ("lower", "upper", "size", "alignment", "what"),
    [
        ([1], [1], [1], [1], "upper"),
        ([0], [1], [-1], [1], "size"),
        ([0], [1], [1], [0], "alignment"),
        ([0, 1], [1], [1], [1], "length"),
        ([0], [2**62], [1], [1], "not within"),
        ([0, 0, 0], [1, 1, 1], [2**60] * 3, [1, 1, 1], "together"),
    ],
)
def test_buffers_that_make_no_sense_are_refused(
    lower: list[int], upper: list[int], size: list[int], alignment: list[int], what: str
) -> None:
    with pytest.raises(FormatError, match=what):
        buffers(lower, upper, size, alignment)
