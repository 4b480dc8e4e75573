"""Properties of layouts: nothing overlaps, and what is proven agrees with trying everything."""

import itertools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.errors import FormatError
from edgeplan.planning.layout import greedy
from edgeplan.planning.layout.buffers import Buffers, Verdict, buffers, max_live
from edgeplan.planning.layout.parts import graph, pair_count, parts
from edgeplan.planning.layout.solve import solve
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


def hard(seed: int, count: int = 60, capacity: int = 256, steps: int = 40) -> Buffers:
    """Rectangles that fill an arena: cut at random, so a layout exists and none is lower."""
    rng = np.random.default_rng(seed)
    pieces = [(0, steps, 0, capacity)]
    while len(pieces) < count:
        at = max(range(len(pieces)), key=lambda k: (pieces[k][1] - pieces[k][0]) * pieces[k][3] * rng.uniform(0.2, 1))
        begin, end, _, size = pieces.pop(at)
        in_time = rng.random() < (end - begin) / (end - begin + size * steps / capacity)
        if end - begin < 2 or (size > 1 and not in_time):
            cut = int(rng.integers(1, size)) if size > 1 else 0
            pieces += [(begin, end, 0, cut), (begin, end, 0, size - cut)]
        else:
            cut = int(rng.integers(begin + 1, end))
            pieces += [(begin, cut, 0, size), (cut, end, 0, size)]
    rng.shuffle(pieces)
    rows = np.array([piece for piece in pieces if piece[3]], dtype=np.int64)
    return buffers(rows[:, 0], rows[:, 1], rows[:, 3])


def assert_laid_out(all_of: Buffers, offsets: np.ndarray, capacity: int) -> None:
    assert (offsets >= 0).all()
    assert (offsets % all_of.alignment == 0).all()
    assert (offsets + all_of.size).max() <= capacity
    for a, b in itertools.combinations(range(len(all_of)), 2):
        together = all_of.lower[a] < all_of.upper[b] and all_of.lower[b] < all_of.upper[a]
        share = offsets[a] < offsets[b] + all_of.size[b] and offsets[b] < offsets[a] + all_of.size[a]
        assert not (together and share and all_of.size[a] and all_of.size[b])
    assert overlapping(all_of, offsets) is None


def _least_by_trying(all_of: Buffers) -> int:
    """The least height over all orders of placing each at its lowest address."""
    order = [k for k in range(len(all_of)) if all_of.size[k]]
    best = [sum(int(s + a) for s, a in zip(all_of.size, all_of.alignment, strict=True))]

    def place(left: frozenset[int], placed: tuple[tuple[int, int], ...], height: int) -> None:
        if height >= best[0]:
            return
        if not left:
            best[0] = height
            return
        for k in left:
            free = 0
            beside = sorted(
                (at, j) for j, at in placed if all_of.lower[j] < all_of.upper[k] and all_of.lower[k] < all_of.upper[j]
            )
            for at, j in beside:
                if at >= free + all_of.size[k]:
                    break
                end = at + int(all_of.size[j])
                free = max(free, -(-end // int(all_of.alignment[k])) * int(all_of.alignment[k]))
            place(left - {k}, (*placed, (k, free)), max(height, free + int(all_of.size[k])))

    place(frozenset(order), (), 0)
    return best[0]


@settings(_quick, max_examples=examples(200))
@given(problem=problems())
def test_the_least_layout_is_valid_and_no_higher_than_greedy(problem: Buffers) -> None:
    found = solve(problem)
    assert found.offsets is not None
    assert found.height is not None
    assert_laid_out(problem, found.offsets, found.height)
    assert found.height >= found.lower_bound >= max_live(problem)
    assert found.proven
    shown = problem.subset(np.flatnonzero(problem.size))
    if len(shown):
        for order in greedy.orders(shown).values():
            offsets = greedy.first_fit(graph(shown), shown, order)
            assert_laid_out(shown, offsets, int((offsets + shown.size).max()))
            assert (offsets + shown.size).max() >= found.height


@settings(_quick, max_examples=examples(150))
@given(problem=problems(most=6))
def test_what_is_proven_agrees_with_trying_everything(problem: Buffers) -> None:
    least = _least_by_trying(problem)
    found = solve(problem)
    assert found.proven
    assert found.height == least
    assert solve(problem, least).verdict is Verdict.fits
    if least:
        assert solve(problem, least - 1).verdict is Verdict.infeasible


@settings(_quick, max_examples=examples(100))
@given(problem=problems(), over=st.integers(-3, 3))
def test_a_capacity_is_kept_or_proven_too_small(problem: Buffers, over: int) -> None:
    least = solve(problem).height
    assert least is not None
    capacity = max(least + over, 0)
    found = solve(problem, capacity)
    assert found.verdict is (Verdict.fits if capacity >= least else Verdict.infeasible)
    if found.offsets is not None:
        assert_laid_out(problem, found.offsets, capacity)
    else:
        assert capacity < found.lower_bound <= least


@pytest.mark.parametrize("seed", range(12))
def test_arenas_that_are_filled_to_the_last_byte_are_found(seed: int) -> None:
    problem = hard(seed)
    found = solve(problem, 256, timeout_s=120)
    assert found.verdict is Verdict.fits
    assert found.offsets is not None
    assert_laid_out(problem, found.offsets, 256)
    assert solve(problem, 255).verdict is Verdict.infeasible


def test_a_bound_that_cannot_be_reached_is_proven() -> None:
    # Loads of 4 at most; but b and d of size 2 stand in the way of c, whatever the order.
    problem = buffers([0, 0, 2, 4, 4, 6], [4, 2, 6, 8, 6, 8], [1, 3, 2, 1, 1, 3])
    assert max_live(problem) == 4
    found = solve(problem)
    assert found.proven
    assert found.height == _least_by_trying(problem)
    assert solve(problem, 4).verdict is (Verdict.fits if found.height == 4 else Verdict.infeasible)


def test_no_time_says_not_found_and_more_time_goes_on() -> None:
    problem = hard(3, count=90)
    assert solve(problem, 256, timeout_s=0).verdict is Verdict.unknown
    assert solve(problem, 256, timeout_s=120).verdict is Verdict.fits


@settings(_quick, max_examples=examples(100))
@given(problem=problems(most=40))
def test_pairs_are_counted_as_they_are_listed(problem: Buffers) -> None:
    pairs = [
        (a, b)
        for a, b in itertools.combinations(range(len(problem)), 2)
        if problem.lower[a] < problem.upper[b] and problem.lower[b] < problem.upper[a]
    ]
    assert pair_count(problem) == len(pairs)
    network = graph(problem)
    listed = {(k, int(j)) for k in range(len(problem)) for j in network.neighbour[network.pointer[k] : network.pointer[k + 1]]}
    assert listed == {pair for a, b in pairs for pair in ((a, b), (b, a))}
    together = [max(network.first[a], network.first[b]) < min(network.last[a], network.last[b]) for a, b in pairs]
    assert all(together)  # sections show every overlap


@settings(_quick, max_examples=examples(100))
@given(problem=problems(most=40))
def test_parts_are_independent(problem: Buffers) -> None:
    found, offsets = parts(problem)
    members = [set(part.index.tolist()) for part in found]
    assert sum(len(m) for m in members) == len(set().union(*members, set()))
    assert set(np.flatnonzero(offsets < 0).tolist()) == set().union(*members, set())
    for one, other in itertools.combinations(members, 2):
        for a, b in itertools.product(one, other):
            assert problem.upper[a] <= problem.lower[b] or problem.upper[b] <= problem.lower[a]


@settings(_quick, max_examples=examples(100))
@given(problem=problems(most=30, alignments=(1, 2)))
def test_the_sweep_for_huge_problems_is_valid(problem: Buffers) -> None:
    order = np.argsort(problem.lower, kind="stable")
    shown = problem.subset(order[problem.size[order] > 0])
    offsets = greedy.sweep(shown, np.arange(len(shown)), 10**9)
    assert offsets is not None
    if len(shown):
        assert_laid_out(shown, offsets, int((offsets + shown.size).max()))
    assert len(shown) < 2 or greedy.sweep(shown, np.arange(len(shown)), 1) is None


_ODD = (2**41 - 1, 2**41 - 3, 2**41 - 5)


@settings(_quick, max_examples=examples(100))
@given(problem=problems(most=30), odd=st.booleans())
def test_the_stack_for_huge_problems_is_valid(problem: Buffers, odd: bool) -> None:
    if odd:  # no common multiple of these is a number of 64 bits
        alignment = np.array(_ODD, dtype=np.int64)[np.arange(len(problem)) % len(_ODD)]
        problem = buffers(problem.lower, problem.upper, problem.size, alignment)
    offsets = greedy.stack(problem)
    assert_laid_out(problem, offsets, int((problem.size + problem.alignment).sum()))


@pytest.mark.parametrize("lowers", [(0, 1), (0, 0)])
def test_alignments_without_a_common_multiple_of_64_bits_are_laid_out(lowers: tuple[int, int]) -> None:
    problem = buffers(lowers, (2, 3), (5, 5), (2199023255551, 2199023255550))
    found = solve(problem, timeout_s=0.5)
    assert found.offsets is not None
    assert found.height == 2199023255555
    assert_laid_out(problem, found.offsets, found.height)
    assert solve(problem, 2199023255554).verdict is Verdict.infeasible


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
